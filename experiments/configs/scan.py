# SPDX-License-Identifier: Apache-2.0
"""SCAN: a test of compositional generalization (Lake and Baroni 2018).

The test commands of ``scan.py:simple`` (the default) are like those of training, those of
``:length`` and ``:length26`` have longer outputs, and those of ``:addprim_jump`` and
``:addprim_turn_left`` combine a command that occurs only alone in training.

Run:    transformer train --config=scan --workdir=runs/scan
        transformer train --config=scan:length --workdir=runs/long
Expect: 99.9% exact match or more on `simple` (`evaluate`), and about 0% on `length` and
        `addprim_jump`, after about a quarter of an hour on two CPU cores. A high score on the
        latter would mean that the test split leaks into training. For `length26`, see
        experiments/studies/generalization.py.
"""

from transformer.config import (
    Config,
    DataConfig,
    DecodeConfig,
    OptimizerConfig,
    TrainingConfig,
    TransformerConfig,
)


def get_config(split: str = "simple") -> Config:
    """Return the config; `split` is ``simple``, ``length``, ...."""
    return Config(
        model=TransformerConfig(vocab_size=23, num_layers=2, d_model=64, d_ff=256, num_heads=4),
        # Cosine decay instead of the paper's schedule: the exact number of repeated actions is
        # learned last, with small steps.
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
        # No label smoothing: a command has one correct output, and the NLL, which selects the
        # checkpoint, should decrease as the model becomes more confident.
        training=TrainingConfig(
            steps=8000, label_smoothing=0.0, validate_every=500, validation_sentences=200
        ),
    )
