# SPDX-License-Identifier: Apache-2.0
"""A batch of sentences decoded or scored on a mesh, its rows divided along the axis ``data``.

The devices that stand at one place along ``data`` compute their rows and wait for no others: a
search has no step in common with those of other rows, and ends where its own sentences are done.
Parameters that are divided along ``data`` are gathered once a batch, before the first step; what is
divided along ``model`` stays so. The results are on every device, so that every process has them.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from transformer.arrays import PAD_ID, Array, Float, Int, Key, Params, UInt
from transformer.config import DecodeConfig
from transformer.decoding import beam_search, decode_loop, sampling
from transformer.decoding.constraints import Constraints
from transformer.decoding.shortlist import Shortlist
from transformer.sharding import replicated
from transformer.training.step import Batch, score_step

Shared = TypeVar("Shared")
Rows = TypeVar("Rows")
Results = TypeVar("Results")


def row_by_row(
    compute: Callable[[Shared, Rows], Results], mesh: Mesh
) -> Callable[[Shared, Rows], Results]:
    """The same function, computed on each device for its own rows.

    Args:
      compute: from what all rows share (parameters) and rows to one result a row, which depends on
        no other row.
      mesh: from `sharding.make_mesh`.
    """
    # XLA left to itself would look for the most probable extensions in the logits of all rows on
    # every device, at every step, and would divide activations as `fsdp` divides parameters.
    divided = jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("data")),
        out_specs=PartitionSpec("data"),
        axis_names={"data"},
        check_vma=False,  # a loop begins with constants, which JAX takes for the same everywhere
    )

    def everywhere(shared: Shared, rows: Rows) -> Results:
        return jax.lax.with_sharding_constraint(divided(shared, rows), replicated(mesh))

    return everywhere


@functools.partial(jax.jit, static_argnames=("mesh", "model", "config", "results", "max_length"))
def decode(
    params: Params,
    source: Int[Array, "B S"],
    prefix: Int[Array, "B M"] | None,
    lines: Int[Array, " B"] | None,
    seed: UInt[Array, ""],
    shortlist: Shortlist | None = None,
    *,
    mesh: Mesh,
    model: nn.Module,
    config: DecodeConfig,
    results: int,
    max_length: int,
) -> beam_search.Hypotheses:
    """So many results for each source; rows of padding have none.

    Args:
      params: laid out on the mesh in any way.
      source: padded with 0; B is a multiple of the mesh's axis ``data``.
      prefix: what each translation begins with, padded with 0.
      lines: the number of each sentence; samples depend on it and on the seed.
      seed: in place of `config.seed`, so that the compiled program is the same for all.
      shortlist: the sub-words that may be in a translation, if not all may.
      mesh: static, as all that follows.
      model: of any family.
      config: how to search or to sample.
      results: with beam search at most its beams, and how many of them must be certain.
      max_length: M.
    """
    keys = None
    if lines is not None:
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed), lines)

    ids, listed = (None, None) if shortlist is None else (shortlist.ids, shortlist.listed)

    def compute(shared: tuple, rows: tuple) -> beam_search.Hypotheses:
        params, ids = shared
        *rows, listed = rows
        return search(
            params,
            *rows,
            None if ids is None else Shortlist(ids, listed),
            model=model,
            config=config,
            results=results,
            max_length=max_length,
        )

    return row_by_row(compute, mesh)((params, ids), (source, prefix, keys, listed))


@functools.partial(jax.jit, static_argnames=("mesh", "model"))
def score(params: Params, batch: Batch, *, mesh: Mesh, model: nn.Module) -> Float[Array, " B"]:
    """The natural-log probability of every target, 0 for rows of padding; see `decode`."""

    def compute(params: Params, rows: Batch) -> Float[Array, " B"]:
        return score_step(params, rows, model=model).sum(-1)

    return row_by_row(compute, mesh)(params, batch)


def search(
    params: Params,
    source: Int[Array, "B S"],
    prefix: Int[Array, "B M"] | None = None,
    keys: Key[Array, " B"] | None = None,
    shortlist: Shortlist | None = None,
    *,
    model: nn.Module,
    config: DecodeConfig,
    results: int,
    max_length: int,
) -> beam_search.Hypotheses:
    """Encodes once, then searches for or draws so many results; rows of padding have none."""

    def call(method, *arguments):
        return model.apply({"params": params}, *arguments, method=method)

    memory, _ = call(model.encode, source)
    lengths = (source != PAD_ID).sum(-1)
    limits = jnp.where(lengths > 0, beam_search.search_limits(lengths, config), 0)
    step = functools.partial(call, model.step)
    if shortlist is not None and prefix is not None:
        prefix = shortlist.places_of(prefix)

    def cache(beams: int, groups: int) -> decode_loop.Cache:
        room = decode_loop.rooms(max_length)[0]
        return call(model.init_cache, memory, source, beams, room, groups, shortlist)

    options = {
        "max_length": max_length,
        "grow": model.grow,
        "take": model.take,
        "penalty": config.length_penalty,
        "alpha": config.alpha,
        "constraints": Constraints(config.min_length, config.block_ngrams, prefix),
    }
    if config.method == "beam":
        found = beam_search.beam_search(
            step,
            model.reorder,
            cache(config.beams, config.groups),
            limits,
            beams=config.beams,
            results=results,
            groups=config.groups,
            diversity=config.diversity,
            **options,
        )
    else:
        found = sampling.sample(
            step,
            cache(results, results),
            limits,
            keys,
            samples=results,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            min_p=config.min_p,
            **options,
        )
    if shortlist is None:
        return found
    return found.replace(tokens=shortlist.ids[found.tokens])
