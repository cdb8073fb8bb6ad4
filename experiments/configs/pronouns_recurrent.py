# SPDX-License-Identifier: Apache-2.0
"""Recurrent encoder-decoders on English to German with an ambiguous "it".

``sutskever``, ``bahdanau`` (the default), ``luong`` and ``luong_local``; the data is that of
``pronouns.py:de``.

Run:    transformer train --config=pronouns_recurrent:bahdanau \\
            --workdir=runs/bahdanau
        transformer evaluate --workdir=runs/bahdanau
Expect: after 800 steps, on unseen sentences (`evaluate`), pronoun accuracy 98.2% (sutskever), 99.0%
        (bahdanau), 99.2% (luong) and 99.2% (luong_local); exact match 93.1%, 99.0%, 97.3% and
        93.8%. A training took 3 to 7 minutes on two busy CPU cores.
"""

from experiments.configs import pronouns
from transformer.config import Config, OptimizerConfig, RecurrentConfig
from transformer.errors import InputError

MODELS = {
    "sutskever": {
        "cell": "lstm",
        "num_layers": 2,
        "d_model": 192,
        "encoder_direction": "backward",
        "attention": "none",
    },
    "bahdanau": {"cell": "gru", "encoder_direction": "both", "attention": "additive"},
    "luong": {
        "cell": "lstm",
        "num_layers": 2,
        "encoder_direction": "forward",
        "attention": "general",
        "input_feeding": True,
    },
    "luong_local": {
        "cell": "lstm",
        "num_layers": 2,
        "encoder_direction": "both",
        "attention": "general",
        "input_feeding": True,
        "local_window": 5,
    },
}


def get_config(name: str = "bahdanau") -> Config:
    """Return the config; `name` is one of `MODELS`."""
    if name not in MODELS:
        known = ", ".join(f"pronouns_recurrent.py:{each}" for each in MODELS)
        raise InputError(f"pronouns_recurrent.py:{name} is unknown; choose one of {known}")
    sizes = {"vocab_size": 1600, "d_model": 128, "dropout": 0.1, "dropout_generator": "hash"}
    return pronouns.get_config("de").replace(
        model=RecurrentConfig(**sizes | MODELS[name]),
        optimizer=OptimizerConfig(
            schedule="cosine", learning_rate=3e-3, warmup_steps=100, clip_norm=1.0
        ),
    )
