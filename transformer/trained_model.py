# SPDX-License-Identifier: Apache-2.0
"""Load a trained model, or an ensemble, from workdirs and bundles."""

import dataclasses
import functools
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
from etils import epath
from jax.sharding import Mesh

from transformer import paths, sharding
from transformer.arrays import Params
from transformer.checkpoints import archive, base_model, workdir_files
from transformer.checkpoints.identity import Identity
from transformer.checkpoints.manager import Checkpoints
from transformer.config import Config, TrainingConfig
from transformer.errors import InputError
from transformer.models import ensemble as ensembles
from transformer.models import protocol
from transformer.text.tokenizer import Vocabularies
from transformer.training import adapters


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """Everything that translating needs, on one mesh."""

    config: Config
    params: Params
    vocabularies: Vocabularies
    model: protocol.Model
    mesh: Mesh
    checkpoints: dict[str, list[int]]
    """Steps whose parameters were used (several: their mean), by workdir; bundles have none."""


def load(
    workdir: epath.PathLike,
    config: Config | None = None,
    average: int | None = None,
    around: Literal["last", "best"] = "last",
    ensemble: Sequence[epath.PathLike] = (),
    dtype: Literal["float32", "bfloat16"] | None = None,
    **decode: Any,
) -> TrainedModel:
    """Load what `experiments.train` or `experiments.bundle` wrote.

    The arguments and errors are those of `Translator.from_workdir`.
    """
    workdir = workdir_files.opened(workdir)
    saved = workdir_files.load_inference_config(workdir)
    config = config or saved
    # A checkpoint of an earlier version, and a bundle, do not record their model themselves.
    for path, (old, new) in saved.model.changes(config.model).items():
        raise InputError(
            f"{path} is {new!r}, but {workdir / workdir_files.CONFIG} has {old!r}, with which the "
            "parameters were trained; leave the override out"
        )
    config = config.replace(decode=config.decode.replace(**decode))
    mesh = sharding.make_mesh(config.parallel)
    vocabularies = load_vocabularies(workdir, config)
    others = [workdir_files.opened(other) for other in ensemble]
    members = [config, *(_member_config(one, workdir, config, vocabularies) for one in others)]
    if dtype is not None:
        members = [one.replace(model=one.model.replace(compute_dtype=dtype)) for one in members]

    params, checkpoints = [], {}
    for directory, member in zip([workdir, *others], members, strict=True):
        abstract, to_model = abstract_params(member, mesh), None
        if isinstance(directory, zipfile.Path):
            if average is not None:
                raise InputError(
                    f"--average={average}, but the bundle {directory} has one set of parameters; "
                    "leave --average out"
                )
            params.append(archive.read_params(directory, abstract))
            continue
        adapted = base_model.adapters_identity(directory, member.training)
        identity = Identity.of(member.model, *(side.model for side in vocabularies), adapted)
        if adapted:
            abstract, to_model = _abstract_adapters(directory, member, mesh)
        with Checkpoints(directory, member.training, identity) as saved_states:
            params.append(saved_states.restore_params(abstract, average, around, to_model))
            checkpoints[str(paths.absolute(directory))] = saved_states.restored_steps

    models = [protocol.build(member.model) for member in members]
    model, joined = ensembles.join(models, params) if others else (models[0], params[0])
    return TrainedModel(members[0], joined, vocabularies, model, mesh, checkpoints)


def load_base(workdir: epath.Path, config: Config) -> Params:
    """The parameters of the base model of a workdir with LoRA adapters, on the mesh of `config`."""
    base = workdir / workdir_files.BASE
    config = workdir_files.load_config(base).replace(parallel=config.parallel)
    return load(base, config).params


def adapter_metadata(model: protocol.Model, metadata: Params, config: TrainingConfig) -> Params:
    """Declarations of the LoRA adapters that a config describes; see `adapters.declare`."""
    frozen = None
    if config.freeze:
        frozen = adapters.frozen_mask(model, metadata, config.freeze)
    return adapters.declare(metadata, config.lora_rank, config.lora_targets, frozen)


def _abstract_adapters(
    workdir: epath.Path, config: Config, mesh: Mesh
) -> tuple[Params, Callable[[Params], Params]]:
    """Abstract adapters of a workdir, and the function that merges adapters into their base."""
    model = protocol.build(config.model)
    metadata = adapter_metadata(model, protocol.parameter_metadata(model), config.training)
    abstract = sharding.abstract_params(metadata, mesh, config.parallel)
    params = load_base(workdir, config)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
    scale = config.training.lora_scale
    merge = jax.jit(functools.partial(adapters.merge, scale=scale), out_shardings=shardings)
    return abstract, lambda trained: merge(trained, params)


def abstract_params(config: Config, mesh: Mesh | None = None) -> Params:
    """Shapes, dtypes and shardings of the parameters, on the mesh of `config.parallel`."""
    mesh = mesh or sharding.make_mesh(config.parallel)
    metadata = protocol.parameter_metadata(protocol.build(config.model))
    sharding.require_axes(metadata, config.parallel)
    return sharding.abstract_params(metadata, mesh, config.parallel)


def load_vocabularies(workdir: paths.Readable, config: Config) -> Vocabularies:
    """The vocabularies of a workdir or an opened bundle."""
    source = None
    if config.data.vocabulary == "separate":
        source = workdir / workdir_files.SOURCE_TOKENIZER
    return Vocabularies.load(workdir / workdir_files.TOKENIZER, source)


def _member_config(
    directory: paths.Readable, workdir: paths.Readable, config: Config, vocabularies: Vocabularies
) -> Config:
    """Config of a further member of the ensemble of `workdir`: its model, the others' decoding."""
    member = workdir_files.load_config(directory)
    models = [tokenizer.model for tokenizer in load_vocabularies(directory, member)]
    if models != [tokenizer.model for tokenizer in vocabularies]:
        raise InputError(
            f"{workdir} and {directory} have different vocabularies (tokenizer.model differs), so "
            "they cannot form an ensemble; train both with the same --config.data.tokenizer_model"
        )
    try:
        return config.replace(model=member.model, training=member.training)
    except InputError as error:
        raise InputError(f"{directory}: {error}") from None
