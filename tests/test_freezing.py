# SPDX-License-Identifier: Apache-2.0
"""Frozen parts: which parameters they are in each family, and that training leaves them alone."""

import functools

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from transformer.config import (
    Config,
    ConvolutionalConfig,
    LanguageModelConfig,
    OptimizerConfig,
    RecurrentConfig,
    TrainingConfig,
)
from transformer.errors import InputError
from transformer.models import base
from transformer.training import freezing, optimizers
from transformer.training import step as training
from transformer.training.step import Batch

PARTS = ("embedding", "encoder", "decoder")


def parts_of(model):
    """The paths of each part."""
    metadata = base.parameter_metadata(model)
    kinds = {path: leaf.kind for path, leaf in flatten_dict(metadata).items()}
    masks = {part: flatten_dict(freezing.frozen_mask(model, metadata, (part,))) for part in PARTS}
    assert all(sum(masks[part][path] for part in PARTS) == 1 for path in kinds)
    assert {path for path in kinds if masks["embedding"][path]} == {
        path for path, kind in kinds.items() if kind == "embedding"
    }
    return {part: {path for path in kinds if masks[part][path]} for part in PARTS}


def test_the_parts_of_a_transformer_are_its_stacks(model):
    parts = parts_of(model)
    assert {path[0] for path in parts["encoder"]} == {"encoder"}
    assert {path[0] for path in parts["decoder"]} == {"decoder"}


def test_the_map_to_the_logits_is_of_the_decoder(model):
    config = model.config.replace(tied_embeddings="none", output_bias=True)
    parts = parts_of(base.build(config))
    assert {path for path in parts["decoder"] if path[0] == "embedding"} == {
        ("embedding", "output"),
        ("embedding", "output_bias"),
    }
    assert {path[0] for path in parts["encoder"]} == {"encoder"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [RecurrentConfig(vocab_size=11, d_model=4), ConvolutionalConfig(vocab_size=11, d_model=4)],
    ids=lambda config: config.family,
)
def test_every_family_with_an_encoder_has_the_three_parts(config):
    assert all(parts_of(base.build(config)).values())


def test_a_part_that_is_missing_and_a_model_without_anything_to_train_are_refused(model):
    metadata = base.parameter_metadata(model)
    with pytest.raises(InputError, match="leaves no parameter to train"):
        freezing.frozen_mask(model, metadata, PARTS)
    language_model = base.build(
        LanguageModelConfig(vocab_size=11, num_layers=1, d_model=4, d_ff=4, num_heads=2)
    )
    metadata = base.parameter_metadata(language_model)
    with pytest.raises(InputError, match="'language_model' has no such.*decoder, embedding"):
        freezing.frozen_mask(language_model, metadata, ("encoder",))


@pytest.mark.parametrize(
    "name",
    [
        "adafactor",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("adam", "adamw", "lion", "muon")),
    ],
)
def test_an_optimizer_keeps_no_moments_of_the_frozen_parameters(name, model, params):
    metadata = base.parameter_metadata(model)
    frozen = freezing.frozen_mask(model, metadata, ("embedding", "encoder"))
    decay = 0.0 if name == "adam" else 0.1
    config = OptimizerConfig(name=name, weight_decay=decay, clip_norm=1.0)
    optimizer = optimizers.build(config, metadata, 12, 10, frozen)
    updates, _ = jax.eval_shape(optimizer.update, params, optimizer.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    everything = optimizers.build(config, metadata, 12, 10)
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(each.init, params)))
        for each in (optimizer, everything)
    ]
    assert sizes[0] < sizes[1] * 0.75


@pytest.mark.slow
def test_a_step_leaves_the_frozen_parameters_as_they_are(shallow, source, target_in):
    shallow_model, params = shallow
    config = Config(
        model=shallow_model.config,
        optimizer=OptimizerConfig(name="adamw", weight_decay=0.1),
        training=TrainingConfig(init_from="model", freeze=("encoder",)),
    )
    model = base.build(config.model)
    metadata = base.parameter_metadata(model)
    frozen = freezing.frozen_mask(model, metadata, config.training.freeze)
    optimizer = optimizers.build(config.optimizer, metadata, 6, 10, frozen)
    state = training.init_state(model, optimizer, jax.random.key(0), params=params)
    step = functools.partial(
        training.train_step, model=model, optimizer=optimizer, config=config, frozen=frozen
    )
    after, sums = jax.jit(step)(state, Batch(source, target_in))
    assert sums.tokens > 0
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), after.params, params)
    for path, was_changed in flatten_dict(changed).items():
        assert was_changed != flatten_dict(frozen)[path], path
    everything = functools.partial(step, frozen=None)
    _, of_all = jax.jit(everything)(state, Batch(source, target_in))
    assert sums.gradient_norm < 0.99 * of_all.gradient_norm
