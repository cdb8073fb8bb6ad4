# SPDX-License-Identifier: Apache-2.0
"""The paper's base model on the paper's data: WMT 2014 English to German, from TFDS.

About 4.5 million sentence pairs (`wmt14_translate/de-en`), downloaded once; validated on
newstest2013, tested on newstest2014. Preparing them needs TensorFlow: the extra ``wmt``.

Run:    transformer train --config=wmt14_ende_base \\
            --workdir=runs/wmt
        transformer evaluate --workdir=runs/wmt --average=5
Expect: the paper has 27.3 BLEU (table 2) on tokenized text with split compounds, after 12 hours on
        8 P100. On raw text, which `evaluate` scores, models of this size reach 24.4 (Joey NMT's
        benchmarks) to 26.9 (OpenNMT-py's pretrained model). Not run here at full length.
"""

from experiments.configs import base
from transformer.config import Config


def get_config() -> Config:
    """Return the config."""
    config = base.get_config()
    return config.replace(
        data=config.data.replace(dataset="wmt14_translate/de-en", direction="en-de")
    )
