# SPDX-License-Identifier: Apache-2.0
"""Read PyTorch's ``pytorch_model.bin`` without PyTorch, and without running what a pickle asks for.

A pickle is a program that may call any function of any module. This reader resolves six names, all
to inert objects of this file, and refuses every other name. It reads both containers: the ZIP
archive of PyTorch 1.6 and later, and the sequence of pickles before.
"""

import collections
import contextlib
import math
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from transformer.errors import InputError

_STORAGES = {
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "DoubleStorage": np.dtype("<f8"),
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_MAX_PICKLE = 2**26
"""Bytes of the pickle of a ZIP archive; that of a model has about 100 for each tensor."""


class _Storage(NamedTuple):
    """A one-dimensional array that tensors are views of."""

    key: str
    dtype: np.dtype
    size: int


class _Tensor(NamedTuple):
    """A view of a storage; offset and strides count elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, storage: np.ndarray) -> np.ndarray:
        """The tensor as a contiguous array."""
        numbers = (self.offset, *self.shape, *self.strides)
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError("a tensor has negative sizes")
        if len(self.shape) != len(self.strides):
            raise ValueError("a tensor has another number of strides than of axes")
        size = math.prod(self.shape)
        steps = zip(self.shape, self.strides, strict=True)
        end = self.offset + sum((length - 1) * stride for length, stride in steps) + 1
        if size == 0:
            return np.zeros(self.shape, storage.dtype)
        # A stride of 0 could make a tensor of any size from a few bytes.
        if end > len(storage) or size > len(storage):
            raise ValueError("a tensor reaches beyond its storage")
        bytes_of = [stride * storage.itemsize for stride in self.strides]
        view = np.lib.stride_tricks.as_strided(storage[self.offset :], self.shape, bytes_of)
        return np.ascontiguousarray(view)


class _Rebuild:
    """What `torch._utils._rebuild_tensor_v2` makes; it has no attributes that could be set."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
        if not isinstance(storage, _Storage):
            raise pickle.UnpicklingError("a tensor has no storage")
        return _Tensor(storage, offset, tuple(shape), tuple(strides))


# The unpickler in C allocates a memo as large as the largest index in the file.
class _Unpickler(pickle._Unpickler):
    """Resolves the names of `_STORAGES`, `_rebuild_tensor_v2` and `OrderedDict`, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """An inert object for a known name."""
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Rebuild()
        if module == "torch" and name in _STORAGES:
            return name
        raise InputError(
            f"the pickle asks for {module}.{name}, which is no part of a file of weights; it may "
            "be an attack, so nothing was run. Use a file that holds tensors only, such as "
            "model.safetensors"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        """A storage, by its key."""
        kind, type_name, key, _, size = tuple(pid)[:5]
        if kind != "storage" or type_name not in _STORAGES or not isinstance(size, int):
            raise pickle.UnpicklingError("an unknown kind of storage")
        return _Storage(str(key), _STORAGES[type_name], size)


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[dict[str, Callable[[], np.ndarray]]]:
    """The tensors of a file by name; each is read when it is called.

    Raises:
      InputError: for a pickle that asks for anything but tensors, or a file that is damaged.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
            if zipfile.is_zipfile(file):
                archive = stack.enter_context(zipfile.ZipFile(file))
                tensors = _of_archive(archive)
            else:
                file.seek(0)
                tensors = _of_pickles(file)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        # A damaged pickle raises many types.
        except Exception as error:  # noqa: BLE001
            raise _damaged(path, error) from None
        yield {name: _explained(path, tensor) for name, tensor in tensors.items()}


def _of_archive(archive: zipfile.ZipFile) -> dict[str, Callable[[], np.ndarray]]:
    """The tensors of a ZIP archive, whose files are in one directory of any name."""
    names = archive.namelist()
    [pickled] = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    root = pickled.removesuffix("data.pkl")
    if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
        raise ValueError("its byte order is not little-endian")
    if archive.getinfo(pickled).file_size > _MAX_PICKLE:
        raise ValueError(f"its pickle has more than {_MAX_PICKLE:,} bytes")

    def storage(one: _Storage) -> np.ndarray:
        info = archive.getinfo(f"{root}data/{one.key}")
        if info.file_size != one.size * one.dtype.itemsize:
            raise ValueError(f"{info.filename} has {info.file_size:,} bytes")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{info.filename} is compressed")
        return np.frombuffer(archive.read(info), one.dtype)

    with archive.open(pickled) as file:
        state = _state(_Unpickler(file).load())
    return {
        name: lambda tensor=tensor: tensor.of(storage(tensor.storage)) for name, tensor in state
    }


def _of_pickles(file: BinaryIO) -> dict[str, Callable[[], np.ndarray]]:
    """The tensors of a file from before PyTorch 1.6: five pickles, then all storages."""
    if (_Unpickler(file).load(), _Unpickler(file).load()) != (_LEGACY_MAGIC, _LEGACY_VERSION):
        raise ValueError("it does not begin as a file of PyTorch")
    system = _Unpickler(file).load()
    if not system["little_endian"]:
        raise ValueError("its byte order is not little-endian")
    state = _state(_Unpickler(file).load())
    storages = {tensor.storage.key: tensor.storage for _, tensor in state}
    arrays = {}
    for key in _Unpickler(file).load():
        one = storages[key]
        size = int.from_bytes(file.read(8), "little")
        if size != one.size:
            raise ValueError(f"storage {key} has {size:,} elements instead of {one.size:,}")
        data = file.read(size * one.dtype.itemsize)
        if len(data) < size * one.dtype.itemsize:
            raise ValueError("it ends within a tensor")
        arrays[key] = np.frombuffer(data, one.dtype)
    return {
        name: lambda tensor=tensor: tensor.of(arrays[tensor.storage.key]) for name, tensor in state
    }


def _state(loaded: Any) -> list[tuple[str, _Tensor]]:
    """The entries of a state dict, all of which must be tensors."""
    if not isinstance(loaded, dict):
        raise ValueError(f"it holds a {type(loaded).__name__} instead of tensors by name")
    # The methods of an instance may be hidden by its attributes, which a pickle may set.
    for name, value in dict.items(loaded):
        if not (isinstance(name, str) and isinstance(value, _Tensor)):
            raise ValueError(f"its entry {name!r} is no tensor")
    return list(dict.items(loaded))


def _explained(path: str | os.PathLike, read: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    def explained() -> np.ndarray:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - a damaged archive raises many types
            raise _damaged(path, error) from None

    return explained


def _damaged(path: str | os.PathLike, error: Exception) -> InputError:
    reason = str(error) or type(error).__name__
    return InputError(f"{path} cannot be read as weights of PyTorch ({reason}); copy it again")
