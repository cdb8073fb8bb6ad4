# SPDX-License-Identifier: Apache-2.0
"""The decoder-only language model and the encoder-only classifier, against the NumPy oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import search_oracle

from experiments.data.grammars.pronouns.english_tasks import antecedent_metrics, antecedents
from experiments.training import training_data
from transformer import sharding
from transformer.batch import Batch, target_log_probs
from transformer.config import (
    ClassifierConfig,
    Config,
    DataConfig,
    DecodeConfig,
    LanguageModelConfig,
)
from transformer.decoding import generate
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.interventions import no_interventions
from transformer.models import protocol
from transformer.training.losses import smoothed_cross_entropy
from transformer.training.step import loss

SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 16}
LANGUAGE_MODEL = LanguageModelConfig(vocab_size=11, **SIZES)
CLASSIFIER = ClassifierConfig(vocab_size=9, source_vocab_size=13, **SIZES)
SOURCE = jnp.array([[4, 7, 5, 12, 2], [6, 9, 2, 0, 0], [8, 2, 0, 0, 0]])
TARGET = jnp.array([[5, 8, 4, 2], [7, 10, 2, 0], [6, 2, 0, 0]])
LABELS = jnp.array([[5, 2], [8, 2], [4, 2]])
FAMILIES = {
    "language model": (LANGUAGE_MODEL, TARGET),
    "classifier": (CLASSIFIER, LABELS),
}


def in_float64(config, seed=1):
    """The compiled model, of tokens, and the parameters that the oracle reads."""
    model = protocol.build(config)
    params = oracle.random_params(model, seed)
    apply = jax.jit(model.apply)

    def logits(*tokens):
        with jax.enable_x64(True):
            return np.asarray(apply({"params": oracle.float64(params)}, *tokens))

    return logits, oracle.arrays(params)


# The language model.


@pytest.mark.parametrize(
    "fields",
    [
        {"norm": "pre", "positions": "t5", "position_buckets": 4, "output_bias": True},
        {"positions": "learned", "max_positions": 9, "attention_bias": True, "d_k": 5, "d_v": 2},
    ],
)
def test_the_language_model_is_the_oracles_decoder_and_does_not_read_the_source(fields):
    config = LANGUAGE_MODEL.replace(**fields)
    target_in = np.array([[1, 5, 8, 4], [1, 7, 10, 2]])
    logits, p = in_float64(config)
    expected = [oracle.decode(p, config, None, [], row) for row in target_in]
    np.testing.assert_allclose(logits(SOURCE[:2], target_in), expected, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(logits(SOURCE[:2], target_in), logits(SOURCE[1:], target_in))


@pytest.mark.slow
def test_packed_sentences_have_the_logits_of_single_ones():
    model = protocol.build(LANGUAGE_MODEL)
    variables = {"params": oracle.random_params(model, 1)}
    rows = jnp.array([[1, 5, 8, 0], [1, 7, 10, 4]])
    alone = model.apply(variables, jnp.full((2, 1), 2), rows)
    packed = model.apply(
        variables,
        jnp.array([[2, 2]]),
        jnp.array([[1, 5, 8, 1, 7, 10, 4]]),
        source_segments=jnp.array([[1, 2]]),
        target_segments=jnp.array([[1, 1, 1, 2, 2, 2, 2]]),
    )
    np.testing.assert_allclose(packed[0, :3], alone[0, :3], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(packed[0, 3:], alone[1], rtol=1e-5, atol=1e-5)


def test_search_in_a_language_model_is_the_oracles_search_from_scratch():
    beams = 3
    model = protocol.build(LANGUAGE_MODEL)
    params = oracle.random_params(model, seed=4)
    with jax.enable_x64(True):
        search = functools.partial(
            generate.generate,
            model,
            config=DecodeConfig(beams=beams, extra_length=6),
            num_results=beams,
            max_length=7,
        )
        found = jax.jit(search)(oracle.float64(params), jnp.array([[2]]))
    p = oracle.arrays(params)

    def log_probs(prefix):
        return oracle.log_softmax(oracle.decode(p, LANGUAGE_MODEL, None, [], [1, *prefix])[-1])

    expected, _ = search_oracle.beam(log_probs, 7, beams, beams, "gnmt", 0.6)
    for k, (_, log_prob, tokens) in enumerate(expected):
        assert tuple(np.asarray(found.tokens[0, k, : len(tokens)])) == tokens
        np.testing.assert_allclose(found.log_probs[0, k], log_prob, rtol=1e-6)


# The classifier.


def test_a_classifier_refuses_packed_rows():
    model = protocol.build(CLASSIFIER)
    variables = {"params": oracle.random_params(model, 1)}
    with pytest.raises(InputError, match="'classifier' cannot keep the sentences of a packed row"):
        model.apply(variables, SOURCE, SOURCE, source_segments=jnp.ones_like(SOURCE))


@pytest.mark.parametrize(("pooling", "norm"), [("mean", "post"), ("first", "pre")])
def test_the_label_logits_are_those_of_the_oracles_pooled_encoder(pooling, norm):
    config = CLASSIFIER.replace(pooling=pooling, norm=norm, output_bias=norm == "pre")
    logits, p = in_float64(config)
    logits = logits(SOURCE, jnp.ones((3, 1), jnp.int32))
    for row, source in zip(logits, np.asarray(SOURCE), strict=True):
        memory = oracle.encode(p, config, source)
        real = [x for x, token in zip(memory, source, strict=True) if token != oracle.PAD]
        pooled = sum(real) / len(real) if pooling == "mean" else memory[0]
        expected = p["embedding"]["table"] @ pooled + p["embedding"].get("output_bias", 0.0)
        np.testing.assert_allclose(row[0], expected, rtol=0, atol=1e-9)


def test_with_a_shared_vocabulary_the_linear_layer_is_the_embedding():
    config = CLASSIFIER.replace(source_vocab_size=None)
    params = oracle.random_params(protocol.build(config), 0)
    assert set(params) == {"embedding", "encoder"}
    assert {name: leaf.shape for name, leaf in params["embedding"].items()} == {"table": (9, 12)}


@pytest.fixture(scope="module")
def classifier():
    """(model, params, the logits of the label [B,V])."""
    model = protocol.build(CLASSIFIER)
    params = oracle.random_params(model, 0)
    logits = jax.jit(model.apply)({"params": params}, SOURCE, jnp.ones((3, 1), jnp.int32))
    return model, params, logits[:, 0]


def test_the_loss_and_the_score_are_those_of_the_label_alone(classifier):
    """EOS is certain after it, counts as no token, and label smoothing does not touch it."""
    model, params, logits = classifier
    log_probs, sums = jax.jit(
        lambda *batch: (
            target_log_probs(model, params, Batch(*batch)),
            loss(model, params, Batch(*batch)),
        )
    )(SOURCE, LABELS)
    labels = jax.nn.log_softmax(logits)[jnp.arange(3), LABELS[:, 0]]
    np.testing.assert_allclose(log_probs[:, 0], labels, rtol=1e-6)
    np.testing.assert_array_equal(log_probs[:, 1], 0)
    expected = smoothed_cross_entropy(logits[:, None], LABELS[:, :1])
    assert sums.tokens == 3
    np.testing.assert_allclose(sums.loss, expected.loss, rtol=1e-6)


def test_a_search_returns_the_most_probable_labels(classifier):
    model, params, logits = classifier
    search = functools.partial(
        generate.generate,
        model,
        config=DecodeConfig(beams=3, length_penalty="none", extra_length=3),
        num_results=3,
        max_length=8,
    )
    found = jax.jit(search)(params, SOURCE)
    log_probs = np.asarray(jax.nn.log_softmax(logits)).copy()
    # An empty output is EOS at position 0; padding and BOS never follow.
    log_probs[:, :2] = -np.inf
    for row in range(3):
        best = np.argsort(-log_probs[row])[:3]
        np.testing.assert_array_equal(found.tokens[row, :, 0], best)
        np.testing.assert_allclose(found.log_probs[row], log_probs[row, best], rtol=1e-5)
        assert all(tokens[1] == (2 if tokens[0] != 2 else 0) for tokens in found.tokens[row])


# Both.


def test_their_parameters_are_those_of_one_stack():
    """Embedding 11 x 12; a layer has attention 4 x 12 x 12, feed-forward, and two norms."""
    layer = 4 * 12 * 12 + 2 * 12 * 16 + 16 + 12 + 2 * 2 * 12
    counts = [
        sum(leaf.size for leaf in jax.tree.leaves(oracle.random_params(protocol.build(config), 0)))
        for config in (LANGUAGE_MODEL, CLASSIFIER)
    ]
    assert counts == [11 * 12 + 2 * layer, (9 + 13) * 12 + 2 * layer]


def test_flops_by_hand():
    """Per layer and T = 3: projections 8 T D D, scores 4 T T D, feed-forward 4 T D F; 2 T D V."""
    layer = 8 * 3 * 12 * 12 + 4 * 3 * 3 * 12 + 4 * 3 * 12 * 16
    model, classifier = (protocol.build(each).describe() for each in (LANGUAGE_MODEL, CLASSIFIER))
    assert model.forward_flops(2, 7, 3) == 2 * (2 * layer + 2 * 3 * 12 * 11)
    assert classifier.forward_flops(2, 3, 7) == 2 * (2 * layer + 2 * 12 * 9)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        pytest.param("language model", "encoder", marks=pytest.mark.slow),
        ("classifier", "cross"),
    ],
)
def test_inspection_captures_one_stack_and_removes_its_heads(name, missing):
    config, _ = FAMILIES[name]
    model = protocol.build(config)
    params = oracle.random_params(model, 0)
    [kind] = model.describe().attention
    neutral = no_interventions(model, 4, 3)

    @jax.jit
    def run(interventions):
        options = {"capture": "full", "interventions": interventions}
        return trace.run(model, params, [4, 7, 5, 2], [1, 5, 8], **options)

    logits, captured = run(neutral)
    assert captured.attention(missing) is None
    rows = captured.attention(kind).weights.sum(-1)  # [L, N, T]
    np.testing.assert_allclose(rows, 1, rtol=1e-5)
    gates = neutral.gates.replace(**{kind: jnp.ones((2, 3)).at[1, 0].set(0.0)})
    without, _ = run(neutral.with_gates(gates))
    assert not np.allclose(without[0], logits[0], atol=1e-3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: LANGUAGE_MODEL.replace(encoder_layers=2), "model.encoder_layers.*no encoder"),
        (lambda: LANGUAGE_MODEL.replace(source_vocab_size=12), "model.source_vocab_size.*no sour"),
        (lambda: CLASSIFIER.replace(decoder_heads=3), "model.decoder_heads.*no decoder"),
        (lambda: LANGUAGE_MODEL.replace(tied_embeddings="none"), "tied_embeddings.*no source"),
        (lambda: CLASSIFIER.replace(tied_embeddings="none"), "tied_embeddings.*no target is"),
        (
            lambda: Config(
                model=CLASSIFIER.replace(source_vocab_size=None), data=DataConfig(packing=True)
            ),
            "data.packing.*'classifier'",
        ),
    ],
)
def test_fields_of_the_missing_stack_are_refused_by_name(config, message):
    with pytest.raises(InputError, match=message):
        config()


# Labels.


def test_a_label_of_several_tokens_is_refused_with_its_location(tmp_path):
    """ "grey wolf" is two words."""
    (tmp_path / "a.en").write_text("the wolf\nthe hen\n" * 20)
    (tmp_path / "a.de").write_text("wolf\nhen\n" * 15 + "wolf\ngrey wolf\n" * 5)
    paths = {
        f"{split}_{side}": str(tmp_path / f"a.{language}")
        for split in ("train", "validation")
        for side, language in (("source", "en"), ("target", "de"))
    }
    config = Config(
        model=CLASSIFIER.replace(vocab_size=7, source_vocab_size=7),
        data=DataConfig(
            dataset="text_files",
            tokenizer="word",
            vocabulary="separate",
            max_length=8,
            bucket_lengths=(8,),
            token_cache=str(tmp_path / "tokens"),
            **paths,
        ),
    )
    rows = sharding.batch_sharding(sharding.make_mesh(config.parallel))
    message = r"a\.de:32: the target has 3 tokens with EOS.*'classifier' predicts at most 2"
    with pytest.raises(InputError, match=message):
        training_data.load(config, None, rows)


def test_a_language_model_warns_of_sources_that_it_does_not_read(tmp_path, caplog):
    paths = {}
    for name, text in (("source", "a b\n" * 20), ("target", "c d\n" * 20)):
        (tmp_path / name).write_text(text)
        paths |= {f"{split}_{name}": str(tmp_path / name) for split in ("train", "validation")}
    config = Config(
        model=LANGUAGE_MODEL.replace(vocab_size=8),
        data=DataConfig(
            dataset="text_files",
            tokenizer="word",
            max_length=8,
            bucket_lengths=(8,),
            token_cache=str(tmp_path / "tokens"),
            **paths,
        ),
    )
    rows = sharding.batch_sharding(sharding.make_mesh(config.parallel))
    training_data.load(config, None, rows)
    assert "reads no source: it learns the targets" in caplog.text
    caplog.clear()
    alone = {f"{split}_source": None for split in ("train", "validation")}
    config = config.replace(data=config.data.replace(empty_sources=True, **alone))
    config = config.replace(model=config.model.replace(vocab_size=6))
    loaded = training_data.load(config, None, rows)
    assert loaded.train.empty == 0 and "reads no source" not in caplog.text


@pytest.mark.slow
def test_antecedents_are_the_annotated_nouns():
    examples = list(antecedents("test"))
    published = "The animal didn't cross the street because it was too "
    targets = {one["source"]: one for one in examples}
    assert targets[published + "tired."]["target"] == "animal"
    assert targets[published + "wide."]["target"] == "street"
    assert {targets[published + word]["subject"] for word in ("tired.", "wide.")} == {"animal"}
    assert all(" it " in f" {one['source'].lower()} " for one in examples)


def test_antecedent_metrics_by_hand():
    examples = [
        {"target": "dog", "subject": "dog", "twin": 1},
        {"target": "hen", "subject": "dog", "twin": 1},
        {"target": "car", "subject": "car", "twin": 2},
        {"target": "bog", "subject": "car", "twin": 2},
        {"target": "cat", "subject": "cat", "twin": -1},
    ]
    values = antecedent_metrics(examples, ["dog", "hen", "car", "car", "dog"])
    assert values == {"antecedent_accuracy": 3 / 5, "subject": 3 / 5, "twin_accuracy": 1 / 2}
    assert antecedent_metrics([{"source": "", "target": "a"}], ["b"]) == {}
