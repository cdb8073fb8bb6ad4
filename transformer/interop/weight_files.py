# SPDX-License-Identifier: Apache-2.0
"""The weights of a model directory of Hugging Face, tensor by tensor, without PyTorch."""

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from transformer.arrays import Float
from transformer.errors import InputError
from transformer.interop import pickle_tensors

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"
"""Ending of the file that names the shard of each tensor, of models in several files."""


class Weights:
    """Tensors by name, each of which is to be taken once."""

    def __init__(self, location: str, tensors: Mapping[str, Callable[[], np.ndarray]]):
        """Name the place, for errors, and the functions that read the tensors."""
        self._location, self._unread = location, dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._unread

    def take(self, name: str, *shape: int) -> Float[np.ndarray, "..."]:
        """Read a tensor as float32.

        Raises:
          InputError: if it is missing, has been taken, has another shape, or is not finite.
        """
        if name not in self._unread:
            raise InputError(
                f"{self._location} has no tensor {name!r}; does config.json belong to it?"
            )
        array = self._unread.pop(name)()
        if array.shape != shape:
            raise InputError(
                f"{self._location}: {name!r} has the shape {[*array.shape]}, but config.json makes "
                f"{[*shape]}; check that both belong together"
            )
        array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise InputError(f"{self._location}: {name!r} has values that are not finite")
        return array

    def require_copy(self, name: str, of: Float[np.ndarray, "..."]) -> None:
        """Read a tensor that older files repeat, if there is one, and compare it.

        Raises:
          InputError: if it differs.
        """
        if name in self and not np.array_equal(self.take(name, *of.shape), of):
            raise InputError(
                f"{self._location}: {name!r} differs from the table that it is tied to by "
                "config.json; set tie_word_embeddings and share_encoder_decoder_embeddings there "
                "to what the model was trained with"
            )

    def require_all_taken(self) -> None:
        """Check that nothing is left.

        Raises:
          InputError: naming the tensors that no part of the model has.
        """
        if self._unread:
            names = sorted(self._unread)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InputError(
                f"{self._location} has tensors that this model does not: {', '.join(names[:3])}"
                f"{more}; check config.json, or use the files of the original model"
            )


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
      InputError: if the file is missing, or is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); copy it again") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold one JSON object; copy it again")
    return value


@contextlib.contextmanager
def opened(directory: pathlib.Path) -> Iterator[Weights]:
    """The weights of a directory: safetensors if there are any, in one file or several.

    Raises:
      InputError: if there are none, or a file is damaged or asks to run code.
    """
    with contextlib.ExitStack() as stack:
        for name, open_file in ((SAFETENSORS, _safetensors), (PICKLED, pickle_tensors.opened)):
            files = _files(directory, name)
            if files:
                tensors: dict[str, Callable[[], np.ndarray]] = {}
                for file in files:
                    tensors |= stack.enter_context(open_file(file))
                location = files[0] if len(files) == 1 else directory
                yield Weights(os.fspath(location), tensors)
                return
        raise InputError(
            f"{directory} has neither {SAFETENSORS} nor {PICKLED}; download the files of the model"
        )


def _files(directory: pathlib.Path, name: str) -> list[pathlib.Path]:
    """The file of that name, or the shards of its index; empty if there is neither."""
    if (directory / name).exists():
        return [directory / name]
    path = directory / f"{name}{_INDEX}"
    if not path.exists():
        return []
    shards = read_json(path).get("weight_map")
    if not (isinstance(shards, dict) and shards):
        raise InputError(f"{path} names no shards (weight_map); copy it again")
    files = sorted({str(shard) for shard in shards.values()})
    for file in files:
        if pathlib.PurePath(file).name != file:
            raise InputError(f"{path} names {file!r}, which is not beside it")
    return [directory / file for file in files]


@contextlib.contextmanager
def _safetensors(path: pathlib.Path) -> Iterator[dict[str, Callable[[], np.ndarray]]]:
    try:
        import safetensors
    except ImportError:
        raise InputError(
            f"{path} needs the package safetensors; install it with: pip install safetensors"
        ) from None
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(safetensors.safe_open(path, framework="numpy"))
            names = list(file.keys())
        except (OSError, safetensors.SafetensorError) as error:
            raise InputError(f"{path} cannot be read ({error}); copy it again") from None
        yield {name: lambda name=name: file.get_tensor(name) for name in names}
