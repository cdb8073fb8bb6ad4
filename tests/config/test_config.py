# SPDX-License-Identifier: Apache-2.0
"""The defaults are the paper's; an invalid value is rejected with field, value and remedy."""

import dataclasses
import json
import re
import typing

import numpy as np
import pytest

from transformer.config import (
    ClassifierConfig,
    Config,
    ConvolutionalConfig,
    DataConfig,
    DecodeConfig,
    LanguageModelConfig,
    LoggingConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RecurrentConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer.errors import InputError
from transformer.fields import FieldGroup, difference, field_types, flat

# The paper's values.


def test_the_default_model_is_the_papers_base():
    model = TransformerConfig()
    assert (model.num_layers, model.d_model, model.d_ff, model.num_heads) == (6, 512, 2048, 8)
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.1, 0.0, 0.0)
    assert (model.norm, model.activation, model.attention_bias) == ("post", "relu", False)
    assert (model.positions, model.sinusoid_layout) == ("sinusoidal", "interleaved")
    assert model.compute_dtype == "float32"


def test_the_default_optimizer_loss_and_search_are_the_papers():
    config = Config()
    optimizer = config.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    assert (optimizer.warmup_steps, optimizer.learning_rate) == (4000, 1.0)
    assert config.training.label_smoothing == 0.1
    assert config.training.label_smoothing_mass == "uniform_others"
    decode = config.decode
    assert (decode.beams, decode.length_penalty, decode.alpha) == (4, "gnmt", 0.6)
    assert (decode.extra_length, decode.max_length) == (50, None)


def test_depth_and_heads_of_a_side_are_the_common_ones_unless_given():
    config = TransformerConfig(decoder_layers=2, encoder_heads=4)
    assert (config.depth("encoder"), config.depth("decoder")) == (6, 2)
    assert (config.heads("encoder"), config.heads("decoder")) == (4, 8)


# Invalid values.

REFUSED = {
    TransformerConfig: [
        ({"d_model": "512"}, "model.d_model is '512', but must be a whole number"),
        ({"d_model": 512.0}, "model.d_model is 512.0, but must be a whole number"),
        ({"d_model": True}, "model.d_model is True, but must be a whole number"),
        ({"d_model": 0}, "model.d_model is 0, but must be at least 1"),
        ({"d_k": 1.5}, "model.d_k is 1.5, but must be a whole number or left out"),
        ({"d_v": -1}, "model.d_v is -1, but must be at least 1"),
        ({"num_layers": 0}, "model.num_layers is 0, but must be at least 1"),
        ({"encoder_layers": 0}, "model.encoder_layers is 0"),
        ({"max_positions": 0}, "model.max_positions is 0"),
        ({"attention_bias": 1}, "model.attention_bias is 1, but must be true or f"),
        ({"vocab_size": 4}, "model.vocab_size is 4, but must be more than the 4 sp"),
        ({"dropout": 1.0}, "model.dropout is 1.0, but must be at least 0 and below"),
        ({"dropout": -0.1}, "model.dropout is -0.1"),
        ({"attention_dropout": 2}, "model.attention_dropout is 2.0"),
        ({"activation_dropout": float("nan")}, "model.activation_dropout is nan"),
        ({"norm": "sandwich"}, "model.norm is 'sandwich', but must be one of 'post', 'pre'"),
        (
            {"activation": None},
            "model.activation is None, but must be one of 'relu', 'gelu', 'gelu_tanh', 'swish'",
        ),
        (
            {"num_heads": 7},
            "model.num_heads is 7, which does not divide model.d_model = 512; change one of them, "
            "or give model.d_k and model.d_v",
        ),
        (
            {"decoder_heads": 5, "d_k": 64},
            "model.decoder_heads is 5, which does not divide model.d_model = 512",
        ),
        (
            {"attention_kernel": "fused", "attention_dropout": 0.1},
            "model.attention_dropout is 0.1, but must be 0 with the fused kernel",
        ),
        (
            {"attention_kernel": "chunked", "attention_dropout": 0.1},
            "model.attention_dropout is 0.1, but must be 0 with the chunked kernel",
        ),
        (
            {"attention_kernel": "fused", "d_k": 64, "d_v": 32},
            "model.d_v is 32, but must be equal to model.d_k with the fused kernel",
        ),
        ({"pad_id": 1}, "model.bos_id is 1, but must be different from model.pad_id"),
        ({"eos_id": 37000}, "model.eos_id is 37000, but must be at least 0 and bel"),
        (
            {"position_offset": 2, "positions": "learned"},
            "model.position_offset is 2, but must be 0 with model.positions='learned'",
        ),
        ({"source_vocab_size": 4}, "model.source_vocab_size is 4, but must be more"),
        ({"position_buckets": 3}, "model.position_buckets is 3, but must be at lea"),
        (
            {"position_max_distance": 32},
            "model.position_max_distance is 32, but must be above model.position_buckets",
        ),
        (
            {"num_layer": 2},
            "unknown config field 'model.num_layer'; did you mean 'model.num_layers'?",
        ),
    ],
    OptimizerConfig: [
        ({"beta2": 1.0}, "optimizer.beta2 is 1.0, but must be at least 0 and below 1"),
        ({"beta1": "0.9"}, "optimizer.beta1 is '0.9', but must be a number"),
        ({"epsilon": 0.0}, "optimizer.epsilon is 0.0, but must be at least 1e-30"),
        ({"learning_rate": -1}, "optimizer.learning_rate is -1.0, but must be at lea"),
        ({"warmup_steps": 0}, "optimizer.warmup_steps is 0, but must be at least 1"),
    ],
    DecodeConfig: [
        ({"beams": 0}, "decode.beams is 0, but must be at least 1"),
        ({"length_penalty": "wu"}, "decode.length_penalty is 'wu', but must be one of "),
        ({"max_length": 0}, "decode.max_length is 0, but must be at least 1"),
        ({"extra_length": 0}, "decode.extra_length is 0"),
        ({"batch_size": -3}, "decode.batch_size is -3"),
        ({"groups": 3}, "decode.groups is 3, but must be a divisor of decode.beams = 4"),
        ({"diversity": -0.5}, "decode.diversity is -0.5, but must be at least 0"),
        ({"min_length": -1}, "decode.min_length is -1, but must be at least 0"),
        (
            {"min_length": 7, "max_length": 7},
            "decode.min_length is 7, but must be below decode.max_length = 7",
        ),
        ({"block_ngrams": 0}, "decode.block_ngrams is 0, but must be at least 1"),
        ({"method": "sample", "temperature": 0.0}, "decode.temperature is 0.0, but must be at le"),
        ({"method": "sample", "top_k": 0}, "decode.top_k is 0, but must be at least 1"),
        ({"method": "sample", "top_p": 1.5}, "decode.top_p is 1.5, but must be above 0 and at"),
        ({"method": "mbr", "min_p": -0.1}, "decode.min_p is -0.1, but must be at least 0 and"),
        ({"method": "mbr", "mbr_samples": 0}, "decode.mbr_samples is 0, but must be at least 1"),
        ({"seed": 4294967296}, "decode.seed is 4294967296, but must be at least 0 and below 2^32"),
        (
            {"method": "sample", "truncation": "typical"},
            "decode.truncation is 'typical', but must be FILE.py:FUNCTION",
        ),
        ({"top_k": 5}, "decode.top_k is 5, but must be left out with decode.method='beam'"),
        (
            {"method": "sample", "groups": 2},
            "decode.groups is 2, but must be left out with decode.method='sample'",
        ),
    ],
    DataConfig: [
        ({"bucket_lengths": (32, 16, 100)}, "is (32, 16, 100), but must be ascending lengths"),
        ({"bucket_lengths": (50, 50, 100)}, "must be ascending lengths"),
        ({"bucket_lengths": ()}, "data.bucket_lengths is (), but must be ascending"),
        ({"bucket_lengths": (16, 32)}, "must be such that the last equals data.max_length = 100"),
        ({"bucket_lengths": [16, 100]}, "is [16, 100], but must be a tuple of a whole number"),
        ({"bucket_lengths": (16.5, 100)}, "data.bucket_lengths is (16.5, 100)"),
        ({"tokens_per_batch": 799}, "is 799, but must be at least data.max_length x data.row_mul"),
        ({"train_source": 3}, "data.train_source is 3, but must be a text or left out"),
        ({"tokenizer": "char"}, "data.tokenizer is 'char', but must be one of 'bpe', "),
    ],
    TrainingConfig: [
        ({"steps": 0}, "training.steps is 0, but must be at least 1"),
        ({"seed": -1}, "training.seed is -1, but must be at least 0"),
        ({"label_smoothing": 1.0}, "training.label_smoothing is 1.0"),
        ({"label_smoothing_mass": "all"}, "training.label_smoothing_mass is 'all'"),
        ({"keep_last": 0}, "training.keep_last is 0"),
    ],
    ParallelConfig: [
        ({"data": 0}, "parallel.data is 0, but must be at least 1"),
        ({"preset": "zero"}, "parallel.preset is 'zero', but must be one of 'replica"),
    ],
    LoggingConfig: [
        ({"log_every": 0}, "logging.log_every is 0"),
        ({"samples": -1}, "logging.samples is -1, but must be at least 0"),
    ],
    Config: [
        ({"model": 3}, "model is 3, but must be a group of fields"),
        ({"modle": 2}, "unknown config field 'modle'; did you mean 'model'?"),
    ],
}


@pytest.mark.parametrize("group", REFUSED)
def test_an_invalid_value_is_rejected_with_its_field_and_what_it_must_be(group):
    for values, message in REFUSED[group]:
        with pytest.raises(InputError, match=re.escape(message)):
            group(**values)


def test_every_number_has_an_upper_bound_and_its_refusal_names_the_field():
    for path, value in flat(Config()).items():
        group, name = path.split(".")
        kind = field_types(type(getattr(Config(), group)))[name]
        if isinstance(value, bool | tuple) or not {int, float} & {kind, *typing.get_args(kind)}:
            continue
        for huge in (10**29, 2**400):
            with pytest.raises(InputError) as error:
                getattr(Config(), group).replace(**{name: huge})
            assert str(error.value).startswith(f"{path} is ")
            # The bound, unless it is another field.
            assert re.search(
                r"(below|at most) [\d,^e+]+$|decode.beams|vocabulary", str(error.value)
            )


def test_a_bound_is_given_as_it_is_written():
    with pytest.raises(InputError) as error:
        DecodeConfig(beams=2000)
    assert str(error.value) == "decode.beams is 2000, but must be at least 1 and at most 1,024"
    with pytest.raises(InputError, match=r"must be at least 0 and below 2\^32$"):
        TrainingConfig(seed=2**32)
    assert TrainingConfig(seed=2**32 - 1).seed == 2**32 - 1


def test_what_is_not_refused():
    assert TransformerConfig(num_heads=7, d_k=64, d_v=32).num_heads == 7
    assert TransformerConfig(dropout=0).dropout == 0
    assert TrainingConfig(label_smoothing=0).label_smoothing == 0
    for fields in (
        {"attention_dropout": 0.1},
        {"d_k": 64, "d_v": 32},
        {"positions": "shaw"},
        {"attention_score": "additive"},
    ):
        assert TransformerConfig(**fields).attention_kernel == "auto"


FUNCTION = {
    ModelConfig: "family vocab_size source_vocab_size pad_id bos_id eos_id unk_id",
    TransformerConfig: "num_layers encoder_layers decoder_layers d_model d_ff num_heads "
    "encoder_heads decoder_heads d_k d_v num_kv_heads attention_bias attention_score "
    "attention_window shared_layers timestep_encoding activation norm norm_kind norm_epsilon "
    "tied_embeddings embedding_scale positions sinusoid_layout position_offset max_positions "
    "position_buckets position_max_distance max_relative_position output_bias",
    ClassifierConfig: "pooling",
    ConvolutionalConfig: "num_layers encoder_layers decoder_layers d_model kernel_width "
    "max_positions",
    RecurrentConfig: "cell num_layers d_model encoder_direction attention local_window "
    "input_feeding tied_embeddings output_bias",
}
"""Fields that change the function of trained parameters, by the class that adds them."""


FAMILIES = (
    *(TransformerConfig, LanguageModelConfig, ClassifierConfig, ConvolutionalConfig),
    RecurrentConfig,
)


def test_every_field_of_a_family_is_free_after_training_or_not():
    for group in FAMILIES:
        owners = [owner for owner in FUNCTION if issubclass(group, owner)]
        fixed = [name for owner in owners for name in FUNCTION[owner].split()]
        names = [field.name for field in dataclasses.fields(group)]
        assert sorted([*fixed, *group.free_after_training]) == sorted(names)


def test_an_int_is_accepted_for_a_float():
    config = OptimizerConfig(learning_rate=2)
    assert config.learning_rate == 2.0
    assert isinstance(config.learning_rate, float)
    assert isinstance(OptimizerConfig(clip_norm=1).clip_norm, float)


def test_numbers_of_numpy_become_those_of_python():
    model = TransformerConfig(
        d_model=np.int64(64), dropout=np.float32(0.5), attention_bias=np.bool_(True)
    )
    data = DataConfig(max_length=np.int32(8), bucket_lengths=(np.int16(4), np.uint8(8)))
    values = model.d_model, model.dropout, model.attention_bias, *data.bucket_lengths
    assert values == (64, 0.5, True, 4, 8)
    assert [*map(type, values)] == [int, float, bool, int, int]
    config = Config(model=model, data=data)
    assert Config.from_json(config.to_json()) == config
    assert type(OptimizerConfig(learning_rate=np.int64(2)).learning_rate) is float
    with pytest.raises(InputError, match=r"model.d_model is 64.0, but must be a whole number"):
        TransformerConfig(d_model=np.float64(64))


def test_a_class_whose_fields_would_be_ignored_is_refused():
    class Forgotten(TransformerConfig):
        qk_norm: bool = True

    with pytest.raises(InputError, match=r"fields of Forgotten are ignored; decorate the class"):
        Forgotten()


@pytest.mark.parametrize(
    ("decode", "reach"),
    [
        ({}, 150),
        ({"extra_length": 500}, 600),
        ({"max_length": 120}, 120),
        ({"max_length": 20}, 100),
    ],
)
def test_learned_positions_must_reach_the_longest_input_and_output(decode, reach):
    decode = DecodeConfig(**decode)
    model = TransformerConfig(positions="learned", max_positions=reach)
    assert Config(model=model, decode=decode).model.max_positions == reach
    short = dataclasses.replace(model, max_positions=reach - 1)
    with pytest.raises(InputError, match=f"model.max_positions is {reach - 1}.*reach {reach} "):
        Config(model=short, decode=decode)
    assert Config(model=short.replace(positions="sinusoidal"), decode=decode).decode == decode


# To and from JSON.


def test_json_has_every_field_in_order_and_reads_back_as_the_same_config():
    config = Config(
        model=TransformerConfig(d_k=7, d_v=9, encoder_layers=2),
        data=DataConfig(max_length=40, bucket_lengths=(10, 40), train_source="a.txt"),
        decode=DecodeConfig(alpha=-0.25, max_length=9),
    )
    assert Config.from_json(config.to_json()) == config
    assert Config.from_json(Config().to_json()) == Config()
    assert Config.from_json('{"model": {"d_ff": 7}}') == Config(model=TransformerConfig(d_ff=7))
    text = Config().to_json()
    values = json.loads(text)
    assert list(values) == [field.name for field in dataclasses.fields(Config)]
    assert list(values["model"])[:2] == ["family", "vocab_size"]
    assert text.endswith("}\n")


def test_fields_of_json_that_were_renamed_or_removed_are_read():
    config = Config.from_json('{"data": {"tokenizing_processes": 3}}')
    assert config.data.tokenizing_threads == 3
    assert "tokenizing_processes" not in config.to_json()
    config = Config.from_json('{"decode": {"shortlist": null, "beams": 3}}')
    assert config == Config(decode=DecodeConfig(beams=3))
    assert "shortlist" not in config.to_json()
    message = r"decode\.shortlist is 20, but this version no longer has the field; remove it"
    with pytest.raises(InputError, match=message):
        Config.from_json('{"decode": {"shortlist": 20}}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": {}\n,,}', "here.json:2: not JSON (.*); restore the file from a copy"),
        ("[]", "here.json: the file must hold one JSON object"),
        ('{"model": 3}', "here.json: model is 3, but must be a group of fields"),
        ('{"model": {"d_model": -4}}', "here.json: model.d_model is -4, but must be at least 1"),
        ('{"modle": {}}', "here.json: unknown config field 'modle'; did you mean 'model'?"),
        ('{"optimizer": {"warmup": 2}}', "did you mean 'optimizer.warmup_steps'?"),
    ],
)
def test_json_that_is_not_a_config_is_rejected_with_file_and_field(text, message):
    with pytest.raises(InputError) as error:
        Config.from_json(text, "here.json")
    start, _, end = message.partition("(.*)")
    assert start in str(error.value)
    assert end in str(error.value)


# Groups of fields in general (`transformer.fields`).


def test_flat_names_every_field_as_the_command_line_does():
    values = flat(Config())
    assert values["model.d_model"] == 512
    assert values["data.bucket_lengths"] == (16, 32, 64, 100)
    groups = [field.default for field in dataclasses.fields(Config)]
    assert len(values) == sum(len(dataclasses.fields(group)) for group in groups)


def test_difference_names_what_differs_with_both_values():
    config = Config()
    other = config.replace(
        model=config.model.replace(d_ff=1024), training=config.training.replace(seed=3)
    )
    assert difference(config, other) == {"model.d_ff": (2048, 1024), "training.seed": (0, 3)}
    assert difference(other, other) == {}

    @dataclasses.dataclass(frozen=True)
    class Other(FieldGroup):
        group = "decode"
        width: int = 3

    assert difference(DecodeConfig(), Other())["decode.width"] == (None, 3)
    assert difference(DecodeConfig(), Other())["decode.beams"] == (4, None)


def test_a_config_is_a_key_that_does_not_change_and_its_copy_is_checked():
    model = TransformerConfig()
    assert model.replace(d_ff=7).d_ff == 7
    assert model.d_ff == 2048
    with pytest.raises(InputError, match=r"model\.d_ff is 0"):
        model.replace(d_ff=0)
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model.d_model = 3
    assert {config: 1}[Config()] == 1


def test_lists_become_tuples_when_read_from_a_dict():
    data = DataConfig.from_dict({"max_length": 20, "bucket_lengths": [10, 20]})
    assert data.bucket_lengths == (10, 20)
