# SPDX-License-Identifier: Apache-2.0
"""Results that a study computes once, keyed by the digest of everything they depend on.

key = digest_of(VERSION, config, translator.params, sentences)
scores = cached(folder / "scores.json", key, compute)
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath

from transformer.checkpoints import workdir_files

_DIGEST = "digest"


def digest_of(*values: Any) -> str:
    """Digest of the contents of values, as 16 hexadecimal digits.

    Args:
      *values: numbers, strings, arrays, and lists, dictionaries and dataclasses of these: configs,
        parameters, sentences, options, and a version of the code that computes the result.

    Raises:
      TypeError: for a value whose contents are not known, such as a path.
    """
    text = json.dumps(values, sort_keys=True, default=_contents)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _contents(value: Any) -> Any:
    """A value as JSON; arrays by the digest of their bytes."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [type(value).__name__, fields]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return [str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()]
    raise TypeError(f"{type(value).__name__} has no digest; give its contents instead")


def cached(file: epath.Path, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The contents of a JSON file, which is written if it is missing or has another key.

    Args:
      file: the results, with the key in the field ``digest``.
      key: `digest_of` everything that `compute` uses.
      compute: returns the results.
    """
    if file.exists():
        values = json.loads(file.read_text(encoding="utf-8"))
        if values.pop(_DIGEST, None) == key:
            return values
    values = compute()
    file.parent.mkdir(parents=True, exist_ok=True)
    workdir_files.write_json(file, {_DIGEST: key, **values})
    return values
