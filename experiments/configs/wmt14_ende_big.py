# SPDX-License-Identifier: Apache-2.0
"""The paper's big model on the data of wmt14_ende_base.py.

Run:    transformer train --config=wmt14_ende_big \\
            --workdir=runs/big
        transformer evaluate --workdir=runs/big --average=20
Expect: the paper has 28.4 BLEU (table 2) on tokenized text with split compounds, after 3.5 days on
        8 P100. fairseq, trained on the text of WMT 2016, has 29.3 that way and 28.6 on raw text
        (Ott et al. 2018). Not run here at full length.
"""

from experiments.configs import big, wmt14_ende_base
from transformer.config import Config


def get_config() -> Config:
    """Return the config."""
    return big.get_config().replace(data=wmt14_ende_base.get_config().data)
