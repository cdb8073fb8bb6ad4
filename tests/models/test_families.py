# SPDX-License-Identifier: Apache-2.0
"""Every model family, with all its options, implements the protocol of `models.protocol.Model`."""

import dataclasses
import functools
import inspect
from typing import Literal

import bag_of_words
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.checkpoints import workdir_files
from transformer.checkpoints.identity import Identity
from transformer.config import (
    ClassifierConfig,
    Config,
    ConvolutionalConfig,
    DataConfig,
    DecodeConfig,
    LanguageModelConfig,
    ModelConfig,
    RecurrentConfig,
    TransformerConfig,
)
from transformer.errors import InputError
from transformer.inspection.activations import trace_of
from transformer.inspection.head_circuits import qk_circuits
from transformer.inspection.live import live_limits
from transformer.interop import ctranslate2_export, huggingface_export
from transformer.models import ensemble, limits, protocol
from transformer.models.protocol import KINDS
from transformer.models.transformer import Transformer
from transformer.nn.parameters import is_parameter

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
TINY = TransformerConfig(
    vocab_size=11,
    encoder_layers=1,
    decoder_layers=2,
    d_model=6,
    num_heads=2,
    d_ff=8,
    max_positions=9,
)
PRE_NORM = TINY.replace(norm="pre", positions="learned", attention_bias=True, output_bias=True)
RELATIVE = TINY.replace(positions="t5", position_buckets=4, position_max_distance=5)
SEPARATE = TINY.replace(source_vocab_size=13, decoder_heads=3)
CONVOLUTIONAL = ConvolutionalConfig(
    vocab_size=11, encoder_layers=1, decoder_layers=2, d_model=6, max_positions=150
)
CONVOLUTIONAL_SEPARATE = CONVOLUTIONAL.replace(source_vocab_size=13, kernel_width=5)
SHAW = TINY.replace(
    positions="shaw",
    max_relative_position=2,
    num_heads=4,
    d_k=3,
    d_v=3,
    num_kv_heads=2,
    attention_window=5,
    activation="swiglu",
    tied_embeddings="none",
)
UNIVERSAL = TINY.replace(
    positions="rotary",
    d_k=4,
    shared_layers=True,
    timestep_encoding=True,
    norm="pre",
    norm_kind="rms_norm",
    num_kv_heads=1,
    tied_embeddings="target_output",
    embedding_scale="positions",
)
ADDITIVE = TINY.replace(
    attention_score="additive",
    positions="alibi",
    attention_window=3,
    activation="geglu",
    tied_embeddings="source_target",
)
BAG = bag_of_words.BagOfWordsConfig(vocab_size=11)
LANGUAGE_MODEL = LanguageModelConfig(
    vocab_size=11, num_layers=2, d_model=6, num_heads=2, d_ff=8, max_positions=9
)
CLASSIFIER = ClassifierConfig(
    vocab_size=11, source_vocab_size=13, num_layers=2, d_model=6, num_heads=2, d_ff=8
)
BAHDANAU = RecurrentConfig(vocab_size=11, d_model=6, output_bias=True)
SUTSKEVER = BAHDANAU.replace(
    attention="none", cell="lstm", num_layers=2, encoder_direction="backward", source_vocab_size=13
)
LUONG = SUTSKEVER.replace(attention="dot", encoder_direction="forward", source_vocab_size=None)
FEEDING = LUONG.replace(
    attention="general", input_feeding=True, encoder_direction="both", tied_embeddings="none"
)
LOCAL = BAHDANAU.replace(attention="concat", local_window=2, cell="gru_reset_before")
MODELS = {
    "transformer": (TINY,),
    "pre-norm, learned positions, biases": (PRE_NORM,),
    "relative positions": (RELATIVE,),
    "a vocabulary for each side": (SEPARATE,),
    "language model": (LANGUAGE_MODEL,),
    "language model, rotary positions, multi-query, window, shared layers": (
        LANGUAGE_MODEL.replace(
            norm="pre",
            positions="rotary",
            d_k=4,
            num_kv_heads=1,
            attention_window=3,
            shared_layers=True,
            tied_embeddings="source_target",
        ),
    ),
    "classifier": (CLASSIFIER,),
    "classifier, first token, Shaw's positions": (
        CLASSIFIER.replace(
            source_vocab_size=None,
            pooling="first",
            positions="shaw",
            max_relative_position=2,
            norm_kind="rms_norm",
            tied_embeddings="target_output",
        ),
    ),
    "Shaw's positions, grouped-query, window, SwiGLU, untied": (SHAW,),
    "rotary positions, shared layers, RMSNorm, multi-query": (UNIVERSAL,),
    "additive score, ALiBi, window, GEGLU": (ADDITIVE,),
    "bag of words": (BAG,),
    "convolutional": (CONVOLUTIONAL,),
    "convolutional, a vocabulary for each side": (CONVOLUTIONAL_SEPARATE,),
    "recurrent, additive attention": (BAHDANAU,),
    "recurrent, no attention": (SUTSKEVER,),
    "recurrent, multiplicative attention": (LUONG,),
    "recurrent, input feeding": (FEEDING,),
    "recurrent, local attention": (LOCAL,),
    "ensemble": (TINY, RELATIVE),
    "ensemble of two families": (PRE_NORM, BAG),
}
SLOW = {
    "a vocabulary for each side",
    "pre-norm, learned positions, biases",
    "recurrent, no attention",
    "convolutional, a vocabulary for each side",
    "recurrent, multiplicative attention",
    "recurrent, local attention",
    "recurrent, input feeding",
    "ensemble of two families",
    "additive score, ALiBi, window, GEGLU",
    "language model, rotary positions, multi-query, window, shared layers",
    "classifier, first token, Shaw's positions",
}
"""Further variants of a family that the default suite runs already."""
SOURCE = jnp.array([[4, 7, 5, 10, 2], [6, 9, 2, 0, 0], [8, 5, 4, 2, 0]])
TARGET_IN = jnp.array([[1, 5, 9, 4, 8], [1, 10, 7, 2, 0], [1, 6, 2, 0, 0]])
LENGTH = TARGET_IN.shape[1]


@dataclasses.dataclass(frozen=True)
class Calls:
    """A model with random parameters, its calls compiled."""

    model: protocol.Model
    params: dict

    @functools.cached_property
    def forward(self):
        """(source, target_in) -> logits."""
        return jax.jit(lambda *tokens: self.model.apply({"params": self.params}, *tokens))

    def apply(self, method, *arguments):
        """A call of the protocol that needs parameters."""
        return self.model.apply({"params": self.params}, *arguments, method=method)

    @functools.cached_property
    def step(self):
        """(tokens, cache) -> logits, cache."""
        return jax.jit(functools.partial(self.apply, "step"))

    @functools.cached_property
    def _fresh_cache(self):
        def fresh(source, *sizes):
            memory = self.apply("encode", source)
            return self.apply("init_cache", memory, source, *sizes)

        return jax.jit(fresh, static_argnums=(1, 2, 3))

    def cache(self, length=LENGTH, groups=2):
        """A cache of four beams at position 0."""
        return self._fresh_cache(SOURCE, 4, length, groups)


@functools.cache
def built(name):
    models = [protocol.build(config) for config in MODELS[name]]
    params = [oracle.random_params(model, seed) for seed, model in enumerate(models)]
    if len(models) == 1:
        return Calls(models[0], params[0])
    return Calls(*ensemble.join(models, params))


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MODELS]
)
def calls(request):
    """Every family in turn."""
    return built(request.param)


# Registration and construction.


@pytest.mark.parametrize("config", [TINY, BAHDANAU, CONVOLUTIONAL, LANGUAGE_MODEL, CLASSIFIER, BAG])
def test_a_config_builds_the_model_of_its_family(config):
    model = protocol.build(config)
    assert type(model) is protocol.FAMILIES[type(config)]
    assert model.config is config


def test_the_transformer_config_builds_the_transformer():
    assert isinstance(protocol.build(TransformerConfig()), Transformer)


def test_equal_configs_build_equal_models_so_that_compiled_functions_are_shared():
    models = [protocol.build(TransformerConfig(d_model=d)) for d in (64, 64, 128)]
    assert models[0] == models[1] != models[2]
    assert hash(models[0]) == hash(models[1])


def test_every_registered_config_has_a_model():
    assert set(ModelConfig.families.values()) == set(protocol.FAMILIES)


@pytest.mark.parametrize(
    "model",
    [
        *(TINY, RELATIVE, SEPARATE, SHAW, UNIVERSAL, ADDITIVE),
        *(LOCAL, CONVOLUTIONAL_SEPARATE, LANGUAGE_MODEL, CLASSIFIER, BAG),
    ],
)
def test_json_keeps_the_family_of_a_config(model):
    vocabulary = "separate" if model.source_vocab_size else "shared"
    config = Config(model=model, data=DataConfig(vocabulary=vocabulary))
    assert Config.from_json(config.to_json()) == config


def test_an_unknown_family_is_refused_with_the_known_ones():
    text = Config().to_json().replace('"transformer"', '"bag_of_wrods"')
    with pytest.raises(InputError, match=r"model.family is 'bag_of_wrods', but must be one of"):
        Config.from_json(text)


def test_a_config_without_a_model_is_refused_with_the_remedy():
    @dataclasses.dataclass(frozen=True)
    class Unregistered(ModelConfig):
        family: str = "unregistered"

    try:
        with pytest.raises(InputError, match=r"for Unregistered.*models.protocol.register"):
            protocol.build(Unregistered())
    finally:
        del ModelConfig.families["unregistered"]


def test_the_config_of_an_experiment_is_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"a Config, but it must be that of the model: config.mo"):
        inspect.unwrap(protocol.build)(Config())


@dataclasses.dataclass(frozen=True)
class QkNormConfig(TransformerConfig):
    """A config of a notebook, without a name for its family."""

    qk_norm: bool = True


def test_a_subclass_of_a_config_does_not_take_its_name_and_has_its_model():
    assert ModelConfig.families["transformer"] is TransformerConfig
    assert type(Config.from_json(Config().to_json()).model) is TransformerConfig
    assert type(protocol.build(QkNormConfig())) is Transformer


def test_a_subclass_without_a_family_cannot_be_saved():
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


def test_every_call_of_the_protocol_is_there(calls):
    assert isinstance(calls.model, protocol.Model)


def test_logits_have_a_row_for_each_position_and_a_column_for_each_token(calls):
    logits = calls.forward(SOURCE, TARGET_IN)
    assert logits.shape == (*TARGET_IN.shape, 11)
    assert logits.dtype == jnp.float32
    assert jnp.isfinite(logits).all()


def test_padding_of_the_source_changes_nothing(calls):
    wider = calls.forward(jnp.pad(SOURCE, ((0, 0), (0, 2))), TARGET_IN)
    np.testing.assert_allclose(wider, calls.forward(SOURCE, TARGET_IN), **CLOSE)


def test_cached_steps_give_the_logits_of_teacher_forcing(calls):
    """Every beam reads the targets in another order."""
    targets = [jnp.roll(TARGET_IN, beam, axis=0) for beam in range(4)]
    expected = [calls.forward(SOURCE, target) for target in targets]
    cache = calls.cache()
    for t in range(LENGTH):
        logits, cache = calls.step(jnp.stack([target[:, t] for target in targets], axis=1), cache)
        for beam in range(4):
            np.testing.assert_allclose(logits[:, beam], expected[beam][:, t], **CLOSE)


@pytest.mark.parametrize("groups", [1, 2])
def test_reordered_beams_continue_their_parents(calls, groups):
    """Four beams, in one group or two, survive and multiply at random within their group."""
    rng, size = np.random.default_rng(groups), 4 // groups
    histories = np.zeros((3, 4, 0), np.int32)
    cache = calls.cache(groups=groups)
    for t in range(LENGTH):
        tokens = rng.integers(3, 11, (3, 4))
        histories = np.concatenate([histories, tokens[..., None]], axis=-1)  # [B, K, t + 1]
        logits, cache = calls.step(jnp.asarray(tokens), cache)
        padded = np.pad(histories, ((0, 0), (0, 0), (0, LENGTH - 1 - t)))
        for beam in range(4):
            expected = calls.forward(SOURCE, jnp.asarray(padded[:, beam]))[:, t]
            np.testing.assert_allclose(logits[:, beam], expected, **CLOSE)
        parents = rng.integers(0, size, (3, 4)) + np.arange(4) // size * size
        histories = np.take_along_axis(histories, parents[..., None], axis=1)
        cache = calls.model.reorder(cache, jnp.asarray(parents, jnp.int32))


def test_a_cache_that_grows_gives_the_same_logits(calls):
    complete, growing = calls.cache(), calls.cache(length=2)
    for t in range(LENGTH):
        if t == 2:
            growing = calls.model.grow(growing, LENGTH)
        tokens = jnp.stack([TARGET_IN[:, t]] * 4, axis=1)
        expected, complete = calls.step(tokens, complete)
        logits, growing = calls.step(tokens, growing)
        np.testing.assert_allclose(logits, expected, **CLOSE)
    assert jax.tree.map(jnp.shape, growing) == jax.tree.map(jnp.shape, complete)


def test_taken_sentences_continue_as_if_they_were_alone(calls):
    cache, chosen = calls.cache(), jnp.array([2, 0])
    for t in range(LENGTH):
        tokens = jnp.stack([TARGET_IN[:, t]] * 4, axis=1)
        if t == 2:
            cache = calls.model.take(cache, chosen)
        logits, cache = calls.step(tokens[chosen] if t >= 2 else tokens, cache)
    expected = calls.forward(SOURCE, TARGET_IN)[chosen, -1]
    np.testing.assert_allclose(logits[:, 0], expected, **CLOSE)


# What a family declares.


def test_every_parameter_has_a_kind_and_logical_axes(calls):
    metadata = protocol.parameter_metadata(calls.model)
    shapes = jax.tree.map(lambda one: one.value.shape, metadata, is_leaf=is_parameter)
    assert shapes == jax.tree.map(jnp.shape, calls.params)
    for parameter in jax.tree.leaves(metadata, is_leaf=is_parameter):
        assert is_parameter(parameter)
        assert len(parameter.names) == parameter.value.ndim
        assert (parameter.num_input_axes > 0) == (parameter.kind == "kernel")


def test_every_axis_of_the_vocabulary_is_named(calls):
    """The axes of a shared table are the target's."""
    for parameter in jax.tree.leaves(
        protocol.parameter_metadata(calls.model), is_leaf=is_parameter
    ):
        for name, size in zip(parameter.names, parameter.value.shape, strict=True):
            assert (name == "vocab") == (size == 11)
            assert (name == "source_vocab") == (size == 13)


def test_the_description_is_of_what_a_trace_captures(calls):
    described = calls.model.describe()
    _, tapped = calls.model.apply({"params": calls.params}, SOURCE, TARGET_IN, mutable=["trace"])
    trace = trace_of(calls.params, tapped.get("trace", {}))
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


def test_flops_grow_with_the_batch_and_both_lengths(calls):
    flops = calls.model.describe().forward_flops
    assert flops(2, 5, 7) == 2 * flops(1, 5, 7) > 0
    assert flops(1, 6, 8) > flops(1, 5, 7)
    assert flops(1, 5, 8) >= flops(1, 5, 7)
    assert flops(1, 6, 7) >= flops(1, 5, 7)


def test_the_flops_of_an_ensemble_are_those_of_its_members():
    members = [protocol.build(config).describe() for config in MODELS["ensemble"]]
    total = built("ensemble").model.describe().forward_flops(1, 5, 7)
    assert total == sum(member.forward_flops(1, 5, 7) for member in members)


@pytest.mark.parametrize(
    "config",
    [
        *(TINY, BAHDANAU, BAG),
        *(
            pytest.param(config, marks=pytest.mark.slow)
            for config in (
                *(PRE_NORM, RELATIVE, SHAW, UNIVERSAL, ADDITIVE),
                *(FEEDING, CONVOLUTIONAL, LANGUAGE_MODEL, CLASSIFIER),
            )
        ),
    ],
)
def test_parameters_cast_once_give_the_same_bfloat16_logits(config):
    model = protocol.build(config.replace(compute_dtype="bfloat16"))
    calls = Calls(model, oracle.random_params(model, 0))
    cast = Calls(model, model.cast_params(calls.params))
    logits = calls.forward(SOURCE, TARGET_IN)
    np.testing.assert_array_equal(cast.forward(SOURCE, TARGET_IN), logits)
    assert logits.dtype == jnp.float32
    wide = Calls(protocol.build(config), calls.params).forward(SOURCE, TARGET_IN)
    assert not np.array_equal(logits, wide)
