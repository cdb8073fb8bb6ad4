# SPDX-License-Identifier: Apache-2.0
"""Frozen parts: which parameters they are in each family, and that training leaves them alone."""

import functools

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from transformer.batch import Batch
from transformer.config import (
    Config,
    ConvolutionalConfig,
    LanguageModelConfig,
    OptimizerConfig,
    RecurrentConfig,
    TrainingConfig,
)
from transformer.errors import InputError
from transformer.models import protocol
from transformer.training import adapters, optimizers
from transformer.training import step as training

PARTS = ("embedding", "encoder", "decoder")


def parts_of(model):
    """The paths of each part."""
    metadata = protocol.parameter_metadata(model)
    kinds = {path: leaf.kind for path, leaf in flatten_dict(metadata).items()}
    masks = {part: flatten_dict(adapters.frozen_mask(model, metadata, (part,))) for part in PARTS}
    assert all(sum(masks[part][path] for part in PARTS) == 1 for path in kinds)
    assert {kinds[path] for path in kinds if masks["embedding"][path]} == {"embedding"}
    return {part: {path for path in kinds if masks[part][path]} for part in PARTS}


def test_the_parts_of_a_transformer_are_its_stacks(model):
    parts = parts_of(model)
    assert {path[0] for path in parts["encoder"]} == {"encoder"}
    assert {path[0] for path in parts["decoder"]} == {"decoder"}


def test_the_map_to_the_logits_is_of_the_decoder(model):
    config = model.config.replace(tied_embeddings="none", output_bias=True)
    parts = parts_of(protocol.build(config))
    assert {path for path in parts["decoder"] if path[0] == "embedding"} == {
        ("embedding", "output"),
        ("embedding", "output_bias"),
    }
    assert {path[0] for path in parts["encoder"]} == {"encoder"}


def test_absolute_positions_are_embeddings_and_the_relative_ones_of_a_stack_are_of_the_stack(model):
    learned = parts_of(protocol.build(model.config.replace(positions="learned")))
    assert ("embedding", "positions") in learned["embedding"]
    shaw = parts_of(protocol.build(model.config.replace(positions="shaw", max_relative_position=3)))
    assert {path[0] for path in shaw["embedding"]} == {"embedding"}
    for stack in ("encoder", "decoder"):
        assert {path[0] for path in shaw[stack]} == {stack}
        assert any(path[-1] == "keys" for path in shaw[stack])


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [RecurrentConfig(vocab_size=11, d_model=4), ConvolutionalConfig(vocab_size=11, d_model=4)],
    ids=lambda config: config.family,
)
def test_every_family_with_an_encoder_has_the_three_parts(config):
    assert all(parts_of(protocol.build(config)).values())


def test_a_part_that_is_missing_and_a_model_without_anything_to_train_are_refused(model):
    metadata = protocol.parameter_metadata(model)
    with pytest.raises(InputError, match="leaves no parameter to train"):
        adapters.frozen_mask(model, metadata, PARTS)
    language_model = protocol.build(
        LanguageModelConfig(vocab_size=11, num_layers=1, d_model=4, d_ff=4, num_heads=2)
    )
    metadata = protocol.parameter_metadata(language_model)
    with pytest.raises(InputError, match="'language_model' has no such.*decoder, embedding"):
        adapters.frozen_mask(language_model, metadata, ("encoder",))


@pytest.mark.parametrize(
    "name",
    [
        "adafactor",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("adam", "adamw", "lion", "muon")),
    ],
)
def test_an_optimizer_keeps_no_moments_of_the_frozen_parameters(name, model, params):
    metadata = protocol.parameter_metadata(model)
    frozen = adapters.frozen_mask(model, metadata, ("embedding", "encoder"))
    decay = 0.0 if name == "adam" else 0.1
    config = OptimizerConfig(name=name, weight_decay=decay, clip_norm=1.0)
    everything = optimizers.optimizer(model, config, 10)
    optimizer = adapters.freeze(everything, frozen)
    updates, _ = jax.eval_shape(optimizer.update, params, optimizer.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
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
    model = protocol.build(config.model)
    metadata = protocol.parameter_metadata(model)
    frozen = adapters.frozen_mask(model, metadata, config.training.freeze)
    optimizer = adapters.freeze(optimizers.optimizer(model, config.optimizer, 10), frozen)
    state = training.TrainState.create(model, optimizer, jax.random.key(0), params=params)
    to_model = functools.partial(adapters.stop_gradients, frozen=frozen)
    step = jax.jit(training.train_step, static_argnums=(0, 1), static_argnames="to_model")
    after, sums = step(model, optimizer, state, Batch(source, target_in), to_model=to_model)
    assert sums.tokens > 0
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), after.params, params)
    for path, was_changed in flatten_dict(changed).items():
        assert was_changed != flatten_dict(frozen)[path], path
    _, of_all = step(model, optimizer, state, Batch(source, target_in))
    assert sums.gradient_norm < 0.99 * of_all.gradient_norm
