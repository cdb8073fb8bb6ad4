# SPDX-License-Identifier: Apache-2.0
"""Every line has its translation, in order, independently of the other lines."""

import concurrent.futures
import logging
import threading

import numpy as np
import oracle
import pytest
import sacrebleu
from tiny_translator import CONFIG, LONGER, SENTENCES, TOKENIZER, close, translator_with

from transformer import device_memory
from transformer.arrays import SpecialIds
from transformer.checkpoints.workdir_files import load_config
from transformer.decoding import generate
from transformer.errors import InputError
from transformer.translator import NO_TRANSLATION, Translation, Translator

EOS_ID, BOS_ID = SpecialIds().eos, SpecialIds().bos
TARGETS = ["a b", "", "c d e f g a b c d e f g a", "b", "g", "", "a a a", "f", "b a", "c"]


@pytest.fixture(scope="module")
def translator():
    """A model with random parameters over seven words."""
    return translator_with()


@pytest.fixture(scope="module")
def translations(translator):
    """Translations of all sentences together."""
    return translator(SENTENCES)


def log_prob(translator, source, target_ids, start=0):
    """log P of a target from a position on, by the NumPy oracle, without padding or batch."""
    [source_ids] = translator.tokenizer.encode([source])
    [rows] = oracle.logits(
        oracle.arrays(translator.params),
        translator.config.model,
        [source_ids],
        [[BOS_ID, *target_ids[:-1]]],
    )
    pairs = list(zip(rows, target_ids, strict=True))[start:]
    return sum(float(oracle.log_softmax(row)[token]) for row, token in pairs)


@pytest.fixture(scope="module")
def nbest(translator):
    """The three best of each of the longer sentences."""
    return dict(zip(LONGER, translator.nbest(LONGER, 3), strict=True))


def test_a_sentence_is_translated_as_if_it_were_alone(translator, translations):
    distinct = {translation.text for translation in translations}
    assert len(distinct) >= 5, "otherwise the tests here would show little"
    assert len(translations) == len(SENTENCES)
    for sentence, together in zip(SENTENCES, translations, strict=True):
        [alone] = translator([sentence])
        close(alone, together)


def test_translations_are_in_the_order_of_the_input(translator, translations):
    order = np.random.default_rng(1).permutation(len(SENTENCES))
    shuffled = translator([SENTENCES[index] for index in order])
    for index, translation in zip(order, shuffled, strict=True):
        close(translation, translations[index])


def test_empty_lines_and_lines_of_spaces_have_the_empty_translation(translator):
    actual = translator(["", "a", " ", "   "])
    empty = Translation("", 0.0, 0.0, ())
    assert [translation == empty for translation in actual] == [True, False, True, True]
    assert translator.nbest(["", " "], 3) == [[empty] * 3] * 2


def test_no_sentences_have_no_translations(translator):
    assert translator([]) == []
    assert translator.score([], []) == []


def test_a_long_sentence_is_cut_to_its_first_tokens_with_a_warning(translator, caplog):
    long, kept = "a b c d e f g a b c d", "a b c d e f g a b"
    with caplog.at_level(logging.WARNING, logger="transformer"):
        [first, cut] = translator.nbest(["a", long], 1, first_line=7)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "line 8 has 12 tokens" in warning
    assert "first 9" in warning
    assert "data.max_length = 10" in warning
    caplog.clear()
    close(cut[0], translator([kept])[0])
    close(first[0], translator(["a"])[0])
    assert not caplog.records


@pytest.mark.parametrize(
    ("decode", "most"),
    [
        pytest.param({"extra_length": 4}, [7, 6, 6], marks=pytest.mark.slow),
        ({"max_length": 2}, [2, 2, 2]),
    ],
    ids=["source + 4", "2"],
)
def test_a_translation_has_at_most_the_maximum_length(decode, most):
    actual = translator_with(beams=1, **decode)(["a b", "g", "e", ""])
    lengths = [len(translation.tokens) for translation in actual]
    assert all(1 <= length <= limit for length, limit in zip(lengths, most, strict=False))
    assert lengths[3] == 0
    assert any(map(int.__eq__, lengths, most)), "otherwise this test shows little"


def test_tokens_end_with_eos_and_decode_to_the_text(translator, translations):
    for sentence, translation in zip(SENTENCES, translations, strict=True):
        if sentence:
            assert translation.tokens.count(EOS_ID) == 1
            assert translation.tokens[-1] == EOS_ID
            assert translator.tokenizer.decode(translation.tokens) == translation.text


def test_the_best_results_are_sorted_and_distinct_and_the_first_is_the_translation(
    nbest, translations
):
    first = dict(zip(SENTENCES, translations, strict=True))
    for sentence, results in nbest.items():
        scores = [result.score for result in results]
        assert scores == sorted(scores, reverse=True)
        assert len({result.tokens for result in results}) == 3
        close(results[0], first[sentence])


def test_more_results_than_beams_raise_an_error_with_both_numbers(translator):
    for results in (4, 0, -1):
        with pytest.raises(InputError, match=rf"{results} translations.*decode\.beams is 3"):
            translator.nbest(["a"], results)


def test_scores_are_log_probabilities_of_the_model_and_include_eos(translator):
    scored = translator.score(SENTENCES, TARGETS)
    for source, target, (total, tokens) in zip(SENTENCES, TARGETS, scored, strict=True):
        [ids] = translator.tokenizer.encode([target])
        assert tokens == len(ids) == len(target.split()) + 1
        assert ids[-1] == EOS_ID
        assert total == pytest.approx(log_prob(translator, source, ids), abs=1e-4)


def test_a_sentence_pair_has_the_same_score_alone(translator):
    together = translator.score(SENTENCES, TARGETS)
    for index in (0, 1, 2, 4):
        [alone] = translator.score([SENTENCES[index]], [TARGETS[index]])
        assert alone == pytest.approx(together[index], abs=1e-5)


def test_sentences_beyond_the_maximum_length_are_scored_completely(translator, caplog):
    source, target = " ".join("abcdefg" * 3), " ".join("gfedcba" * 4)
    [(total, tokens)] = translator.score([source], [target])
    [ids] = translator.tokenizer.encode([target])
    assert tokens == 29
    assert total == pytest.approx(log_prob(translator, source, ids), abs=1e-3)
    assert not caplog.records


def test_search_and_scoring_agree_on_the_log_probability(translator, nbest):
    for sentence, results in nbest.items():
        for result in results:
            expected = log_prob(translator, sentence, result.tokens)
            assert result.log_prob == pytest.approx(expected, abs=1e-4)
    pairs = [(sentence, result) for sentence in nbest for result in nbest[sentence]]
    encoded = translator.tokenizer.encode([result.text for _, result in pairs])
    same = [(s, r) for (s, r), ids in zip(pairs, encoded, strict=True) if r.tokens == tuple(ids)]
    assert len(same) >= 4, "texts that encode to the tokens from which they were decoded"
    scored = translator.score([s for s, _ in same], [result.text for _, result in same])
    for (_, result), (total, tokens) in zip(same, scored, strict=True):
        assert result.log_prob == pytest.approx(total, abs=1e-4)
        assert len(result.tokens) == tokens


def test_unequal_numbers_of_sources_and_targets_raise_an_error_with_both(translator):
    for sources, targets in ((1, 2), (2, 1), (0, 1)):
        with pytest.raises(InputError, match=f"{sources} sources and {targets} targets"):
            translator.score(["a"] * sources, ["a"] * targets)


def test_a_missing_workdir_is_named(tmp_path):
    with pytest.raises(InputError, match="does not exist; train first") as raised:
        Translator.from_workdir(tmp_path / "missing")
    assert str(tmp_path / "missing") in str(raised.value)


def test_a_directory_without_a_config_is_not_a_workdir(tmp_path):
    with pytest.raises(InputError, match="is this a workdir of train") as raised:
        load_config(tmp_path)
    assert str(tmp_path / "config.json") in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{\n  "model": {,\n', ":2: not JSON"),
        (b"", ":1: not JSON"),
        (b"[]", "one JSON object"),
        (b'{"model": {"layers": 2}}', "unknown config field 'model.layers'"),
        (b'{"model": {"d_model": "big"}}', "model.d_model is 'big', but must be a whole number"),
        (b'{"model": 3}', "model is 3, but must be a group of fields"),
        (b'{"decode": {"beams": 0}}', "decode.beams is 0, but must be at least 1"),
        (b"\xff\xfe", "cannot be read"),
    ],
    ids=["cut", "empty", "list", "unknown", "type", "group", "value", "bytes"],
)
def test_an_invalid_config_raises_an_error_that_names_the_file(tmp_path, text, words):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(InputError) as raised:
        load_config(tmp_path)
    assert str(tmp_path / "config.json") in str(raised.value)
    assert words in str(raised.value)


def test_a_workdir_without_tokenizer_or_checkpoints_is_named(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG.to_json(), encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.model"):
        Translator.from_workdir(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(TOKENIZER.model)
    with pytest.raises(InputError, match="has no checkpoints"):
        Translator.from_workdir(tmp_path)


# From Python.


def test_a_string_has_one_translation_and_an_iterable_a_list(translator, translations):
    close(translator("b c"), translations[2])
    actual = translator(sentence for sentence in SENTENCES)
    assert isinstance(actual, list)
    for one, other in zip(actual, translations, strict=True):
        close(one, other)
    [first, second] = translator.nbest("b c", 2)
    close(first, translations[2])
    assert second.score < first.score
    assert translator.nbest("b c", 1, prefixes="g")[0].text.startswith("g")
    assert translator("") == Translation("", 0.0, 0.0, ())


def test_a_string_is_not_taken_for_several_of_one_character(translator):
    """All but the last have as many characters as there should be texts."""
    for call in (
        lambda: translator.score("ab", ["a", "b"]),
        lambda: translator.score(["a", "b"], "ab"),
        lambda: translator.nbest(["a", "b"], 1, prefixes="ab"),
        lambda: translator.continuations("ab"),
    ):
        with pytest.raises(InputError, match="is the string 'ab', but must be a list"):
            call()
    with pytest.raises(InputError, match="prefixes is a list, but sentences one string"):
        translator.nbest("a", 1, prefixes=["b"])


def test_a_translation_is_one_line(translator, monkeypatch):
    """A vocabulary of text with line ends has them."""
    monkeypatch.setattr(type(translator.vocabularies.target), "decode", lambda *_: "b\nc")
    assert translator("b c").text == "b c"


def test_decoding_options_are_arguments_of_a_call(translator, translations):
    close(translator("b c", beams=1), translator_with(beams=1)("b c"))
    close(translator("b c"), translations[2])
    [seven] = translator(["b c"], method="sample", seed=7)
    [expected] = translator_with(method="sample", seed=7)(["b c"])
    close(seven, expected)
    with pytest.raises(InputError, match=r"'decode\.beam'; did you mean 'decode\.beams'\?"):
        translator("b c", beam=2)
    with pytest.raises(InputError, match=r"decode\.beams is 0, but must be at least 1"):
        translator("b c", beams=0)


def test_threads_translate_with_one_translator(translator, translations):
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            for one, other in zip(threads.map(translator, SENTENCES), translations, strict=True):
                close(one, other)


def test_batches_are_searched_side_by_side_and_results_stay_in_order(monkeypatch):
    """Each of two searches waits for the other to begin, which fails if one follows the other."""
    together = threading.Barrier(2, timeout=60)
    decode = generate.decode

    def meeting(*arguments, **options):
        together.wait()
        return decode(*arguments, **options)

    alone, two = (translator_with(batch_size=1) for _ in range(2))
    alone.search.threads, two.search.threads = 1, 2
    sentences = ["a b c", "a"]  # a batch each
    expected = alone(sentences)
    monkeypatch.setattr(generate, "decode", meeting)
    for one, other in zip(two(sentences), expected, strict=True):
        close(one, other)


def test_the_first_searches_have_different_shapes_and_results_stay_in_order(monkeypatch):
    shapes, decode = [], generate.decode

    def recorded(params, source, *arguments, **options):
        shapes.append(source.shape)
        return decode(params, source, *arguments, **options)

    translator = translator_with(batch_size=1)
    translator.search.threads = 1
    sentences = ["a b c d e", "a b c d f", "a", "b"]  # a batch each; the buckets are 4 and 10
    expected = [translator(sentence) for sentence in sentences]
    monkeypatch.setattr(generate, "decode", recorded)
    for one, other in zip(translator(sentences), expected, strict=True):
        close(one, other)
    assert shapes == [(1, 10), (1, 4), (1, 10), (1, 4)]


@pytest.mark.slow
def test_what_is_compiled_is_logged_and_warming_up_leaves_nothing_to_compile(caplog):
    """The buckets are 4 and 10, and batches have 1 or 3 rows."""
    caplog.set_level(logging.INFO, logger="transformer")
    fresh = translator_with(batch_size=6, extra_length=3)
    fresh.search.threads = 2
    fresh.warm_up()
    logged = sorted(record.getMessage() for record in caplog.records)
    assert logged == [
        f"compiling the search for a batch of {rows} x {length} tokens"
        for rows, length in ((1, 10), (1, 4), (3, 10), (3, 4))
    ]
    caplog.clear()
    fresh(SENTENCES)
    fresh("a")
    assert caplog.records == []


@pytest.mark.parametrize("decode", [{}, {"method": "sample", "seed": 7}])
def test_a_search_beyond_the_memory_is_refused_before_it_is_compiled(monkeypatch, decode):
    monkeypatch.setattr(device_memory, "available_bytes", lambda: 100_000)
    small, large = translator_with(**decode), {"beams": 999}
    small("a")
    with pytest.raises(InputError) as error:
        small.nbest("a", 999, **large)
    batch = "decoding a batch of 1 x 4 tokens with 999 hypotheses a sentence"
    assert f"{batch} needs at least 0.0 GiB on each device, which has 0.0" in str(error.value)
    assert "lower decode.beams, decode.batch_size, or the longest output" in str(error.value)


# Sampling and minimum Bayes risk.

SHORT = ["a", "b c", "", "g", "d a", "e", "b c"]
"""Sentences of similar length, so that few programs are compiled."""


def sampler(**decode):
    """A translator that samples from a sharpened distribution."""
    return translator_with(method="sample", temperature=0.7, top_k=5, **decode)


@pytest.fixture(scope="module")
def samples():
    """Three samples for each of the short sentences."""
    return sampler(seed=7, batch_size=8).nbest(SHORT, 3)


@pytest.mark.slow
def test_samples_depend_neither_on_the_batch_size_nor_on_the_other_sentences(samples):
    alone = sampler(seed=7, batch_size=1).nbest(SHORT, 3)
    rest = sampler(seed=7, batch_size=8).nbest(SHORT[3:], 3, first_line=4)
    for one, other in [*zip(samples, alone, strict=True), *zip(samples[3:], rest, strict=True)]:
        for a, b in zip(one, other, strict=True):
            close(a, b)


def test_samples_depend_on_the_seed_and_on_the_line_number(samples):
    other = sampler(seed=8, batch_size=8).nbest(SHORT, 3)
    assert sum(a != b for a, b in zip(samples, other, strict=True)) > 3
    assert samples[1] != samples[6], "the same sentence twice"


def test_minimum_bayes_risk_returns_the_sample_most_similar_to_the_others():
    """With the same seed the samples are those of decode.method=sample."""
    by_risk = translator_with(method="mbr", mbr_samples=6, batch_size=8)
    chosen = by_risk.nbest(SHORT, 6)
    drawn = translator_with(method="sample", beams=6, batch_size=8).nbest(SHORT, 6)
    chrf = sacrebleu.CHRF()
    for sentence, results, samples in zip(SHORT, chosen, drawn, strict=True):
        if not sentence:
            assert results == samples
            continue
        first, means = {}, {}
        for index, one in enumerate(samples):
            others = samples[:index] + samples[index + 1 :]
            scores = [chrf.sentence_score(one.text, [other.text]).score for other in others]
            first.setdefault(one.text, one)
            means.setdefault(one.text, sum(scores) / 5)
        actual = [result for result in results if result != NO_TRANSLATION]
        assert {result.text: pytest.approx(result.score) for result in actual} == means
        assert actual == sorted(actual, key=lambda result: -result.score)
        assert all(result.tokens == first[result.text].tokens for result in actual)
        assert results[len(actual) :] == [NO_TRANSLATION] * (6 - len(actual))


def test_more_results_than_samples_raise_an_error_with_both_numbers():
    with pytest.raises(InputError, match=r"7 translations .* decode\.mbr_samples is 6"):
        translator_with(method="mbr", mbr_samples=6).nbest(["a"], 7)


def test_missing_results_are_marked_as_no_translation():
    [results] = translator_with(max_length=1).nbest(["a b"], 3)
    assert [result == NO_TRANSLATION for result in results] == [False, True, True]
    assert (NO_TRANSLATION.text, NO_TRANSLATION.log_prob) == ("", -np.inf)


# Forced prefixes and other constraints.

PREFIXES = ["b", "", "c c", "a a a", "  ", "f ", ""]


@pytest.fixture(scope="module")
def constrained():
    """A translator with outputs of at least two tokens, no bigram twice."""
    return translator_with(block_ngrams=2, min_length=2, batch_size=8)


def test_a_translation_begins_with_its_prefix_and_its_score_is_of_what_follows(constrained):
    actual = constrained.nbest(SHORT, 2, prefixes=PREFIXES)
    for sentence, prefix, results in zip(SHORT, PREFIXES, actual, strict=True):
        begin = prefix.split()
        for result in results if sentence else ():
            words = result.text.split()
            assert words[: len(begin)] == begin
            assert len(words) >= 2
            pairs = list(zip(words, words[1:], strict=False))
            assert len(set(pairs)) == len(pairs) - (prefix == "a a a")
            expected = log_prob(constrained, sentence, result.tokens, len(begin))
            assert result.log_prob == pytest.approx(expected, abs=1e-4)
    assert actual[2] == [Translation("", 0.0, 0.0, ())] * 2, (
        "the translation of an empty sentence is empty"
    )


def test_empty_prefixes_force_nothing(constrained):
    forced = constrained.nbest(SHORT, 2, prefixes=[""] * len(SHORT))
    for one, other in zip(forced, constrained.nbest(SHORT, 2), strict=True):
        for a, b in zip(one, other, strict=True):
            close(a, b)


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ({}, "line 8: the prefix has 6 tokens, but the longest output has 6 .*extra_length"),
        ({"max_length": 5}, "line 8: the prefix has 6 tokens, .* has 5 .*decode.max_length"),
    ],
)
def test_a_prefix_longer_than_the_output_raises_an_error_with_its_line(decode, words):
    prefixes = ["b", "a b c d e f", "a b c d e f"]
    with pytest.raises(InputError, match=words):
        translator_with(**decode).nbest(["a", "", "b"], 1, 6, prefixes)
    with pytest.raises(InputError, match="3 sentences and 2 prefixes"):
        translator_with(**decode).nbest(["a", "", "b"], 1, prefixes=["", ""])
