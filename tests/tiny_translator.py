# SPDX-License-Identifier: Apache-2.0
"""A translator with random parameters over seven words."""

import numpy as np
import oracle

from transformer.config import Config, DataConfig, DecodeConfig, TransformerConfig
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer
from transformer.translator import Translator

TOKENIZER = Tokenizer.train(["a b c d e f g"], 11, "word")
CONFIG = Config(
    model=TransformerConfig(
        vocab_size=11, num_layers=1, d_model=12, d_ff=16, num_heads=2, dropout=0.0
    ),
    decode=DecodeConfig(beams=3, extra_length=4, batch_size=4),
    data=DataConfig(max_length=10, bucket_lengths=(4, 10), tokens_per_batch=80),
)
SENTENCES = [
    "a b c d e f g a",
    "a",
    "b c",
    "g g g g",
    "",
    "f e d c b a",
    "c",
    "d a",
    "a b c d e f g",
    "e",
]
LONGER = [sentence for sentence in SENTENCES if len(sentence) > 6]


def translator_with(**decode):
    """The tiny model with some decode fields changed."""
    config = CONFIG.replace(decode=CONFIG.decode.replace(**decode))
    model = protocol.build(config.model)
    return Translator(config, oracle.random_params(model, seed=3), TOKENIZER)


def close(a, b):
    """Equal tokens and text, and scores equal but for rounding."""
    assert (a.text, a.tokens) == (b.text, b.tokens)
    np.testing.assert_allclose([a.score, a.log_prob], [b.score, b.log_prob], atol=1e-5)
