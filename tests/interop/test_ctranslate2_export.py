# SPDX-License-Identifier: Apache-2.0
"""CTranslate2 computes the function of an exported model, and other models are refused by name."""

import re

import jax
import numpy as np
import oracle
import pytest
from families import (
    BAHDANAU,
    CLASSIFIER,
    CONVOLUTIONAL,
    LANGUAGE_MODEL,
)
from test_huggingface_import import PREFIXES, SENTENCES, foreign_target, trained_model

from experiments.configs.pronouns_variants import VARIANTS
from transformer.config import Config, DataConfig, DecodeConfig, TransformerConfig
from transformer.errors import InputError
from transformer.interop import ctranslate2_export
from transformer.models import protocol
from transformer.translator import Translator

ctranslate2 = pytest.importorskip("ctranslate2")

TINY = TransformerConfig(
    vocab_size=13,
    encoder_layers=1,
    decoder_layers=2,
    d_model=24,
    d_ff=10,
    num_heads=4,
    max_relative_position=2,
    position_buckets=4,
    position_max_distance=5,
    max_positions=20,
)
FIELDS = {
    **{name: fields | {"d_ff": 10} for name, fields in VARIANTS.items()},
    "biases": {"attention_bias": True, "output_bias": True, "activation": "gelu"},
    "gelu_tanh": {"activation": "gelu_tanh", "sinusoid_layout": "halves"},
    "offset": {"position_offset": 2, "sinusoid_layout": "halves_paper", "norm": "pre"},
    "swish": {"activation": "swish", "embedding_scale": "positions"},
    "reglu": {"activation": "reglu", "embedding_scale": "none", "tied_embeddings": "none"},
    "head size": {"d_k": 5, "d_v": 5, "encoder_heads": 2, "decoder_heads": 3},
    "rotary head size": {"positions": "rotary", "d_k": 4, "d_v": 4, "norm": "pre"},
    "relative, grouped": {"positions": "shaw", "num_kv_heads": 2, "attention_bias": True},
    "source vocabulary": {"source_vocab_size": 9},
    "shared layers": {"shared_layers": True, "norm_kind": "rms_norm", "norm": "pre"},
    "epsilon": {"norm_epsilon": 0.3},
    "special ids": {"pad_id": 3, "bos_id": 0, "eos_id": 1, "unk_id": 2},
}
REFUSED = {
    "alibi": "model.positions is 'alibi', but its encoder has no ALiBi",
    "window": "model.attention_window is 9, but its window is causal",
    "additive": "model.attention_score is 'additive', but it has dot products only",
    "universal": "model.timestep_encoding is True, but its layers add no encodings",
}
SOURCES = [[4, 7, 5, 8, 6], [6]]
TARGETS = [[5, 9, 12, 10, 7, 11], []]


def config_of(**fields):
    vocabulary = "separate" if "source_vocab_size" in fields else "shared"
    return Config(
        model=TINY.replace(**fields),
        data=DataConfig(vocabulary=vocabulary, max_length=12, bucket_lengths=(12,)),
        decode=DecodeConfig(extra_length=4),
    )


def pieces_of(model, size):
    ids = model.special_ids
    special = {ids.pad: "<pad>", ids.bos: "<s>", ids.eos: "</s>", ids.unk: "<unk>"}
    return [special.get(i, f"w{i}") for i in range(size)]


def converted(config, params, folder, quantization=None):
    """The loaded export, and the subwords of source and target."""
    model = config.model
    pieces = [pieces_of(model, model.vocab_size_of(side)) for side in ("source", "target")]
    spec = ctranslate2_export.build_spec(config, jax.device_get(params), *pieces)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))
    return ctranslate2.Translator(str(folder)), *pieces


def exact_log_probs(params, model, source, target):
    """The log-probabilities of the next token after BOS and after each target token, [T+1, V]."""
    eos, target_in = model.eos_id, [[model.bos_id, *target]]
    logits = oracle.logits(oracle.arrays(params), model, [[*source, eos]], target_in)[0]
    return np.array([oracle.log_softmax(row) for row in logits])


@pytest.mark.parametrize(
    "name",
    [
        name if name == "paper" else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(FIELDS.keys() - REFUSED.keys())
    ],
)
def test_log_probabilities_and_greedy_search_are_those_of_the_oracle(name, tmp_path, monkeypatch):
    config = config_of(**FIELDS[name])
    model = config.model
    monkeypatch.setattr(oracle, "PAD", model.pad_id)
    ctranslate2_export.require_supported(config)
    params = oracle.random_params(protocol.build(model), seed=0)
    translator, source_pieces, target_pieces = converted(config, params, tmp_path)
    sources = [[source_pieces[i] for i in source] for source in SOURCES]
    targets = [[target_pieces[i] for i in target] for target in TARGETS]
    for source, target, scored in zip(
        SOURCES, TARGETS, translator.score_batch(sources, targets), strict=True
    ):
        rows = exact_log_probs(params, model, source, target)
        expected = [row[i] for row, i in zip(rows, [*target, model.eos_id], strict=True)]
        np.testing.assert_allclose(scored.log_probs, expected, atol=1e-4)

    forbidden = [target_pieces[model.pad_id]], [target_pieces[model.bos_id]]
    options = {"min_decoding_length": 0, "max_decoding_length": 6, "beam_size": 1}
    results = translator.translate_batch(sources, suppress_sequences=forbidden, **options)
    for source, result in zip(SOURCES, results, strict=True):
        tokens = [target_pieces.index(piece) for piece in result.hypotheses[0]]
        rows = exact_log_probs(params, model, source, tokens)
        rows[:, [model.pad_id, model.bos_id]] = -np.inf
        best = rows.argmax(-1).tolist()
        assert best[: len(tokens)] == tokens
        assert len(tokens) == 6 or best[-1] == model.eos_id


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_variant_that_it_cannot_hold_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"no exact counterpart in CTranslate2: {REFUSED[name]}"):
        ctranslate2_export.require_supported(config_of(**FIELDS[name]))


def test_all_reasons_are_named_at_once():
    with pytest.raises(InputError, match="model.positions is 'alibi'.*model.d_v is 5, but"):
        ctranslate2_export.require_supported(config_of(positions="alibi", d_v=5))


@pytest.mark.parametrize(
    "model", [BAHDANAU, CONVOLUTIONAL, LANGUAGE_MODEL, CLASSIFIER], ids=lambda model: model.family
)
def test_other_families_are_refused_by_name(model):
    vocabulary = "separate" if model.source_vocab_size else "shared"
    config = Config(
        model=model, data=DataConfig(vocabulary=vocabulary, max_length=5, bucket_lengths=(5,))
    )
    with pytest.raises(InputError, match=f"model.family is '{model.family}', whose .* has no"):
        ctranslate2_export.require_supported(config)


ERRORS = {"int8_float32": 0.1, "int16": 0.02, "float32": 0.01}
"""Of log-probabilities, by what CTranslate2 computes in: where a processor lacks int16, in int8."""


@pytest.mark.parametrize(
    ("quantization", "share"), [("int8", 0.32), ("int16", 0.55), ("float16", 0.55)]
)
def test_quantized_weights_are_smaller_and_change_scores_little(quantization, share, tmp_path):
    config = config_of(d_model=64, d_ff=128)
    params = oracle.random_params(protocol.build(config.model), seed=0)
    # As small as those of trained models.
    params = jax.tree.map(lambda leaf: leaf * 0.3 if leaf.ndim > 1 else leaf, params)
    sizes, scores = [], []
    for kind in (None, quantization):
        folder = tmp_path / str(kind)
        folder.mkdir()
        translator, pieces, _ = converted(config, params, folder, kind)
        sources, targets = (
            [[pieces[i] for i in row] for row in rows] for rows in (SOURCES, TARGETS)
        )
        # The table of positions stays in float32 beside integers.
        positions = 0 if quantization == "float16" else 512 * 64 * 4
        sizes.append((folder / "model.bin").stat().st_size - positions)
        scores.append(
            np.concatenate([s.log_probs for s in translator.score_batch(sources, targets)])
        )
    assert sizes[1] < share * sizes[0]
    assert not np.array_equal(*scores)
    np.testing.assert_allclose(*scores, atol=ERRORS[translator.compute_type])


CARDS = {
    "plain": ({}, {}),
    "limit": ({"max_length": 6}, {}),
    "constraints": ({"min_length": 9, "block_ngrams": 2}, {}),
    "prefixes": ({}, PREFIXES),
    "prefixes and constraints": ({"min_length": 9, "block_ngrams": 1}, PREFIXES),
    "pieces of the source": ({"block_ngrams": 1}, foreign_target() | {"unknown": 1.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
def test_the_code_of_the_card_translates_with_an_imported_model(name, tmp_path, capsys):
    search, fields = CARDS[name]
    trained = trained_model(DecodeConfig(**{"max_length": 12, "beams": 1} | search), **fields)
    export = ctranslate2_export.export(trained, tmp_path)
    code = re.search("```python\n(.*)```", export.usage, re.DOTALL)[1]
    translations = Translator(trained.config, trained.params, trained.vocabularies)(SENTENCES)
    texts = [best.text for best in translations]
    assert len({*texts}) > 1
    if name == "pieces of the source":
        assert any(" \u2047 " in text and " tired" in text for text in texts)
    for sentence, text in zip(SENTENCES, texts, strict=True):
        replaced = code.replace("DIRECTORY", str(tmp_path)).replace('"a sentence"', repr(sentence))
        exec(replaced, {})
        assert capsys.readouterr().out == f"{text}\n"


MINIMUM = "`min_decoding_length` must be 0"
LONGEST = "Translations have at most 114 tokens with EOS, whatever the length of the source."


def test_a_card_notes_the_differences_of_its_search_only(tmp_path):
    for search, notes, lines in (
        ({}, (True, True), ("max_decoding_length=113", "min_decoding_length=0")),
        ({"max_length": 9}, (True, False), ("max_decoding_length=8",)),
        ({"min_length": 3}, (False, True), ("min_decoding_length=3",)),
        ({"min_length": 300}, (False, True), ("min_decoding_length=113",)),
        ({"max_length": 1}, (True, False), ("max_decoding_length=1",)),
        ({"block_ngrams": 4}, (True, True), ("no_repeat_ngram_size=4",)),
    ):
        folder = tmp_path / str(search)
        folder.mkdir()
        export = ctranslate2_export.export(trained_model(DecodeConfig(**search)), folder)
        found = "\n".join(export.differences)
        assert (MINIMUM in found, LONGEST in found) == notes
        assert all(f"    {line},\n" in export.usage for line in lines)
        assert ("no_repeat_ngram_size" in export.usage) == ("block_ngrams" in search)
