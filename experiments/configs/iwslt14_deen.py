# SPDX-License-Identifier: Apache-2.0
"""IWSLT 2014 German to English with the recipe of most papers, from text files.

About 160,000 sentence pairs of TED talks. TFDS has no such corpus. fairseq's prepare-iwslt14.sh
makes the usual splits; use its text before the byte-pair encoding step.

Run:    transformer train --config=iwslt14_deen \\
            --workdir=runs/iwslt \\
            --config.data.train_source=train.de --config.data.train_target=train.en \\
            --config.data.validation_source=valid.de --config.data.validation_target=valid.en
        transformer evaluate --workdir=runs/iwslt --average=10 \\
            --source=test.de --target=test.en
Expect: not run here. On lower-cased text, Joey NMT reports 33.73 BLEU (13a) with a smaller model.
        On tokenized text, reproductions report 34.25 (github.com/teslacool/SCA, issue 16), 35.07
        for the best checkpoint and 35.78 for the average of ten (github.com/lancopku/Prime, issue
        9), and R-Drop reports 37.25 (Liang et al. 2021).
"""

from transformer.config import (
    Config,
    DataConfig,
    DecodeConfig,
    OptimizerConfig,
    TrainingConfig,
    TransformerConfig,
)


def get_config() -> Config:
    """Return the config."""
    return Config(
        model=TransformerConfig(
            vocab_size=10_000, num_layers=6, d_model=512, d_ff=1024, num_heads=4, dropout=0.3
        ),
        # Peak learning rate 0.0005, after the warm-up: 0.7155 (512 x 4000)^-0.5.
        optimizer=OptimizerConfig(
            name="adamw", weight_decay=1e-4, warmup_steps=4000, learning_rate=0.7155
        ),
        decode=DecodeConfig(beams=5, length_penalty="length", alpha=1.0),
        data=DataConfig(
            dataset="text_files",
            max_length=176,
            bucket_lengths=(16, 24, 32, 48, 64, 96, 176),
            tokens_per_batch=4096,
        ),
        training=TrainingConfig(steps=50_000, validate_every=1000, keep_last=10),
    )
