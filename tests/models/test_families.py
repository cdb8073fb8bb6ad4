# SPDX-License-Identifier: Apache-2.0
"""Every model family, with all its options, implements the protocol of `models.protocol.Model`."""

import dataclasses
import functools
import inspect
from typing import Literal

import families
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from families import BAG, CLOSE, LENGTH, OTHERS, REPRESENTATIVE, SOURCE, TARGET_IN, TINY

from transformer.batch import Batch, target_log_probs
from transformer.checkpoints import workdir_files
from transformer.checkpoints.identity import Identity
from transformer.config import (
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    OptimizerConfig,
    TransformerConfig,
)
from transformer.decoding.generate import generate
from transformer.errors import InputError
from transformer.inspection.activations import trace_of
from transformer.inspection.head_circuits import qk_circuits
from transformer.inspection.live import live_limits
from transformer.interop import ctranslate2_export, huggingface_export
from transformer.models import limits, protocol
from transformer.models.protocol import KINDS
from transformer.models.transformer import Transformer
from transformer.nn.parameters import is_parameter
from transformer.training.optimizers import optimizer
from transformer.training.step import TrainState, train_step

MODELS = {name: (config,) for name, config in (REPRESENTATIVE | OTHERS).items()}
MODELS |= families.ENSEMBLES


def some(names, quick):
    """These models, of which the default suite has the quick ones."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(params=REPRESENTATIVE)
def calls(request):
    """The representative families in turn."""
    return families.built(*MODELS[request.param])


# Registration and construction.


def test_every_config_builds_the_model_of_its_family_and_json_keeps_it():
    shipped = {each for each in protocol.FAMILIES if each.__module__.startswith("transformer.")}
    assert shipped <= {*ModelConfig.families.values()}
    models = [each for each in (REPRESENTATIVE | OTHERS).values() if type(each) in shipped]
    assert shipped == {type(model) for model in models}
    for model in models:
        built = protocol.build(model)
        assert type(built) is protocol.FAMILIES[type(model)]
        assert built.config is model
        vocabulary = "separate" if model.source_vocab_size else "shared"
        config = Config(model=model, data=DataConfig(vocabulary=vocabulary))
        assert Config.from_json(config.to_json()) == config
    assert isinstance(protocol.build(TransformerConfig()), Transformer)


def test_equal_configs_build_equal_models_so_that_compiled_functions_are_shared():
    models = [protocol.build(TransformerConfig(d_model=d)) for d in (64, 64, 128)]
    assert models[0] == models[1] != models[2]
    assert hash(models[0]) == hash(models[1])


def test_what_is_no_config_of_a_model_is_refused_with_the_remedy(monkeypatch):
    text = Config().to_json().replace('"transformer"', '"bag_of_wrods"')
    with pytest.raises(InputError, match=r"model.family is 'bag_of_wrods', but must be one of"):
        Config.from_json(text)
    with pytest.raises(InputError, match=r"a Config, but it must be that of the model: config.mo"):
        inspect.unwrap(protocol.build)(Config())
    monkeypatch.setattr(ModelConfig, "families", dict(ModelConfig.families))

    @dataclasses.dataclass(frozen=True)
    class Unregistered(ModelConfig):
        family: str = "unregistered"

    with pytest.raises(InputError, match=r"for Unregistered.*models.protocol.register"):
        protocol.build(Unregistered())


@dataclasses.dataclass(frozen=True)
class QkNormConfig(TransformerConfig):
    """A config of a notebook, without a name for its family."""

    qk_norm: bool = True


def test_a_subclass_without_a_family_has_the_model_of_its_parent_and_cannot_be_saved():
    assert ModelConfig.families["transformer"] is TransformerConfig
    assert type(Config.from_json(Config().to_json()).model) is TransformerConfig
    assert type(protocol.build(QkNormConfig())) is Transformer
    config = Config(model=QkNormConfig())
    identity = Identity.of(config.model, b"", b"")
    saves = (config.to_json, identity.to_json, lambda: workdir_files.config_text(config, []))
    for save in saves:
        with pytest.raises(InputError, match=r"QkNormConfig cannot be saved.*give its field `fam"):
            save()


def test_a_subclass_with_a_family_is_saved_and_loaded(monkeypatch):
    monkeypatch.setattr(ModelConfig, "families", dict(ModelConfig.families))

    @dataclasses.dataclass(frozen=True)
    class Named(QkNormConfig):
        family: Literal["named"] = "named"

    config = Config(model=Named(qk_norm=False))
    assert Config.from_json(config.to_json()) == config
    assert type(protocol.build(config.model)) is Transformer


# Fields that a format or a method does not know.


LIMITS = {
    "huggingface": lambda model: huggingface_export.require_supported(Config(model=model)),
    "ctranslate2": lambda model: ctranslate2_export.require_supported(Config(model=model)),
    "live page": lambda model: live_limits.require_model(Config(model=model)),
    "qk_circuits": lambda config: qk_circuits(
        protocol.build(config), oracle.random_params(protocol.build(config), seed=0), "encoder"
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_every_field_of_the_transformer_is_classified(name, monkeypatch):
    """`require_fields` refuses an unclassified field of every model, also with its default."""
    calls, require_fields = [], limits.require_fields

    def recorded(*args):
        calls.append(args)
        require_fields(*args)

    monkeypatch.setattr(limits, "require_fields", recorded)
    LIMITS[name](TINY.replace(source_vocab_size=None))
    [(model, rules, supported, _)] = calls
    limited = {field for field, *_ in rules}
    names = {field.name for field in dataclasses.fields(model)}
    assert {*supported, *limited} - {"pooling"} == names
    assert not ({*supported} - {*model.free_after_training}) & limited


@pytest.mark.parametrize("name", LIMITS)
def test_an_unknown_field_is_refused_by_name(name):
    fields = {field.name: getattr(TINY, field.name) for field in dataclasses.fields(TINY)}
    with pytest.raises(InputError, match=r"model.qk_norm is True, but this field is unknown there"):
        LIMITS[name](QkNormConfig(**fields))


@pytest.mark.parametrize("name", ["huggingface", "ctranslate2", "live page"])
def test_a_subclass_of_the_transformer_is_refused(name, monkeypatch):
    class Normalized(Transformer):
        """A model with other layers."""

    monkeypatch.setitem(protocol.FAMILIES, TransformerConfig, Normalized)
    with pytest.raises(InputError, match="model.family is 'transformer', whose model Normalized "):
        LIMITS[name](TINY)


def test_every_field_of_a_search_is_classified_by_the_live_page():
    @dataclasses.dataclass(frozen=True)
    class Further(DecodeConfig):
        penalty: float = 0.0

    live_limits.require_search(DecodeConfig())
    with pytest.raises(InputError, match=r"decode.penalty is 0.0, but this field is unknown"):
        live_limits.require_search(Further())


def test_packed_rows_are_refused_for_a_family_that_cannot_keep_their_sentences_apart():
    packed = DataConfig(packing=True)
    Config(model=TINY, data=packed)
    with pytest.raises(
        InputError, match="data.packing is True, but must be False: the family 'bag_of_wo"
    ):
        Config(model=BAG, data=packed)


# The calls.


def test_logits_are_of_every_position_and_token_and_columns_of_padding_change_none(calls):
    assert isinstance(calls.model, protocol.Model)
    logits = calls.forward(SOURCE, TARGET_IN)
    assert logits.shape == (*TARGET_IN.shape, 11)
    assert logits.dtype == jnp.float32
    assert jnp.isfinite(logits).all()
    wider = calls.forward(*(jnp.pad(each, ((0, 0), (0, 2))) for each in (SOURCE, TARGET_IN)))
    np.testing.assert_allclose(wider[:, :LENGTH], logits, **CLOSE)


def test_cached_steps_in_a_cache_that_grows_and_shrinks_give_the_logits_of_teacher_forcing(calls):
    calls.check_steps(groups=2, grow=True)


@pytest.mark.parametrize("name", some(REPRESENTATIVE, ["Transformer"]))
def test_cached_steps_of_one_group_of_beams_do_so_too(name):
    families.built(*MODELS[name]).check_steps(groups=1)


FURTHER = [name for name in MODELS if name not in REPRESENTATIVE]


@pytest.mark.parametrize("name", some(FURTHER, ["relative positions", "bag of words"]))
def test_cached_steps_of_further_variants_do_so_too(name):
    """A search with Shaw's positions and a window is compared in `test_equivalence`."""
    families.built(*MODELS[name]).check_steps(groups=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REPRESENTATIVE, *OTHERS])
def test_every_family_is_trained_and_the_log_probabilities_of_its_search_are_its_scores(name):
    """The targets of a classifier are a label and EOS."""
    calls, config = families.built(*MODELS[name]), OptimizerConfig(schedule="constant")
    target = TARGET_IN[:, 1:3].at[:, 1].set(2) if name.startswith("class") else TARGET_IN[:, 1:]
    updates = optimizer(calls.model, config, 10)
    state = TrainState.create(calls.model, updates, jax.random.key(0), params=calls.params)
    step = jax.jit(functools.partial(train_step, calls.model, updates))
    state, sums = step(state, Batch(SOURCE, target))
    assert jnp.isfinite(sums.loss) and sums.tokens > 0
    assert any(
        jax.tree.leaves(jax.tree.map(lambda a, b: (a != b).any(), state.params, calls.params))
    )
    search = functools.partial(generate, calls.model, config=DecodeConfig(beams=2, max_length=4))
    found = jax.jit(functools.partial(search, num_results=2))(state.params, SOURCE)
    log_probs = target_log_probs(calls.model, state.params, Batch(SOURCE, found.tokens[:, 0]))
    np.testing.assert_allclose(found.log_probs[:, 0], log_probs.sum(-1), rtol=1e-4)


# What a family declares.


@pytest.mark.parametrize("name", some(MODELS, REPRESENTATIVE))
def test_a_family_declares_its_parameters_what_a_trace_captures_and_its_flops(name):
    """The axes of a table that both sides share are the target's."""
    calls = families.built(*MODELS[name])
    metadata = protocol.parameter_metadata(calls.model)
    shapes = jax.tree.map(lambda one: one.value.shape, metadata, is_leaf=is_parameter)
    assert shapes == jax.tree.map(jnp.shape, calls.params)
    for parameter in jax.tree.leaves(metadata, is_leaf=is_parameter):
        assert is_parameter(parameter)
        assert (parameter.num_input_axes > 0) == (parameter.kind == "kernel")
        for name, size in zip(parameter.names, parameter.value.shape, strict=True):
            assert (name == "vocab") == (size == 11)
            assert (name == "source_vocab") == (size == 13)

    def traced():
        variables = {"params": calls.params}
        _, tapped = calls.model.apply(variables, SOURCE, TARGET_IN, mutable=["trace"])
        return trace_of(calls.params, tapped.get("trace", {}))

    described, trace = calls.model.describe(), jax.eval_shape(traced)
    for kind in KINDS:
        attention, size = trace.attention(kind), described.attention.get(kind)
        assert (attention is None) == (size is None)
        if size is not None:
            assert attention.weights.shape[:3] == (size.layers, 3, size.heads)
    for side in ("encoder", "decoder"):
        residual = getattr(getattr(trace, side), "residual", None)
        assert (residual is None) == (side not in described.residual_layers)
        if residual is not None:
            assert residual.shape[0] == described.residual_layers[side] + 1
    flops = described.forward_flops
    assert flops(2, 5, 7) == 2 * flops(1, 5, 7) > 0
    assert flops(1, 6, 8) > flops(1, 5, 7)
    assert flops(1, 5, 8) >= flops(1, 5, 7) <= flops(1, 6, 7)


def test_the_flops_of_an_ensemble_are_those_of_its_members():
    members = [protocol.build(config).describe() for config in MODELS["ensemble"]]
    total = families.built(*MODELS["ensemble"]).model.describe().forward_flops(1, 5, 7)
    assert total == sum(member.forward_flops(1, 5, 7) for member in members)


@pytest.mark.parametrize("name", some([*REPRESENTATIVE, *OTHERS], ["Transformer", "bag of words"]))
def test_parameters_cast_once_give_the_same_bfloat16_logits(name):
    calls, [config] = families.built(*MODELS[name]), MODELS[name]
    model = protocol.build(config.replace(compute_dtype="bfloat16"))
    logits, cast = (
        families.Calls(model, params).forward(SOURCE, TARGET_IN)
        for params in (calls.params, model.cast_params(calls.params))
    )
    np.testing.assert_array_equal(cast, logits)
    assert logits.dtype == jnp.float32
    assert not np.array_equal(logits, calls.forward(SOURCE, TARGET_IN))
