# SPDX-License-Identifier: Apache-2.0
"""Config of an experiment: all groups of fields, to and from JSON."""

import dataclasses
import json
from typing import Any, Self

from transformer.config.data_config import DataConfig
from transformer.config.decode_config import DecodeConfig
from transformer.config.evaluation_config import EvaluationConfig
from transformer.config.model_config import ModelConfig, TransformerConfig
from transformer.config.parallel_config import ParallelConfig
from transformer.config.training_config import LoggingConfig, OptimizerConfig, TrainingConfig
from transformer.errors import InputError
from transformer.fields import FieldGroup
from transformer.provenance import provenance

RUNS = "runs"
"""Key of ``config.json`` that is not a field: the starts of the run, each with its first step, its
time, its `provenance` and the changes of fields.
"""


@dataclasses.dataclass(frozen=True)
class Config(FieldGroup):
    """The config of an experiment."""

    model: ModelConfig = TransformerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    decode: DecodeConfig = DecodeConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    parallel: ParallelConfig = ParallelConfig()
    logging: LoggingConfig = LoggingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    def validate(self) -> None:
        """Check how the groups fit together."""
        longest = self.data.max_length
        self.model.check_length(max(longest, self.decode.longest_output(longest)))
        must = f"False: the family {self.model.family!r} cannot keep the sentences of a row apart"
        self.data.require(self.model.packable or not self.data.packing, "packing", must)
        if (self.data.vocabulary == "separate") != (self.model.source_vocab_size is not None):
            raise InputError(
                f"data.vocabulary is {self.data.vocabulary!r}, but model.source_vocab_size is "
                f"{self.model.source_vocab_size}; set a size for a separate source vocabulary only"
            )
        training = self.training
        if self.optimizer.name == "schedule_free":
            must = "left out with optimizer.name='schedule_free', which averages all parameters"
            training.require(training.ema_decay is None, "ema_decay", must)
            training.require(not training.freeze, "freeze", must)
        if training.r_drop:
            differ, one = self.model.has_dropout, not training.cutoff
            must = "0 unless model.dropout is above 0, without which its two passes are the same"
            training.require(differ, "r_drop", must)
            must = f"0 with training.cutoff={training.cutoff}: a step makes two passes"
            training.require(one, "r_drop", f"{must}; set one of them to 0")

    def to_dict(self) -> dict[str, Any]:
        """The fields in their order, from which `from_dict` constructs the config."""
        return dataclasses.asdict(self) | {"model": self.model.to_dict()}

    def to_json(self) -> str:
        """Indented JSON; see `to_dict`."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str = "config.json") -> Self:
        """Parse ``config.json``: the output of `to_json`, and `RUNS`, which is ignored.

        Errors name `path`.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}:{error.lineno}: not JSON ({error.msg}); restore the file from a copy"
            ) from None
        except RecursionError:
            raise InputError(f"{path}: nested too deeply; restore the file from a copy") from None
        if not isinstance(values, dict):
            raise InputError(f"{path}: the file must hold one JSON object")
        runs = values.pop(RUNS, None)
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"{path}: {error}{_versions(runs)}") from None


def _versions(runs: Any) -> str:
    """The version that wrote a config and this one, if they differ."""
    try:
        saved = runs[-1]["provenance"]
        written, here = ((one["version"], one["commit"]) for one in (saved, provenance()))
    except (LookupError, TypeError):
        return ""
    if written == here:
        return ""
    words = (f"version {version} (commit {commit})" for version, commit in (written, here))
    return "; written by {}, this is {}".format(*words)
