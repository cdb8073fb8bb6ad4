# SPDX-License-Identifier: Apache-2.0
"""Compose an experiment: model x optimizer x dataset on one device mesh, from a `Config`."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import jax
import numpy as np
import optax
from etils import epath
from jax.sharding import Mesh

from experiments.console.progress import say
from experiments.data.batching import evaluation_batches
from experiments.training import training_data
from experiments.training.training_data import TrainingData
from transformer import device_memory, sharding, trained_model
from transformer.arrays import Array, Key, Params
from transformer.batch import Batch
from transformer.config import Config
from transformer.errors import InputError
from transformer.models import protocol
from transformer.models.protocol import Model
from transformer.text.tokenizer import Tokenizer
from transformer.training import adapters, consistency, optimizers, step
from transformer.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The parts of one experiment, and its jitted training and evaluation steps."""

    config: Config
    model: Model
    optimizer: optax.GradientTransformation
    data: TrainingData
    mesh: Mesh
    param_shardings: Params
    """Shardings of the model's parameters, whether they or adapters are trained."""
    adapter_metadata: Params | None = None
    """With LoRA, the declarations of the adapters."""
    frozen: Params | None = None
    """With ``training.freeze``, True for each parameter that is not trained."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a shared vocabulary; see `Vocabularies.tokenizer`."""
        return self.data.vocabularies and self.data.vocabularies.tokenizer

    @functools.cached_property
    def loss(self) -> step.Loss:
        """The loss of the config, for training and evaluation."""
        return consistency.loss_of(self.config.training)

    @functools.cached_property
    def train_step(self) -> jax.stages.Wrapped:
        """`transformer.training.step.train_step`, jitted: (state, batch) -> (state, sums).

        The memory of the given state is donated to the new one.
        """
        return jax.jit(
            functools.partial(
                step.train_step,
                self.model,
                self.optimizer,
                loss=self.loss,
                to_model=self._to_model,
                micro_batches=self.config.training.micro_batches or 1,
                ema_decay=self.config.training.ema_decay,
            ),
            in_shardings=(self.state_shardings, sharding.batch_sharding(self.mesh)),
            out_shardings=(self.state_shardings, sharding.replicated(self.mesh)),
            donate_argnums=0,
            compiler_options=_compiler_options(self.mesh),
        )

    def _to_model(self, trained: Params, base: Params | None) -> Params:
        """The argument `to_model` of `train_step`: LoRA, freezing, and the all-gather of FSDP."""
        if base is not None:
            trained = adapters.merge(trained, base, self.config.training.lora_scale)
        elif self.frozen is not None:
            trained = adapters.stop_gradients(trained, frozen=self.frozen)
        return self._all_gather(trained)

    def _all_gather(self, params: Params, _: None = None) -> Params:
        metadata, dtype = protocol.parameter_metadata(self.model), self.config.model.compute_dtype
        return sharding.all_gather(params, metadata, self.param_shardings, dtype)

    @functools.cached_property
    def eval_step(self) -> jax.stages.Wrapped:
        """`transformer.training.step.eval_step`, jitted: (params, batch) -> sums."""
        return jax.jit(
            functools.partial(
                step.eval_step, self.model, loss=self.loss, to_model=self._all_gather
            ),
            in_shardings=(self.param_shardings, sharding.batch_sharding(self.mesh)),
            out_shardings=sharding.replicated(self.mesh),
        )

    def init_state(self, params: Params | None = None) -> TrainState:
        """The state before the first step, on the mesh; with `params` if they are given."""
        key = jax.random.key(self.config.training.seed)
        return jax.jit(self._init, out_shardings=self.state_shardings)(key, params)

    def model_params(self, state: TrainState) -> Params:
        """The parameters of the model to validate and to decode with, adapters merged."""
        return state.weights if state.base is None else self._merge(state.weights, state.base)

    @functools.cached_property
    def _merge(self) -> jax.stages.Wrapped:
        merge = functools.partial(adapters.merge, scale=self.config.training.lora_scale)
        return jax.jit(merge, out_shardings=self.param_shardings)

    @property
    def abstract_params(self) -> Params:
        """Shapes of the model's parameters, whether they or adapters are trained."""
        shapes = self._state_shapes
        return shapes.params if shapes.base is None else shapes.base

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the training state, without arrays."""
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
            *(self._state_shapes, self.state_shardings),
        )

    @property
    def num_parameters(self) -> int:
        """The number of the model's parameters, whether they or adapters are trained."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_params))

    @property
    def num_trained(self) -> int:
        """The number of parameters that are trained: all, those not frozen, or the adapters."""
        params = self._state_shapes.params
        frozen = self.frozen or jax.tree.map(lambda _: False, params)
        sizes = jax.tree.map(lambda leaf, fixed: 0 if fixed else leaf.size, params, frozen)
        return sum(jax.tree.leaves(sizes))

    @functools.cached_property
    def state_shardings(self) -> TrainState:
        """The sharding of every array of the training state."""
        if self.adapter_metadata is None:
            return sharding.state_shardings(self._state_shapes, self.param_shardings)
        shardings = sharding.param_shardings(self.adapter_metadata, self.mesh, self.config.parallel)
        trained = sharding.state_shardings(self._state_shapes.replace(base=None), shardings)
        return trained.replace(base=self.param_shardings)

    def put_batch(self, batch: Batch) -> Batch:
        """Put a training batch, or the local rows of it, on the mesh."""
        num_rows = self.data.train.rows(batch.source.shape[1])
        return sharding.put_batch(batch, sharding.batch_sharding(self.mesh), num_rows)

    def validation_batches(self) -> Iterator[Batch]:
        """The complete validation split, not on the mesh yet."""
        multiple, pad_id = self.mesh.shape["data"], self.config.model.special_ids.pad
        corpus = self.data.validation_corpus
        return evaluation_batches(corpus, self.config.data, multiple, pad_id)

    def abstract_batch(self, rows: int, length: int) -> Batch:
        """Shape and sharding of a training batch `[rows, length]`, without arrays."""
        where = sharding.batch_sharding(self.mesh)
        ids = jax.ShapeDtypeStruct((rows, length), np.int32, sharding=where)
        return Batch(ids, ids, ids, ids) if self.config.data.packing else Batch(ids, ids)

    def compile_step(self, rows: int, length: int) -> jax.stages.Compiled:
        """Compile the training step for batches `[rows, length]`; nothing is allocated or run."""
        return self.lower_step(rows, length).compile()

    def lower_step(self, rows: int, length: int) -> jax.stages.Lowered:
        """Trace and lower the training step for batches `[rows, length]`."""
        return self.train_step.lower(self.abstract_state, self.abstract_batch(rows, length))

    def lower_eval_step(self, rows: int, length: int) -> jax.stages.Lowered:
        """Trace and lower the evaluation step for batches `[rows, length]`."""
        ids, state = self.abstract_batch(rows, length).source, self.abstract_state
        params = state.weights if state.base is None else state.base
        return self.eval_step.lower(params, Batch(ids, ids))

    @functools.cached_property
    def _state_shapes(self) -> TrainState:
        return jax.eval_shape(self._init, jax.random.key(0))

    def _init(self, key: Key[Array, ""], params: Params | None = None) -> TrainState:
        config = self.config
        averages_itself = config.optimizer.name == "schedule_free"
        return TrainState.create(
            self.model,
            self.optimizer,
            key,
            with_average=averages_itself or config.training.ema_decay is not None,
            params=params,
            adapter_metadata=self.adapter_metadata,
        )


def _compiler_options(mesh: Mesh) -> dict[str, bool] | None:
    """XLA's options for a training step on the mesh.

    On a GPU the vendor's library computes all matmuls. With Triton kernels for those that XLA finds
    faster one by one, the whole step is slower and takes longer to compile
    (docs/speed.md, "Half of the GPU's peak for the big model").
    """
    on_gpu = mesh.devices.flat[0].platform == "gpu"
    return {"xla_gpu_enable_triton_gemm": False} if on_gpu else None


def build(
    config: Config, workdir: epath.Path | None = None, data: TrainingData | None = None
) -> Experiment:
    """Compose the experiment that `config` describes.

    Args:
      config: validated.
      workdir: its vocabularies and tokenized corpora are used where they exist.
      data: read already; loaded as `config.data` says unless given.

    Raises:
      InputError: for data, vocabularies, devices or memory that do not fit the config.
    """
    must = "None; experiments.data.recipes completes such a config, and --config does so itself"
    config.training.require(config.training.recipe is None, "recipe", must)
    mesh, model = sharding.make_mesh(config.parallel), protocol.build(config.model)
    # Before the data: devices that do not fit the model are reported at once.
    metadata = protocol.parameter_metadata(model)
    sharding.require_axes(metadata, config.parallel)
    param_shardings = sharding.param_shardings(metadata, mesh, config.parallel)
    frozen, declared, training = None, None, config.training
    if training.lora_rank:
        declared = trained_model.adapter_metadata(model, metadata, training)
    optimizer = optimizers.optimizer(model, config.optimizer, training.steps, trained=declared)
    if training.freeze and not training.lora_rank:
        frozen = adapters.frozen_mask(model, metadata, training.freeze)
        optimizer = adapters.freeze(optimizer, frozen)
    if data is None:
        data = training_data.load(config, workdir, sharding.batch_sharding(mesh))
    experiment = Experiment(config, model, optimizer, data, mesh, param_shardings, declared, frozen)
    _require_divisible_batches(experiment)
    if config.training.batch_fitting == "auto" and config.training.micro_batches is None:
        return fit_micro_batches(experiment)
    return experiment


def require_memory(experiment: Experiment) -> None:
    """Check, before anything is compiled or allocated, that the training can fit the memory.

    Raises:
      InputError: with the bytes needed and available.
    """
    state = experiment.abstract_state
    rows, length = max(experiment.data.train.shapes(), key=math.prod)
    logits = 4 * rows * length * experiment.config.model.vocab_size
    needed = device_memory.tree_bytes((state, state.params)) + logits // experiment.mesh.size
    if needed < device_memory.available_bytes() / 20:
        return  # without the seconds that tracing the model takes
    device_memory.require(
        least_memory(experiment, rows, length),
        "the training step",
        "use a smaller model or batch (model.*, data.tokens_per_batch), or more devices "
        "(parallel.*)",
    )


def least_memory(experiment: Experiment, rows: int, length: int) -> int:
    """A lower bound of the bytes on each device of a training step for batches `[rows, length]`.

    Counts the state, the gradients, and half of `saved_bytes`, because XLA computes some of them
    again.
    """
    state = experiment.abstract_state
    held = device_memory.tree_bytes((state, state.params))
    return held + saved_bytes(experiment, rows, length) // 2


def saved_bytes(experiment: Experiment, rows: int, length: int) -> int:
    """Bytes on each device that the forward pass leaves to the backward pass, as JAX traces them.

    `model.remat` leaves fewer. XLA fuses and recomputes, so that the step needs less.
    """
    training, params = experiment.config.training, experiment.abstract_params
    batch = experiment.abstract_batch(rows // (training.micro_batches or 1), length)

    def backward(params: Params, batch: Batch, key: Key[Array, ""]) -> Callable:
        def loss(params: Params) -> Array:
            return experiment.loss(experiment.model, params, batch, key).loss

        return jax.vjp(loss, params)[1]  # a pytree, whose leaves are those values

    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)
    saved = jax.eval_shape(backward, params, batch, experiment._state_shapes.rng)
    activations = device_memory.tree_bytes(saved) - device_memory.tree_bytes(params)
    return max(activations, 0) // experiment.mesh.size


def _require_divisible_batches(experiment: Experiment) -> None:
    """Raise an InputError unless the micro-batches and the devices divide every batch."""
    micro_batches, shapes = experiment.config.training.micro_batches, experiment.data.train.shapes()
    if micro_batches is not None and any(rows % micro_batches for rows, _ in shapes):
        raise InputError(
            f"training.micro_batches is {micro_batches}, which does not divide "
            f"batches of {', '.join(str(rows) for rows, _ in shapes)} rows; choose one of "
            f"{', '.join(map(str, _divisors(shapes)))}, or raise data.row_multiple"
        )
    sharding.require_divisible_rows(shapes, experiment.mesh, micro_batches or 1)


def fit_micro_batches(experiment: Experiment) -> Experiment:
    """The experiment with the fewest micro-batches whose training step fits the memory.

    The step is compiled for every batch shape, with more micro-batches until XLA's account of its
    memory is within ``training.memory_limit_gib``, or the memory of the device.

    Raises:
      InputError: when no number of micro-batches is enough.
    """
    config, shapes = experiment.config, experiment.data.train.shapes()
    limit = device_memory.available_bytes()
    if config.training.memory_limit_gib is not None:
        limit = config.training.memory_limit_gib * 2**30
    for micro_batches in _divisors(shapes, multiple_of=config.parallel.data):
        training = config.training.replace(micro_batches=micro_batches)
        fitted = dataclasses.replace(experiment, config=config.replace(training=training))
        needed = max(device_memory.peak_bytes(fitted.compile_step(*shape)) for shape in shapes)
        say(
            f"batch fitting: with micro_batches={micro_batches} the step needs "
            f"{needed / 2**30:.3g} GiB of {limit / 2**30:.3g}"
        )
        if needed <= limit:
            return fitted
    raise InputError(
        f"the step needs {needed / 2**30:.2f} GiB even in {micro_batches} micro-batches, but there "
        f"are {limit / 2**30:.2f} GiB; lower data.tokens_per_batch or data.max_length, raise "
        "data.row_multiple so that more micro-batches are possible, or use a smaller model"
    )


def _divisors(shapes: list[tuple[int, int]], multiple_of: int = 1) -> list[int]:
    """Ascending n such that n x `multiple_of` divides the rows of every batch."""
    rows = math.gcd(*(rows for rows, _ in shapes))
    return [n for n in range(1, rows + 1) if rows % (n * multiple_of) == 0]
