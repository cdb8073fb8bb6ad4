# SPDX-License-Identifier: Apache-2.0
"""Every config can be built and trained at full size, and is the one that it claims to be."""

import functools
import inspect
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from apps import CONFIGS
from tensorflow_datasets.core import registered

from experiments.cli.config_flags import completed, load_config_file
from experiments.configs import pronouns_variants
from experiments.data import registry, tfds_corpora
from transformer import sharding
from transformer.batch import Batch
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.fields import difference
from transformer.models import protocol as families
from transformer.training import consistency, optimizers
from transformer.training import step as training

ARGUMENTS = {
    "multi30k": ("best", "published", "hour", "short"),
    "pronouns": ("de", "fr"),
    "pronouns_convolutional": ("de", "fr"),
    "pronouns_recurrent": ("sutskever", "bahdanau", "luong", "luong_local"),
    "pronouns_variants": ("shaw", "universal", "untied"),
    "scan": ("simple", "length", "length26", "addprim_jump", "addprim_turn_left"),
    "text_files": ("auto", "small", "medium", "large"),
}
"""The arguments, after the file name and a colon, of each config file that takes one."""

NAMES = [
    name + argument
    for name in sorted(path.stem for path in CONFIGS.glob("*.py"))
    for argument in ("", *(f":{argument}" for argument in ARGUMENTS.get(name, ())))
]


def load(spec):
    """The config of ``name`` or ``name:argument``."""
    name, colon, argument = spec.partition(":")
    config = load_config_file(f"{CONFIGS / name}.py{colon}{argument}")
    return config if name == "fine_tune" else completed(config, [])


def parts(config):
    """The step, and the shapes of its state."""
    model = families.build(config.model)
    optimizer = optimizers.optimizer(model, config.optimizer, config.training.steps)
    options = {
        "loss": consistency.loss_of(config.training),
        "micro_batches": config.training.micro_batches or 1,
        "ema_decay": config.training.ema_decay,
    }
    step = functools.partial(training.train_step, model, optimizer, **options)
    make = functools.partial(training.TrainState.create, model, optimizer)
    return step, make, jax.eval_shape(make, jax.random.key(0))


@functools.cache
def stepped(config, rows, length):
    """The shapes of the state before a step and after it, and of the sums that it gives.

    Of the data, only the size of a batch is in it: tasks of one corpus share the work.
    """
    step, _, state = parts(config)
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    return state, *jax.eval_shape(step, state, Batch(tokens, tokens))


def shapes(tree):
    """Shape and dtype of every leaf."""
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


@pytest.mark.parametrize("spec", NAMES)
def test_a_config_survives_a_json_round_trip_runs_on_one_device_and_has_a_dataset(spec):
    config = load(spec)
    assert isinstance(config, Config)
    assert Config.from_json(config.to_json()) == config
    assert sharding.make_mesh(config.parallel).size == 1
    dataset = config.data.dataset
    if dataset not in [*registry.embedded_datasets(), "text_files"]:
        builder, _, name = dataset.partition("/")
        assert builder in tfds_corpora.names()
        assert name in registered.imported_builder_cls(builder).builder_configs


@pytest.mark.slow
@pytest.mark.parametrize("spec", NAMES)
def test_a_step_has_the_shapes_of_the_state_at_full_size(spec):
    config = load(spec)
    length = config.data.bucket_lengths[-1]
    plain = config.replace(data=DataConfig(vocabulary=config.data.vocabulary))
    state, after, sums = stepped(plain, config.data.tokens_per_batch // length, length)
    assert shapes(after) == shapes(state)
    assert {leaf.shape for leaf in jax.tree.leaves(sums)} == {()}


@pytest.mark.parametrize("name", sorted({spec.partition(":")[0] for spec in NAMES}))
def test_a_file_documents_the_command_that_runs_it(name):
    path = CONFIGS / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    assert re.search(rf"transformer train --config={name}\b|^Run: +as \w+\.py", source, re.M)
    namespace = {"__name__": "config"}
    exec(compile(source, str(path), "exec"), namespace)
    takes = bool(inspect.signature(namespace["get_config"]).parameters)
    assert takes == (name in ARGUMENTS), "name its arguments above, so that each is tested"


def test_an_unknown_argument_is_refused_with_the_known_ones():
    with pytest.raises(
        InputError,
        match="multi30k.py:best or multi30k.py:published or multi30k.py:hour or multi30k.py:short",
    ):
        load("multi30k:long")
    with pytest.raises(InputError, match="py:spiral is unknown; the variants are paper, learned"):
        load("pronouns_variants:spiral")
    with pytest.raises(
        InputError, match="'pronouns_grammar/nl'.*pronouns_grammar/de, pronouns_gra"
    ):
        registry.sentence_pairs(load("pronouns:nl").data, "train")


def test_a_variant_of_the_pronouns_differs_in_its_one_or_two_fields_of_the_model():
    paper = load("pronouns_variants")
    schedule = {"optimizer.schedule", "optimizer.learning_rate"}
    assert difference(load("pronouns:de"), paper).keys() == schedule
    for name, fields in pronouns_variants.VARIANTS.items():
        changed = difference(paper, load(f"pronouns_variants:{name}"))
        assert changed.keys() == {f"model.{field}" for field in fields}
        assert len(fields) <= 2


def test_base_and_big_are_the_papers():
    base, big = load("base"), load("big")
    assert base.model == Config().model
    assert base.optimizer == Config().optimizer
    assert (base.training.steps, base.training.keep_last) == (100_000, 5)
    assert difference(base, big) == {
        "model.d_model": (512, 1024),
        "model.num_heads": (8, 16),
        "model.d_ff": (2048, 4096),
        "model.dropout": (0.1, 0.3),
        "training.steps": (100_000, 300_000),
        "training.keep_last": (5, 20),
    }


def test_t2t_base_differs_from_base_in_exactly_these_fields():
    assert difference(load("base"), load("t2t_base")) == {
        "model.norm": ("post", "pre"),
        "model.attention_dropout": (0.0, 0.1),
        "model.activation_dropout": (0.0, 0.1),
        "model.sinusoid_layout": ("interleaved", "halves"),
        "optimizer.beta2": (0.98, 0.997),
        "optimizer.warmup_steps": (4000, 8000),
        "optimizer.learning_rate": (1.0, 2.0),
    }


def test_the_wmt14_models_are_base_and_big_on_the_papers_data():
    data = {
        "data.dataset": ("text_files", "wmt14_translate/de-en"),
        "data.direction": ("forward", "en-de"),
    }
    for size in ("base", "big"):
        assert difference(load(size), load(f"wmt14_ende_{size}")) == data


def test_the_highest_learning_rate_is_the_published_one():
    for spec, peak in (("multi30k:published", 0.005), ("iwslt14_deen", 0.0005)):
        config = load(spec)
        steps = config.training.steps
        schedule = optimizers.schedule(config.optimizer, config.model.d_model, steps)
        assert float(jax.vmap(schedule)(jnp.arange(steps)).max()) == pytest.approx(peak, rel=1e-3)


def test_the_best_recipe_for_multi30k_is_that_of_an_hour_with_twice_the_steps():
    assert load("multi30k") == load("multi30k:best")
    changed = difference(load("multi30k:hour"), load("multi30k:best"))
    assert changed == {"training.steps": (5000, 10_000), "training.validate_every": (500, 1000)}


def test_the_short_recipe_for_multi30k_decodes_the_same_way_and_sees_a_tenth_of_the_text():
    changed = difference(load("multi30k:published"), load("multi30k:short"))
    assert not [path for path in changed if path.startswith("decode.")]
    (long, short), (large, small) = changed["training.steps"], changed["data.tokens_per_batch"]
    assert short * small < long * large / 10


def test_the_symbol_tasks_and_the_pronouns_differ_only_in_the_dataset():
    assert load("pronouns") == load("pronouns:de")
    assert difference(load("pronouns:de"), load("pronouns:fr")) == {
        "data.dataset": ("pronouns_grammar/de", "pronouns_grammar/fr")
    }
    for task in ("reverse", "sort"):
        assert difference(load("copy"), load(task)) == {
            "data.dataset": ("symbols_grammar/copy", f"symbols_grammar/{task}")
        }


@pytest.mark.slow
def test_a_step_of_the_base_model_runs_here_with_a_finite_loss():
    step, make, _ = parts(load("base"))
    state = nn.unbox(jax.jit(make)(jax.random.key(0)))
    generator = np.random.default_rng(0)
    tokens = jnp.asarray(generator.integers(4, 37_000, (2, 2, 16)), jnp.int32)
    after, sums = jax.jit(step, donate_argnums=0)(state, Batch(*tokens))
    assert int(after.step) == 1
    assert float(sums.tokens) == 32
    # With random parameters, the loss is near that of a uniform guess.
    assert 0.5 * np.log(37_000) < float(sums.nll) / 32 < 2 * np.log(37_000)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(after.params))
