# SPDX-License-Identifier: Apache-2.0
"""The rows of the paper's table 3: fields, published numbers, and the same rows at other sizes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.studies import study_runs
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError

SMALLEST_WIDTH = 16
"""The narrowest d_k of the table; a scale divides it."""
PAPER_STEPS = 100_000
VOCABULARY, VOCABULARY_OF_BIG = 41_100, 36_000
"""Sizes with which the counts of the table are the paper's to the million. The paper names about
37,000, with which base would have 63 million and big 214.
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row: its changes to base, and the published scores."""

    group: str
    """Letter of the table; empty for base and big."""
    name: str
    fields: Mapping[str, Any]
    """Changed fields of `Config`, such as ``model.num_heads``."""
    perplexity: float
    """Per token, on newstest2013."""
    bleu: float
    """On newstest2013."""
    millions: int | None = None
    """Parameters; None where the table has no number."""
    steps: int = PAPER_STEPS

    @property
    def directory(self) -> str:
        """Name of the row's workdir."""
        return f"{self.group}_{self.name}".strip("_").replace(" ", "_").replace("=", "")


def _heads(heads: int) -> dict[str, int]:
    width = 512 // heads
    return {"model.num_heads": heads, "model.d_k": width, "model.d_v": width}


def _width(d_model: int, d_k: int) -> dict[str, int]:
    return {"model.d_model": d_model, "model.d_k": d_k, "model.d_v": d_k}


BASE = {
    "model.num_layers": 6,
    "model.d_model": 512,
    "model.d_ff": 2048,
    "model.num_heads": 8,
    "model.d_k": 64,
    "model.d_v": 64,
    "model.dropout": 0.1,
    "model.positions": "sinusoidal",
    "training.label_smoothing": 0.1,
}
_BIG = {"model.d_ff": 4096, "model.num_heads": 16, "model.dropout": 0.3, **_width(1024, 64)}
ROWS = (
    Row("", "base", {}, 4.92, 25.8, 65),
    Row("A", "h=1", _heads(1), 5.29, 24.9),
    Row("A", "h=4", _heads(4), 5.00, 25.5),
    Row("A", "h=16", _heads(16), 4.91, 25.8),
    Row("A", "h=32", _heads(32), 5.01, 25.4),
    Row("B", "d_k=16", {"model.d_k": 16}, 5.16, 25.1, 58),
    Row("B", "d_k=32", {"model.d_k": 32}, 5.01, 25.4, 60),
    Row("C", "N=2", {"model.num_layers": 2}, 6.11, 23.7, 36),
    Row("C", "N=4", {"model.num_layers": 4}, 5.19, 25.3, 50),
    Row("C", "N=8", {"model.num_layers": 8}, 4.88, 25.5, 80),
    Row("C", "d_model=256", _width(256, 32), 5.75, 24.5, 28),
    Row("C", "d_model=1024", _width(1024, 128), 4.66, 26.0, 168),
    Row("C", "d_ff=1024", {"model.d_ff": 1024}, 5.12, 25.4, 53),
    Row("C", "d_ff=4096", {"model.d_ff": 4096}, 4.75, 26.2, 90),
    Row("D", "dropout=0", {"model.dropout": 0.0}, 5.77, 24.6),
    Row("D", "dropout=0.2", {"model.dropout": 0.2}, 4.95, 25.5),
    Row("D", "smoothing=0", {"training.label_smoothing": 0.0}, 4.67, 25.3),
    Row("D", "smoothing=0.2", {"training.label_smoothing": 0.2}, 5.47, 25.7),
    Row("E", "learned positions", {"model.positions": "learned"}, 4.92, 25.7),
    Row("", "big", _BIG, 4.33, 26.4, 213, steps=300_000),
)
"""Table 3, in its order."""


def scaled_fields(row: Row, scale: int) -> dict[str, Any]:
    """The fields of a row with every width divided by `scale`; heads and layers stay.

    Raises:
      InputError: if the scale does not divide every width.
    """
    if scale < 1 or SMALLEST_WIDTH % scale:
        raise InputError(
            f"--scale={scale} does not divide {SMALLEST_WIDTH}, the narrowest head of table 3; "
            "choose 1, 2, 4, 8 or 16"
        )
    widths = ("model.d_model", "model.d_ff", "model.d_k", "model.d_v")
    fields = BASE | dict(row.fields)
    return fields | {name: fields[name] // scale for name in widths}


def config_of(row: Row, config: Config, scale: int, steps: int) -> Config:
    """The row at this scale on the corpus of a config.

    Args:
      row: the row.
      config: data, vocabulary, optimizer and decoding.
      scale: divides the widths.
      steps: training steps of base; big takes three times as many, as in the paper.

    Raises:
      InputError: for another family, or a scale that does not fit.
    """
    if not isinstance(config.model, TransformerConfig) or config.model.family != "transformer":
        raise InputError(
            f"model.family is {config.model.family!r}, but table 3 varies the Transformer; give a "
            "config of model.family='transformer'"
        )
    data, decode = config.data, config.decode
    longest = max(data.max_length, decode.longest_output(data.max_length))
    row_steps = steps * row.steps // PAPER_STEPS
    fields = scaled_fields(row, scale) | {
        "model.max_positions": max(config.model.max_positions, longest),
        "training.steps": row_steps,
        "training.validate_every": min(config.training.validate_every, row_steps),
    }
    return study_runs.with_fields(config, fields)


def parameters(row: Row, vocab_size: int | None = None) -> int:
    """Number of parameters of a row at the paper's size; by default with the row's vocabulary."""
    if vocab_size is None:
        vocab_size = VOCABULARY_OF_BIG if row.name == "big" else VOCABULARY
    model = {
        path.removeprefix("model."): value
        for path, value in scaled_fields(row, 1).items()
        if path.startswith("model.")
    }
    return study_runs.number_of_parameters(TransformerConfig(vocab_size=vocab_size, **model))
