# SPDX-License-Identifier: Apache-2.0
"""The paper's base model on the paper's data: WMT 2014 English to German, about 4.5 million pairs,
through TFDS (`wmt14_translate/de-en`), downloaded once; validated on newstest2013, tested on
newstest2014.

Run:    python -m experiments.train --config=experiments/configs/wmt14_ende_base.py \\
            --workdir=runs/wmt
        python -m experiments.evaluate --workdir=runs/wmt --average=5
Expect: the paper has 27.3 BLEU (table 2), of tokenized text with compounds split, after 12 hours on
        8 P100. On text as it is written, which `evaluate` scores, models of this size that others
        trained have 24.4 (Joey NMT's benchmarks) to 26.9 (OpenNMT-py's pretrained model). Nobody
        has run it here at full length.
"""

from experiments.configs import base
from transformer.config import Config


def get_config() -> Config:
    """The experiment."""
    config = base.get_config()
    return config.replace(
        data=config.data.replace(dataset="wmt14_translate/de-en", direction="en-de")
    )
