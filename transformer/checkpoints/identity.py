# SPDX-License-Identifier: Apache-2.0
"""The model section of a config and the vocabularies that parameters were trained with."""

import hashlib
from typing import Any, NamedTuple

from transformer.checkpoints import workdir_files
from transformer.config import ModelConfig
from transformer.errors import InputError


class Identity(NamedTuple):
    """The model and the vocabularies that parameters were trained with, saved beside them."""

    model: ModelConfig
    vocabularies: dict[str, str]
    """SHA-256 of the SentencePiece model of the ``source`` and of the ``target``."""
    adapters: dict[str, Any] | None = None
    """With LoRA: the fields that define the adapters, and ``base``, the SHA-256 of their base."""

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        source: bytes,
        target: bytes,
        adapters: dict[str, Any] | None = None,
    ) -> "Identity":
        """The identity of a model whose vocabularies are these SentencePiece models."""
        sides = {"source": source, "target": target}
        digests = {side: hashlib.sha256(data).hexdigest() for side, data in sides.items()}
        return cls(model, digests, adapters)

    def to_json(self) -> dict[str, Any]:
        """A value that JSON can represent."""
        values = {"model": self.model.to_dict(), "vocabularies": self.vocabularies}
        return values if self.adapters is None else values | {"adapters": self.adapters}

    def require(self, saved: dict[str, Any], checkpoint: str) -> None:
        """Refuse a checkpoint whose saved `to_json` has another model, vocabulary or base."""
        for path, (then, now) in ModelConfig.from_dict(saved["model"]).changes(self.model).items():
            raise InputError(
                f"{path} is {now!r}, but {checkpoint} was trained with {then!r}; leave the "
                f"override out, or restore {workdir_files.CONFIG} from a copy"
            )
        for side, file in (
            ("target", workdir_files.TOKENIZER),
            ("source", workdir_files.SOURCE_TOKENIZER),
        ):
            then, now = saved["vocabularies"][side], self.vocabularies[side]
            if then != now:
                raise InputError(
                    f"{file} has the SHA-256 {now[:16]}..., but {checkpoint} was trained with the "
                    f"vocabulary {then[:16]}...; restore {file} from a copy"
                )
        then, now = saved.get("adapters") or {}, self.adapters or {}
        for name in sorted(then | now):
            if then.get(name) != now.get(name):
                files = f"{workdir_files.CONFIG} and {workdir_files.BASE}"
                raise InputError(
                    f"the adapters' {name} is {now.get(name)!r}, but {checkpoint} was trained with "
                    f"{then.get(name)!r}; restore {files} from a copy"
                )
