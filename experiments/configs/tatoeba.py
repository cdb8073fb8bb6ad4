# SPDX-License-Identifier: Apache-2.0
"""Tatoeba, English to German, from text files: a hundred thousand short pairs and more.

156,952 sentence pairs, with 6 words a sentence. As `multi30k.py:hour`, with a wider feed-forward
network and less dropout, because it reads each pair a third as often.

Run:    transformer train --config=tatoeba \\
            --workdir=runs/tatoeba \\
            --config.data.train_source=train.eng.gz --config.data.train_target=train.deu.gz \\
            --config.data.validation_source=dev.eng.gz --config.data.validation_target=dev.deu.gz
        transformer evaluate --workdir=runs/tatoeba \\
            --source=dev.eng.gz --target=dev.deu.gz
        The pairs of deu-eng.zip at manythings.org/anki, some of them kept apart as `dev`.
Expect: 42.5 BLEU on the 2,000 development pairs of docs/results.md, after 65 minutes on one core of
        an Intel Xeon (AMX) with `--config.model.compute_dtype=bfloat16`.
"""

from experiments.configs import multi30k
from transformer.config import Config


def get_config() -> Config:
    """Return the config."""
    hour = multi30k.get_config("hour")
    return hour.replace(
        model=hour.model.replace(d_ff=512, dropout=0.1),
        data=hour.data.replace(bucket_lengths=(8, 12, 16, 24, 32, 64)),
        training=hour.training.replace(steps=6500, validate_every=650, validation_sentences=200),
    )
