# SPDX-License-Identifier: Apache-2.0
"""Bundles: one file with everything that translating needs, and no training state.

A bundle is a ZIP archive of ``config.json``, the tokenizers, a model card ``README.md``, and the
parameters in Flax's MessagePack format. ZIP has a checksum per file.
"""

import io
import zipfile
from collections.abc import Mapping

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer.arrays import Params
from transformer.checkpoints import workdir_files
from transformer.errors import InputError

PARAMS = "params.msgpack"


def write(
    path: epath.PathLike, files: Mapping[str, bytes], params: Params, dtype: str = "float32"
) -> None:
    """Write a bundle of files by name and of parameters, atomically.

    With ``bfloat16`` it has half the size. Raises an InputError when it cannot be written.
    """
    arrays = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.dtype(dtype)), params)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, data in files.items():
            bundle.writestr(name, data, zipfile.ZIP_DEFLATED)
        bundle.writestr(PARAMS, flax.serialization.msgpack_serialize(arrays))
    workdir_files.write_bytes(path, buffer.getvalue())


def read_params(bundle: zipfile.Path, abstract: Params) -> Params:
    """Read the parameters of a bundle that `workdir_files.opened` opened.

    Raises:
      InputError: when they are damaged, or do not have the shapes of `abstract`.
    """
    try:
        params = flax.serialization.msgpack_restore((bundle / PARAMS).read_bytes())
        return jax.tree.map(_put, abstract, params)
    # A damaged archive raises many types.
    except Exception as error:  # noqa: BLE001
        raise InputError(f"{bundle / PARAMS} cannot be used ({error}); copy it again") from None


def _put(abstract: jax.ShapeDtypeStruct, array: np.ndarray) -> jax.Array:
    if array.shape != abstract.shape:
        raise ValueError(f"it has the shape {array.shape}, but config.json makes {abstract.shape}")
    return jax.device_put(array.astype(abstract.dtype), abstract.sharding)
