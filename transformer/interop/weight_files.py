# SPDX-License-Identifier: Apache-2.0
"""The weights of a model directory of Hugging Face, tensor by tensor, without PyTorch."""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from transformer.arrays import Float
from transformer.errors import InputError

SAFETENSORS = "model.safetensors"
_CONVERSION = (
    'python -c "import glob, torch, safetensors.torch as s; s.save_file({n: t.clone() for f in '
    "glob.glob('pytorch_model*.bin') for n, t in torch.load(f, weights_only=True).items()}, "
    f"'{SAFETENSORS}')\""
)


class Weights:
    """Tensors by name, each of which is to be taken once."""

    def __init__(
        self, location: pathlib.Path, names: Iterable[str], read: Callable[[str], np.ndarray]
    ):
        """Read nothing yet. The location is for errors."""
        self._location, self._unread, self._read = location, set(names), read

    def __iter__(self) -> Iterator[str]:
        """Names of the tensors that have not been taken."""
        return iter(self._unread)

    def take(self, name: str, *shape: int) -> Float[np.ndarray, "..."]:
        """Read a tensor as float32.

        Raises:
          InputError: if it is missing, has been taken, has another shape, or is not finite.
        """
        if name not in self._unread:
            raise InputError(
                f"{self._location} has no tensor {name!r}; does config.json belong to it?"
            )
        self._unread.remove(name)
        array = self._read(name)
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
        """Read a tensor that older files repeat, if there is one; it must equal the original."""
        if name in self and not np.array_equal(self.take(name, *of.shape), of):
            raise InputError(
                f"{self._location}: {name!r} differs from the table that it is tied to by "
                "config.json; set tie_word_embeddings and share_encoder_decoder_embeddings there "
                "to what the model was trained with"
            )

    def require_all_taken(self) -> None:
        """Refuse tensors that no part of the model has."""
        if self._unread:
            names = sorted(self._unread)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InputError(
                f"{self._location} has tensors that this model does not: {', '.join(names[:3])}"
                f"{more}; check config.json, or use the files of the original model"
            )


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON object; an InputError if the file is missing, or holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; download all files of the model"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); copy it again") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold one JSON object; copy it again")
    return value


@contextlib.contextmanager
def opened(directory: pathlib.Path) -> Iterator[Weights]:
    """The safetensors of a directory, in one file or several."""
    import safetensors

    files = {}  # by the name of the tensor
    with contextlib.ExitStack() as stack:
        for path in _paths(directory):
            try:
                file = stack.enter_context(safetensors.safe_open(path, framework="numpy"))
                files |= dict.fromkeys(file.keys(), file)
            except (OSError, safetensors.SafetensorError) as error:
                raise InputError(f"{path} cannot be read ({error}); copy it again") from None
        yield Weights(directory, files, lambda name: files[name].get_tensor(name))


def _paths(directory: pathlib.Path) -> list[pathlib.Path]:
    """The one file, or the shards that the index names."""
    if (directory / SAFETENSORS).exists():
        return [directory / SAFETENSORS]
    path = directory / f"{SAFETENSORS}.index.json"
    if any(directory.glob("pytorch_model*.bin")) and not path.exists():
        raise InputError(
            f"{directory} has its weights in a pickle, pytorch_model.bin, but only {SAFETENSORS} "
            f"is read. Convert it in this directory with PyTorch: {_CONVERSION}"
        )
    if not path.exists():
        raise InputError(f"{directory} has no {SAFETENSORS}; download the files of the model")
    shards = read_json(path).get("weight_map")
    if not (isinstance(shards, dict) and shards):
        raise InputError(f"{path} names no shards (weight_map); copy it again")
    files = sorted({str(shard) for shard in shards.values()})
    for file in files:
        if pathlib.PurePath(file).name != file:
            raise InputError(f"{path} names {file!r}, which is not beside it")
    return [directory / file for file in files]
