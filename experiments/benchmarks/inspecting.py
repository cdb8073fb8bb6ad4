# SPDX-License-Identifier: Apache-2.0
"""How long it takes to look inside a model: heads removed, sites patched, words attributed.

python -m experiments.benchmarks.inspecting --config=experiments/configs/pronouns.py

Of the config's model with fresh parameters, on random tokens: what is measured does not depend on
either. Each measure is computed once, which includes compilation, and then several times. The last
line on standard output is one JSON object, in seconds.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
from absl import flags

from experiments.flags import run
from transformer.arrays import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, Params
from transformer.config import Config, TransformerConfig
from transformer.inspection import ablation, alignment, attribution, patching, readout

SENTENCES = flags.DEFINE_integer(
    "sentences", 256, "Whose loss is computed without each head.", lower_bound=1
)
LENGTH = flags.DEFINE_integer("length", 20, "Tokens of every sentence.", lower_bound=3)
REPEATS = flags.DEFINE_integer("repeats", 5, "Of which the median is taken.", lower_bound=1)


def main(config: Config) -> None:
    """Measures and prints."""
    params = alignment.untrained_params(config.model)
    result: dict[str, object] = {"sentences": SENTENCES.value, "length": LENGTH.value}
    for name, measure in measures(params, config.model, SENTENCES.value, LENGTH.value).items():
        first, *later = (seconds(measure) for _ in range(1 + REPEATS.value))
        result[name] = {"first": round(first, 3), "median": round(statistics.median(later), 4)}
        print(f"{name}: {result[name]}", file=sys.stderr, flush=True)
    print(json.dumps(result))


def measures(
    params: Params, config: TransformerConfig, sentences: int, length: int
) -> dict[str, Callable[[], object]]:
    """What is measured, by name: on so many sentences, or on the first pair of them."""
    generator = np.random.default_rng(0)
    ids = generator.integers(NUM_SPECIAL_IDS, config.vocab_size, (2, sentences, length))
    source, target = ids.astype(np.int32)
    source[:, -1] = target[:, -1] = EOS_ID
    clean, corrupt = source[0], source[0].copy()
    corrupt[1] = NUM_SPECIAL_IDS + (corrupt[1] + 1) % (config.vocab_size - NUM_SPECIAL_IDS)
    target_in = np.array([BOS_ID, *target[0, :-1]])
    metric = readout.LogProbability(length - 1, EOS_ID)

    model, pair = (params, config), (clean, corrupt, target_in, metric)
    return {
        "ablate_heads": lambda: ablation.ablate_heads(*model, source, target),
        "head_importance": lambda: ablation.head_importance(*model, source, target),
        "patch_sites": lambda: patching.patch_sites(*model, *pair),
        "attribution_patching": lambda: patching.attribution_patching(*model, *pair),
        "integrated_gradients": lambda: attribution.integrated_gradients(
            *model, clean, target_in, metric
        ),
    }


def seconds(measure: Callable[[], object]) -> float:
    """Until all that it computes is there."""
    began = time.perf_counter()
    jax.block_until_ready(measure())
    return time.perf_counter() - began


if __name__ == "__main__":
    run(main, config_from="config")
