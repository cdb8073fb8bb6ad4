# SPDX-License-Identifier: Apache-2.0
"""Config of the device mesh."""

import dataclasses
from typing import ClassVar, Literal

from transformer.errors import InputError
from transformer.fields import FieldGroup, Positive, nearest

MESH_AXES = ("data", "model")


@dataclasses.dataclass(frozen=True)
class ParallelConfig(FieldGroup):
    """The device mesh. No field changes a result."""

    group: ClassVar[str] = "parallel"

    data: Positive = 1
    """Devices along the mesh axis ``data``, which divides the rows of batches."""
    model: Positive = 1
    """Devices along the mesh axis ``model``, which divides heads, d_ff and vocabulary."""
    preset: Literal["replicated", "fsdp", "tensor", "fsdp_tensor"] = "replicated"
    """Sharding of the parameters. replicated: none. fsdp: d_model along ``data``. tensor: heads,
    d_ff and vocabulary along ``model``. fsdp_tensor: both. In a step of fsdp each device also
    holds all parameters, all-gathered: embeddings in float32, kernels in the compute dtype.
    """
    rules: tuple[str, ...] = ()
    """Rules that replace the preset's, each as LOGICAL=MESH, or LOGICAL= for unsharded; for example
    ``--config.parallel.rules="('vocab=', 'kv=model')"``. The logical axes are vocab, source_vocab,
    position, embed (d_model), heads, kv_heads (with ``model.num_kv_heads``), kv (d_k, d_v), mlp
    (d_ff), norm, hidden (units of recurrent layers; no preset divides them, because every time
    step would communicate), rank (of LoRA adapters) and those that another family declares.
    """

    def validate(self) -> None:
        """Check rules of known and different axes."""
        logical = [rule.partition("=")[0] for rule in self.rules]
        self.require(len(set(logical)) == len(logical), "rules", "rules of different axes")
        for rule in self.rules:
            self.require("=" in rule, "rules", "LOGICAL=MESH each, or LOGICAL= for unsharded")
            mesh = rule.partition("=")[2] or MESH_AXES[0]
            if mesh not in MESH_AXES:
                raise InputError(
                    f"parallel.rules has {rule!r}, but there is no mesh axis {mesh!r}; did you "
                    f"mean {nearest(mesh, MESH_AXES)!r}? (mesh axes: {', '.join(MESH_AXES)})"
                )
