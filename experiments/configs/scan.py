# SPDX-License-Identifier: Apache-2.0
"""SCAN: what a Transformer learns of a small language, and what it does not (Lake and Baroni 2018).

``scan.py:simple`` (the default) tests commands like those of training, ``:length`` longer ones,
``:addprim_jump`` and ``:addprim_turn_left`` a word that training has only alone.

Run:    python -m experiments.train --config=experiments/configs/scan.py --workdir=runs/scan
        python -m experiments.train --config=experiments/configs/scan.py:length --workdir=runs/long
Expect: after about a quarter of an hour on two CPU cores, at least 99.9% of the unseen commands of
        `simple` carried out to the last action (`evaluate`), few or none of `length` and
        `addprim_jump`: a high number there would mean that the test leaks into training.
"""

from transformer.config import (
    Config,
    DataConfig,
    DecodeConfig,
    OptimizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer.errors import InputError

SPLITS = ("simple", "length", "addprim_jump", "addprim_turn_left")


def get_config(split: str = "simple") -> Config:
    """The experiment; `split` is one of `SPLITS`."""
    if split not in SPLITS:
        known = ", ".join(f"scan.py:{name}" for name in SPLITS)
        raise InputError(f"scan.py:{split} is unknown; choose one of {known}")
    return Config(
        model=TransformerConfig(vocab_size=23, num_layers=2, d_model=64, d_ff=256, num_heads=4),
        # Not the paper's schedule: one action too many in a row of twelve is an error, and that is
        # learned last, by small steps.
        optimizer=OptimizerConfig(
            schedule="cosine", learning_rate=0.003, warmup_steps=300, clip_norm=1.0
        ),
        decode=DecodeConfig(beams=1),
        data=DataConfig(
            dataset=f"scan_grammar/{split}",
            tokenizer="word",
            max_length=49,
            bucket_lengths=(10, 13, 19, 25, 33, 49),
            tokens_per_batch=2048,
        ),
        # No label smoothing: a command has one right output, and the NLL, which chooses the
        # checkpoint, should fall as long as the model grows surer of it.
        training=TrainingConfig(
            steps=8000, label_smoothing=0.0, validate_every=500, validation_sentences=200
        ),
    )
