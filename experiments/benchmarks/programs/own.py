# SPDX-License-Identifier: Apache-2.0
"""This program itself, on the path that `train` and `translate` take."""

import contextlib
import itertools
import pathlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from experiments import compose, costs, user_cache
from experiments.benchmarks import matmul_rate, prepared, text
from experiments.benchmarks.program import Program
from experiments.benchmarks.settings import config_of
from experiments.benchmarks.work import Work
from experiments.corpora import text_files
from transformer import sharding
from transformer.arrays import Array
from transformer.checkpoints.workdir_files import LEXICON
from transformer.decoding import generate
from transformer.decoding.beam_search import Hypotheses
from transformer.nn.attention import KERNELS
from transformer.text.lexicon import Lexicon
from transformer.text.tokenizer import Tokenizer
from transformer.training.step import Batch
from transformer.translator import Translator


def training(work: Work, overrides: Mapping[str, Any]) -> Program:
    """One step of `train` after the other, on a batch that is on the device; each is waited for."""
    experiment = _experiment(work, overrides)
    batch = experiment.on_mesh(Batch(*work.token_ids()))
    state = experiment.init_state()

    def call() -> None:
        nonlocal state
        state, sums = experiment.train_step(state, batch)
        jax.block_until_ready((state, sums))

    call()
    return Program(call, _about(experiment.mesh) | _memory(experiment, batch))


def training_text(
    work: Work, folder: str, source: str, target: str, batches: int, overrides: Mapping[str, Any]
) -> Program:
    """The first so many steps of a training on a text, with the reading of its batches, which are
    prepared by another thread as for `train`; the last step is waited for.

    Args:
      work: whose buckets are the lengths of batches.
      folder: with the vocabulary.
      source: file of the sources.
      target: file of the targets.
      batches: how many.
      overrides: of config fields.
    """
    experiment = prepared.experiment_of_text(work, folder, source, target, overrides)
    user_cache.keep_compiled_programs()
    read = experiment.data.train
    state = experiment.init_state()

    def call() -> None:
        nonlocal state
        with contextlib.closing(read.iterate(0)) as reader:
            for batch in itertools.islice(reader, batches):
                state, sums = experiment.train_step(state, experiment.on_mesh(batch))
        jax.block_until_ready((state, sums))

    arrays = [(read[place].source, read[place].target) for place in range(batches)]
    share = text.padding_share(arrays)
    tokens = sum(np.count_nonzero(ids) for _, ids in arrays)
    about = _about(experiment.mesh) | {"padding_share": share, "batches": batches}
    return Program(call, about, units=tokens / 1000)


def translating(
    work: Work, folder: str, beams: int, together: int, overrides: Mapping[str, Any]
) -> Program:
    """A `Translator` that is given the lines as text and returns text; each translation is one
    token longer than its source: the end token is not allowed earlier, and nothing else then.

    Args:
      work: whose buckets are the lengths of batches.
      folder: with the vocabulary, the lexicon and the lines.
      beams: 1 is greedy search.
      together: sentences of a batch.
      overrides: of config fields.

    Raises:
      AssertionError: when a translation has another length.
    """
    longest = work.source + 1
    own = {
        "decode.beams": beams,
        "decode.batch_size": together,
        "decode.extra_length": 1,
        "decode.min_length": longest,
    }
    experiment = _experiment(work, own | dict(overrides))
    home = pathlib.Path(folder)
    tokenizer = Tokenizer.load(home / prepared.VOCABULARY)
    translator = Translator(
        experiment.config,
        experiment.init_state().params,
        tokenizer,
        mesh=experiment.mesh,
        lexicon=Lexicon.load(home / LEXICON, tokenizer.vocab_size),
    )
    lines = text_files.read_lines(home / prepared.LINES)
    lengths = [len(translation.tokens) for translation in translator(lines)]
    assert lengths == [len(ids) + 1 for ids in tokenizer.encode(lines)]
    about = _about(experiment.mesh) | {"output_tokens": sum(lengths)}
    return Program(lambda: translator(lines), about, units=len(lines))


def decoding(work: Work, beams: int, overrides: Mapping[str, Any]) -> Program:
    """One batch searched as `translate` does, from ids to ids, each translation as long as the work
    says: the end token is not allowed earlier, and nothing else is at the limit.

    Raises:
      AssertionError: when a translation has another length.
    """
    search, arguments, static = _search(work, beams, overrides)

    def call() -> np.ndarray:
        return np.asarray(search(*arguments, **static).tokens)[:, 0]

    assert ((call() != 0).sum(-1) == work.target).all()
    return Program(call, _about(static["mesh"]))


def _search(
    work: Work, beams: int, overrides: Mapping[str, Any]
) -> tuple[Callable[..., Hypotheses], tuple, dict[str, Any]]:
    """What a `Translator` calls for a batch, its arrays, and what it is compiled for."""
    own = {
        "decode.beams": beams,
        "decode.batch_size": work.rows,
        "decode.min_length": work.target - 1,
        "decode.max_length": work.target,
    }
    experiment = _experiment(work, own | dict(overrides))
    source = sharding.place(work.token_ids()[0], sharding.batch_sharding(experiment.mesh))
    params = jax.jit(experiment.model.cast_params)(experiment.init_state().params)
    arguments = params, source, None, None, np.uint32(0)
    static = {
        "mesh": experiment.mesh,
        "model": experiment.model,
        "config": experiment.config.decode,
        "num_results": 1,
        "max_length": work.target,
    }
    return generate.decode, arguments, static


def step_products(work: Work, overrides: Mapping[str, Any]) -> Program:
    """The matrix products of a training step and nothing else, each in its fastest form; a sample
    is the time that all of them take.
    """
    return _alone(matmul_rate.of_step(config_of(work, overrides).model, *_shape(work)))


def search_products(work: Work, beams: int, overrides: Mapping[str, Any]) -> Program:
    """Those of a search, likewise."""
    return _alone(matmul_rate.of_search(config_of(work, overrides).model, *_shape(work), beams))


def _alone(counts: Counter[matmul_rate.Product]) -> Program:
    return Program(seconds=matmul_rate.Timed(counts), about=_versions())


def _shape(work: Work) -> tuple[int, int, int]:
    return work.rows, work.source, work.target


def _experiment(work: Work, overrides: Mapping[str, Any]) -> compose.Experiment:
    user_cache.keep_compiled_programs()
    return costs.experiment_of_shapes(config_of(work, overrides))


def attention(work: Work, kernel: str) -> Program:
    """Forward and backward pass of one attention over sources of the work's length, none masked."""
    shape = (work.rows, work.source, work.heads, work.d_model // work.heads)
    operands = [jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 3)]

    def mixed(query: Array, key: Array, value: Array) -> Array:
        return KERNELS[kernel](query, key, value, None).z.sum()

    gradients = jax.jit(jax.grad(mixed, argnums=(0, 1, 2)))
    return Program(lambda: jax.block_until_ready(gradients(*operands)), _versions())


def _memory(experiment: compose.Experiment, batch: Batch) -> dict[str, int]:
    """MiB of the training state and of what lives only during a step, by XLA's account.

    The step has been called before, so that it is not compiled again but found in the cache, and
    the peak memory of the process is that of a training.
    """
    _, cost = costs.compile_step(experiment, *batch.source.shape)
    return {
        "state_mib": cost.memory.argument_bytes >> 20,
        "temporaries_mib": cost.memory.temporary_bytes >> 20,
    }


def _about(mesh: Mesh) -> dict[str, Any]:
    return _versions() | {"devices": mesh.size}


def _versions() -> dict[str, Any]:
    return {"version": f"jax {jax.__version__}"}
