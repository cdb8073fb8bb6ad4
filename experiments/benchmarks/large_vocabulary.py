# SPDX-License-Identifier: Apache-2.0
"""Decode with a vocabulary of 256,207 subwords, with and without shortlists.

python -m experiments.benchmarks.large_vocabulary

The model has the shape of NLLB-200-distilled-600M and random weights: the time of a search does not
depend on their values, because its length is fixed. The last line on standard output is JSON.
"""

import json
import sys
import time

import jax
import numpy as np
from absl import flags

from experiments.benchmarks.worker import peak_mib
from experiments.flags import parse_integers, run
from experiments.formatting import print_table
from transformer import sharding
from transformer.arrays import Params
from transformer.config import DecodeConfig, ParallelConfig, TransformerConfig
from transformer.decoding import generate
from transformer.decoding.output_kernel import with_output_kernel
from transformer.decoding.shortlist import Shortlist
from transformer.models import base
from transformer.nn.parameters import Parameter, is_parameter

SHAPE = TransformerConfig(
    vocab_size=256_207,
    num_layers=12,
    d_model=1024,
    d_ff=4096,
    num_heads=16,
    norm="pre",
    sinusoid_layout="halves",
    position_offset=2,
    attention_bias=True,
    output_bias=True,
)
LISTED = flags.DEFINE_list("listed", ["512", "4096"], "Subwords on the shortlist of a batch.")
BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["1", "8"], "Sentences decoded together.")
STEPS = flags.DEFINE_integer("steps", 16, "Tokens of every translation.")
REPEATS = flags.DEFINE_integer("repeats", 3, "Searches timed; the fastest counts.")
SOURCE_LENGTH = 16


def main() -> None:
    """Time the searches, and print the table."""
    batch_sizes = parse_integers("batch_sizes", BATCH_SIZES.value)
    lists = parse_integers("listed", LISTED.value) if LISTED.value else []
    params, rows = random_params(SHAPE), []
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    for batch_size in batch_sizes:
        for listed in (None, *lists):
            seconds = timed(params, batch_size, listed)
            rows.append({"sentences": batch_size, "listed": listed, "seconds": round(seconds, 3)})
            print(rows[-1], file=sys.stderr, flush=True)
    peak = peak_mib() / 2**10
    table = [("sentences", "subwords of a step", "ms a token and sentence")]
    for row in rows:
        cost = 1000 * row["seconds"] / STEPS.value / row["sentences"]
        subwords = SHAPE.vocab_size if row["listed"] is None else row["listed"]
        table.append((str(row["sentences"]), f"{subwords:,}", f"{cost:.0f}"))
    print_table(table)
    result = {"parameters": parameters, "peak_gib": round(peak, 1), "runs": rows}
    print(json.dumps(result))


def random_params(config: TransformerConfig) -> Params:
    """Parameters with random values, drawn by NumPy: the initializers would take longer."""
    draw = np.random.default_rng(0)

    def leaf(parameter: Parameter) -> jax.Array:
        value = draw.standard_normal(parameter.value.shape, np.float32)
        value *= 0.02
        return jax.device_put(value)

    metadata = base.parameter_metadata(base.build(config))
    return jax.tree.map(leaf, metadata, is_leaf=is_parameter)


def timed(params: Params, batch_size: int, listed: int | None) -> float:
    """Seconds of the fastest beam search over a batch."""
    decode = DecodeConfig(max_length=STEPS.value, min_length=STEPS.value - 1)
    draw = np.random.default_rng(1)
    source = draw.integers(4, 400, (batch_size, SOURCE_LENGTH)).astype(np.int32)
    source[:, -1] = SHAPE.eos_id
    model, shortlist = base.build(SHAPE), None
    if listed is None:
        model, params = with_output_kernel(model, params)  # as a `Translator` does
    else:
        lists = np.zeros((batch_size, SHAPE.vocab_size), bool)
        lists[:, :listed] = True
        shortlist = Shortlist.from_lists(lists)
    mesh = sharding.make_mesh(ParallelConfig())
    arguments = (params, jax.numpy.asarray(source), None, None, np.uint32(0), shortlist)
    options = {"mesh": mesh, "model": model, "config": decode, "num_results": 1}
    seconds = []
    for _ in range(REPEATS.value + 1):  # The first compiles.
        start = time.perf_counter()
        jax.block_until_ready(generate.decode(*arguments, **options, max_length=STEPS.value))
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


if __name__ == "__main__":
    run(main, config_from=None)
