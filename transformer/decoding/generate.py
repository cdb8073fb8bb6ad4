# SPDX-License-Identifier: Apache-2.0
"""The binding of model, parameters and search: decode or score a batch of sentences on a mesh.

The sentences are divided over the mesh axis ``data``. Devices with the same index along ``data``
compute the same sentences and wait for no others: a search shares no step with those of other
devices and ends when its sentences are finished. Parameters that are sharded along ``data`` are
all-gathered once a batch, before the first step; shardings along ``model`` stay. Results are
replicated, so that every process has them.
"""

import functools
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from transformer import device_memory
from transformer.arrays import Array, Float, Int, Key, Params, UInt
from transformer.batch import Batch, target_log_probs
from transformer.config import DecodeConfig
from transformer.decoding.beam_search import Hypotheses, beam_search, output_length_limits
from transformer.decoding.constraints import Constraints
from transformer.decoding.decode_loop import Cache, cache_lengths
from transformer.decoding.sampling import sample
from transformer.models.protocol import Decodable, Model, Source
from transformer.sharding import replicated
from transformer.user_functions import load_function

logger = logging.getLogger(__name__)

Shared = TypeVar("Shared")
Sentences = TypeVar("Sentences")
Results = TypeVar("Results")


def compiled(function: Callable) -> Callable:
    """Compile a function of arrays for each value of its keyword arguments.

    Several threads may call it. `jax.jit` alone crashes if threads compare static arguments whose
    ``__eq__`` is Python code, such as models, at the same time (jaxlib 0.10.2).
    """
    programs: dict[frozenset, Callable] = {}
    lock = threading.Lock()

    @functools.wraps(function)
    def call(*arrays, **static):
        with lock:
            key = frozenset(static.items())
            if key not in programs:
                programs[key] = jax.jit(functools.partial(function, **static))
            program = programs[key]
        return program(*arrays)

    return call


def generate(
    model: Decodable,
    params: Params,
    source: Source,
    config: DecodeConfig = DecodeConfig(),
    *,
    prefix: Int[Array, "B M"] | None = None,
    keys: Key[Array, " B"] | None = None,
    num_results: int = 1,
    max_length: int | None = None,
) -> Hypotheses:
    """Encode once, then search for or sample translations of each source.

    Args:
      model: a model of any family, or an ensemble.
      params: parameters of the model.
      source: token ids, padded; sources that are all padding have no results.
      config: how to search or to sample; by default the paper's beam search (6.1).
      prefix: forced first tokens of each translation, padded.
      keys: one for each sentence, for sampling only; by default from `config.seed`.
      num_results: number of samples; with beam search at most K, and the number of results that
        must be certain before a search may stop early.
      max_length: M; by default the longest output that `config` allows for S tokens.
    """
    source_mask = model.source_mask(source)  # [B, S]
    max_length = max_length or config.longest_output(source_mask.shape[1])
    source_lengths = source_mask.sum(-1)  # [B]
    limits = output_length_limits(source_lengths, config)
    limits = jnp.where(source_lengths > 0, limits, 0)

    def call(method: Callable, *arguments):
        return model.apply({"params": params}, *arguments, method=method)

    memory = call(model.encode, source)
    # A cache that grows makes steps faster but compiles them three times. The steps of a single
    # sentence read the weights and little else.
    cache_grows = len(source_mask) > 1

    def init_cache(num_beams: int, num_groups: int) -> Cache:
        length = cache_lengths(max_length)[0] if cache_grows else max_length
        return call(model.init_cache, memory, source, num_beams, length, num_groups)

    step = functools.partial(call, model.step)
    options = {
        "max_length": max_length,
        "grow": model.grow if cache_grows else None,
        "take": model.take,
        "penalty": config.length_penalty,
        "alpha": config.alpha,
        "constraints": Constraints(config.min_length, config.block_ngrams, prefix),
        "special_ids": model.config.special_ids,
    }
    if config.method == "beam":
        return beam_search(
            step,
            model.reorder,
            init_cache(config.beams, config.groups),
            limits,
            num_beams=config.beams,
            num_results=num_results,
            num_groups=config.groups,
            diversity=config.diversity,
            finish_from=config.finish_from,
            **options,
        )
    if keys is None:
        keys = jax.random.split(jax.random.key(config.seed), len(source_mask))
    return sample(
        step,
        init_cache(num_results, num_results),
        limits,
        keys,
        num_samples=num_results,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        min_p=config.min_p,
        truncation=config.truncation and load_function(config.truncation),
        **options,
    )


@compiled
def decode(
    params: Params,
    source: Int[Array, "B S"],
    prefix: Int[Array, "B M"] | None,
    line_numbers: Int[Array, " B"] | None,
    seed: UInt[Array, ""],
    *,
    mesh: Mesh,
    model: Model,
    config: DecodeConfig,
    num_results: int,
    max_length: int,
) -> Hypotheses:
    """`generate` on a mesh, compiled, which is logged; the arguments are its, except:

    Args:
      params: on the mesh, with any sharding.
      source: B is a multiple of the size of the mesh axis ``data``.
      line_numbers: what the samples of each sentence depend on, together with `seed`; for sampling
        only.
      seed: replaces `config.seed`, so that one compiled program serves all seeds.
      mesh: from `sharding.make_mesh`; static, like the arguments after it.

    Raises:
      InputError: before compiling, if the search cannot fit the memory of a device.
    """
    rows, length = source.shape
    logger.info("compiling the search for a batch of %d x %d tokens", rows, length)
    beams = config.beams if config.method == "beam" else num_results
    needed = required_bytes(
        params,
        jax.ShapeDtypeStruct((rows // mesh.shape["data"], length), source.dtype),
        model=model,
        beams=beams,
        max_length=max_length,
    )
    device_memory.require(
        needed // mesh.shape["model"],
        f"decoding a batch of {rows} x {length} tokens with {beams} hypotheses a sentence",
        f"lower {config.most_results[0]}, decode.batch_size, or the longest output "
        "(decode.max_length, decode.extra_length)",
    )
    keys = None
    if line_numbers is not None:
        fold_in_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        keys = fold_in_each(jax.random.key(seed), line_numbers)  # [B]

    def compute(params: Params, sentences: tuple) -> Hypotheses:
        source, prefix, keys = sentences
        return generate(
            *(model, params, source, config),
            prefix=prefix,
            keys=keys,
            num_results=num_results,
            max_length=max_length,
        )

    return data_parallel(compute, mesh)(params, (source, prefix, keys))


@compiled
def score(params: Params, batch: Batch, *, mesh: Mesh, model: Model) -> Float[Array, " B"]:
    """Natural-log probability of every target, EOS included; 0 for targets that are all padding."""

    def compute(params: Params, batch: Batch) -> Float[Array, " B"]:
        return target_log_probs(model, params, batch).sum(-1)  # [B, T] -> [B]

    return data_parallel(compute, mesh)(params, batch)


def required_bytes(
    params: Params,
    source: Int[Array, "B S"] | jax.ShapeDtypeStruct,
    *,
    model: Model,
    beams: int,
    max_length: int,
) -> int:
    """A lower bound of the memory of a search."""

    def allocate(params: Params, source: Int[Array, "B S"]) -> tuple[Params, Cache, Array]:
        """The parameters, the complete cache, and the logits of one step."""
        variables = {"params": params}
        memory = model.apply(variables, source, method=model.encode)
        arguments = memory, source, beams, max_length
        cache = model.apply(variables, *arguments, method=model.init_cache)
        return params, cache, jnp.zeros((len(source), beams, model.config.vocab_size))

    return device_memory.tree_bytes(jax.eval_shape(allocate, params, source))


def data_parallel(
    compute: Callable[[Shared, Sentences], Results], mesh: Mesh
) -> Callable[[Shared, Sentences], Results]:
    """Make each device compute its share of the sentences.

    Args:
      compute: `(shared, sentences) -> results`, where `shared` (parameters) is replicated along
        ``data`` and the arrays of `sentences` and of the results have the leading axis B. The
        result for one sentence must not depend on the other sentences.
      mesh: from `sharding.make_mesh`.
    """
    # Left to itself, XLA would run top-k over the logits of all sentences on every device, in every
    # step, and would shard activations the way `fsdp` shards parameters.
    sharded = jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("data")),
        out_specs=PartitionSpec("data"),
        axis_names={"data"},
        check_vma=False,  # loops start with constants, which JAX would consider replicated
    )

    def compute_and_replicate(shared: Shared, sentences: Sentences) -> Results:
        return jax.lax.with_sharding_constraint(sharded(shared, sentences), replicated(mesh))

    return compute_and_replicate
