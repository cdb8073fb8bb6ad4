# SPDX-License-Identifier: Apache-2.0
"""``pronouns.py:de`` with the paper's schedule and one part of the Transformer changed by name.

Run:    transformer train --config=pronouns_variants:rotary \\
            --workdir=runs/rotary
        python -m experiments.studies.variants trains and compares all variants.
Expect: 97% pronoun accuracy or more on unseen sentences (`evaluate`), after 3 to 5 minutes on two
        CPU cores. `paper`, the default, changes no part.
"""

from typing import Any

from experiments.configs import pronouns
from transformer.config import Config, OptimizerConfig
from transformer.errors import InputError

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "learned": {"positions": "learned"},
    "t5": {"positions": "t5"},
    "shaw": {"positions": "shaw"},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "no_positions": {"positions": "none"},
    "window": {"attention_window": 9},
    "additive": {"attention_score": "additive"},
    "multi_query": {"num_kv_heads": 1},
    "grouped_query": {"num_kv_heads": 2},
    "universal": {"shared_layers": True, "timestep_encoding": True},
    "rms_norm": {"norm_kind": "rms_norm"},
    "pre_norm": {"norm": "pre"},
    # Three kernels instead of two, with two thirds of the width, as in Shazeer 2020, section 3.1.
    "swiglu": {"activation": "swiglu", "d_ff": 171},
    "geglu": {"activation": "geglu", "d_ff": 171},
    "untied": {"tied_embeddings": "none"},
    "untied_source": {"tied_embeddings": "target_output"},
    "untied_output": {"tied_embeddings": "source_target"},
}
"""From the name of a variant to the fields of `model` that differ from ``pronouns.py:de``."""


def get_config(variant: str = "paper") -> Config:
    """Return the config of a variant, by its name in `VARIANTS`."""
    if variant not in VARIANTS:
        raise InputError(
            f"pronouns_variants.py:{variant} is unknown; the variants are {', '.join(VARIANTS)}"
        )
    config = pronouns.get_config("de")
    return config.replace(
        model=config.model.replace(**VARIANTS[variant]),
        optimizer=OptimizerConfig(schedule="noam", learning_rate=0.5, warmup_steps=300),
    )
