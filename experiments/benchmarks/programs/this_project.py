# SPDX-License-Identifier: Apache-2.0
"""This project, through the code that `train` and `translate` run."""

import collections
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.extend
import numpy as np

from experiments.benchmarks.comparison import config_of
from experiments.benchmarks.worker import STEPS_AHEAD, Program
from experiments.benchmarks.workloads import TOKENIZER, Text, Workload
from experiments.planning import costs
from experiments.planning.chips import CHIPS
from experiments.training import compose
from transformer import compile_cache, sharding
from transformer.arrays import Array
from transformer.batch import Batch
from transformer.decoding import generate
from transformer.kernels import KERNELS
from transformer.nn.attention import attention as formula
from transformer.text.tokenizer import Tokenizer
from transformer.translator import Translator

VERSION = {"version": f"jax {jax.__version__}"}


def training(workload: Workload, overrides: Mapping[str, Any]) -> Program:
    """Training steps on one batch, `STEPS_AHEAD` of them before it waits on an accelerator."""
    experiment = _experiment(workload, overrides)
    batch = experiment.put_batch(Batch(*workload.token_ids()))
    state = experiment.init_state()
    device = jax.local_devices()[0]
    steps = 1 if device.platform == "cpu" else STEPS_AHEAD

    def call() -> None:
        nonlocal state
        for _ in range(steps):
            state, sums = experiment.train_step(state, batch)
        jax.block_until_ready((state, sums))

    call()
    # The step is in the compilation cache now.
    memory = experiment.compile_step(*batch.source.shape).memory_analysis()
    memory = {
        "state_mib": memory.argument_size_in_bytes >> 20,
        "temporaries_mib": memory.temp_size_in_bytes >> 20,
    }
    chips = {chip.name: chip.peak_flops for chip in CHIPS}
    name = next((name for name in chips if name in device.device_kind), None)
    peak = chips[name][experiment.config.model.compute_dtype] / 1e12 if name else None
    about = {"device": device.device_kind, "peak_tflops": peak}
    return Program(call, VERSION | memory | about, steps, _device_peak_bytes)


def translating(
    workload: Workload, path: str, beams: int, together: int, overrides: Mapping[str, Any]
) -> Program:
    """A `Translator` on the lines of a `Text`, from text to text.

    Each translation is one token longer than its source: EOS is not allowed earlier.
    """
    fields = {
        "decode.beams": beams,
        "decode.batch_size": together,
        "decode.extra_length": 1,
        "decode.min_length": workload.source_length + 1,
    }
    experiment = _experiment(workload, fields | dict(overrides))
    folder, text = pathlib.Path(path).parent, Text.load(path)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    translator = Translator(
        experiment.config,
        experiment.init_state().params,
        tokenizer,
        mesh=experiment.mesh,
    )
    lengths = [len(translation.tokens) for translation in translator(text.lines)]
    assert lengths == [len(ids) + 1 for ids in text.line_ids]
    about = VERSION | {"output_tokens": sum(lengths)}
    return Program(lambda: translator(text.lines), about, units=len(text.lines))


def decoding(workload: Workload, beams: int, overrides: Mapping[str, Any]) -> Program:
    """Search of one batch from ids to ids; every translation has the workload's target length."""
    fields = {
        "decode.beams": beams,
        "decode.batch_size": workload.batch_size,
        "decode.min_length": workload.target_length - 1,
        "decode.max_length": workload.target_length,
    }
    experiment = _experiment(workload, fields | dict(overrides))
    source = sharding.put_on_mesh(workload.token_ids()[0], sharding.batch_sharding(experiment.mesh))
    params = jax.jit(experiment.model.cast_params)(experiment.init_state().params)

    def call() -> np.ndarray:
        hypotheses = generate.decode(
            params,
            source,
            None,
            None,
            np.uint32(0),
            mesh=experiment.mesh,
            model=experiment.model,
            config=experiment.config.decode,
            num_results=1,
            max_length=workload.target_length,
        )
        return np.asarray(hypotheses.tokens)[:, 0]

    assert ((call() != 0).sum(-1) == workload.target_length).all()
    return Program(call, VERSION, device_peak_bytes=_device_peak_bytes)


def attention(workload: Workload, kernel: str) -> Program:
    """Forward and backward pass of one attention layer without mask."""
    width = workload.d_model // workload.num_heads
    shape = (workload.batch_size, workload.source_length, workload.num_heads, width)
    operands = [jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 3)]
    compute = KERNELS.get(kernel, formula)

    def total(query: Array, key: Array, value: Array) -> Array:
        return compute(query, key, value, None).sum()

    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    return Program(lambda: jax.block_until_ready(gradients(*operands)), VERSION)


def step_matmuls(workload: Workload, overrides: Mapping[str, Any]) -> Program:
    """The matmuls of a training step and nothing else, one after the other."""
    experiment = _experiment(workload, overrides)
    batch = experiment.abstract_batch(workload.batch_size, workload.source_length)
    traced = jax.make_jaxpr(experiment.train_step)(experiment.abstract_state, batch)
    matmuls = collections.Counter(_dot_generals(traced.jaxpr))
    calls = [repeat(*matmul, times) for matmul, times in matmuls.items()]
    flops = sum(_flops(*matmul) * times for matmul, times in matmuls.items())

    def call() -> None:
        for repeated, left, right in calls:
            jax.block_until_ready(repeated(left, right))

    return Program(call, VERSION | {"flops": flops})


def _dot_generals(jaxpr: Any) -> Iterator[tuple]:
    """Yield shape and dtype of both operands, and dimension numbers, of each matmul."""
    for equation in jaxpr.eqns:
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            times = equation.params["length"] if equation.primitive.name == "scan" else 1
            for _ in range(times):
                yield from _dot_generals(inner)
        if equation.primitive.name == "dot_general":
            left, right = ((one.aval.shape, one.aval.dtype) for one in equation.invars)
            yield left, right, equation.params["dimension_numbers"]


def repeat(left: tuple, right: tuple, dimension_numbers: tuple, times: int) -> tuple:
    """Compile `times` dependent repetitions of a matmul; also return random operands."""

    def loop(left: Array, right: Array) -> Array:
        def body(_: int, left: Array) -> Array:
            result = jax.lax.dot_general(left, right, dimension_numbers)
            # All of the result is computed, although the next matmul needs one number of it.
            corner = jax.lax.optimization_barrier(result).ravel()[0]
            return left.at[(0,) * left.ndim].add((0 * corner).astype(left.dtype))

        return jax.lax.fori_loop(0, times, body, left)

    operands = [
        jax.random.normal(jax.random.key(0), shape, dtype) for shape, dtype in (left, right)
    ]
    return jax.jit(loop), *operands


def _flops(left: tuple, right: tuple, dimension_numbers: tuple) -> int:
    (_, contracting), (_, batch) = dimension_numbers
    output = [size for axis, size in enumerate(right[0]) if axis not in (*contracting, *batch)]
    return 2 * math.prod(left[0]) * math.prod(output)


def _device_peak_bytes() -> int:
    """Peak memory of arrays on an accelerator; JAX keeps no account of it on a CPU."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def _experiment(workload: Workload, overrides: Mapping[str, Any]) -> compose.Experiment:
    compile_cache.enable()
    return costs.experiment_of_shapes(config_of(workload, overrides))
