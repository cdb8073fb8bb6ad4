# SPDX-License-Identifier: Apache-2.0
"""Speed of interpretability tools: head ablation, activation patching, attribution.

python -m experiments.benchmarks.inspecting --config=experiments/configs/pronouns.py

Uses the config's model with fresh parameters on random tokens, on which the time does not depend.
Each tool runs once, which includes compilation, and then several times. The last line on standard
output is one JSON object, in seconds.
"""

import json
import statistics
from collections.abc import Callable

import jax
import numpy as np

from experiments.benchmarks.worker import seconds_of
from experiments.flags import run
from transformer.arrays import Params
from transformer.config import Config, TransformerConfig
from transformer.inspection import ablation, alignment, attribution, patching, readout

SENTENCES, LENGTH, REPEATS = 256, 20, 5
"""Sentence pairs for head ablation, tokens of each, runs after the first."""


def main(config: Config) -> None:
    """Measure and print."""
    params = alignment.untrained_params(config.model)
    result: dict[str, object] = {"sentences": SENTENCES, "length": LENGTH}
    for name, tool in tools(params, config.model, SENTENCES, LENGTH).items():
        first, *later = (seconds_of(tool) for _ in range(1 + REPEATS))
        result[name] = {"first": round(first, 3), "median": round(statistics.median(later), 4)}
    print(json.dumps(result))


def tools(
    params: Params, config: TransformerConfig, sentences: int, length: int
) -> dict[str, Callable[[], object]]:
    """Calls to time by name, on `sentences` sentence pairs or on the first of them."""
    generator = np.random.default_rng(0)
    special, first_word = config.special_ids, len(config.special_ids)
    ids = generator.integers(first_word, config.vocab_size, (2, sentences, length))
    source, target = ids.astype(np.int32)
    source[:, -1] = target[:, -1] = special.eos
    clean, corrupt = source[0], source[0].copy()
    corrupt[1] = first_word + (corrupt[1] + 1) % (config.vocab_size - first_word)
    target_in = np.array([special.bos, *target[0, :-1]])
    metric = readout.LogProbability(length - 1, special.eos)

    model, pair = (params, config), (clean, corrupt, target_in, metric)
    calls = {
        "ablate_heads": lambda: ablation.ablate_heads(*model, source, target),
        "head_importance": lambda: ablation.head_importance(*model, source, target),
        "patch_sites": lambda: patching.patch_sites(*model, *pair),
        "attribution_patching": lambda: patching.attribution_patching(*model, *pair),
        "integrated_gradients": lambda: attribution.integrated_gradients(
            *model, clean, target_in, metric
        ),
    }
    return {name: lambda call=call: jax.block_until_ready(call()) for name, call in calls.items()}


if __name__ == "__main__":
    run(main, config_from="config")
