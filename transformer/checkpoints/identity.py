# SPDX-License-Identifier: Apache-2.0
"""The model section of a config and the vocabularies that parameters were trained with."""

import dataclasses
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

    @classmethod
    def of(cls, model: ModelConfig, source: bytes, target: bytes) -> "Identity":
        """The identity of a model whose vocabularies are these SentencePiece models."""
        sides = {"source": source, "target": target}
        return cls(model, {side: hashlib.sha256(data).hexdigest() for side, data in sides.items()})

    def to_json(self) -> dict[str, Any]:
        """A value that JSON can represent."""
        return {"model": dataclasses.asdict(self.model), "vocabularies": self.vocabularies}

    def require(self, saved: dict[str, Any], checkpoint: str) -> None:
        """Compare with the `to_json` that was saved with a checkpoint.

        Raises:
          InputError: for a model with another function, or for another vocabulary.
        """
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
