# SPDX-License-Identifier: Apache-2.0
"""A search over a shortlist returns what NumPy finds over the listed words alone, for each sentence
independently of the others.
"""

import dataclasses
import functools

import jax
import numpy as np
import oracle
import pytest
import search_oracle
from test_ensembles import member
from test_translator import CONFIG, SENTENCES, TOKENIZER, close

from transformer.arrays import SpecialIds
from transformer.config import ClassifierConfig, Config, DecodeConfig, ParallelConfig
from transformer.decoding import generate, shortlist
from transformer.decoding.decode_loop import MIN_BATCH_TO_SHRINK
from transformer.decoding.shortlist import Shortlist
from transformer.errors import InputError
from transformer.inspection import search_log
from transformer.models import base, ensemble
from transformer.text.lexicon import MAX_TRANSLATIONS, Lexicon
from transformer.trained_model import abstract_params
from transformer.translator import Translator

EOS_ID, UNK_ID = SpecialIds().eos, SpecialIds().unk
SIZE = CONFIG.model.vocab_size
SEARCHES = {
    "beam search": {},
    "greedy search": {"beams": 1},
    "diverse beams and constraints": {
        "beams": 4,
        "groups": 2,
        "min_length": 2,
        "block_ngrams": 2,
    },
}


def all_but_one_slow(quick):
    """The searches as parameters; all but one are slow, since each is compiled separately."""
    return [
        name if name == quick else pytest.param(name, marks=pytest.mark.slow) for name in SEARCHES
    ]


def lexicon_of(translations):
    """A lexicon in which word w has the translations w + 1, w + 2, ... of the seven words."""
    table = np.zeros((SIZE, MAX_TRANSLATIONS), np.int32)
    for word in range(4, SIZE):
        for rank in range(translations):
            table[word, rank] = 4 + (word - 4 + rank + 1) % (SIZE - 4)
    return Lexicon(table, np.array([EOS_ID]))


def translator(lexicon, shortlist=2, model=None, params=None, parallel=None, **decode):
    """A translator of the tiny model with this lexicon."""
    config = CONFIG.replace(
        decode=CONFIG.decode.replace(shortlist=shortlist, **decode),
        parallel=parallel or ParallelConfig(),
    )
    if model is None:
        model = base.build(config.model)
        params = oracle.random_params(model, seed=3)
    return Translator(config, params, TOKENIZER, model, lexicon=lexicon)


@pytest.fixture(scope="module")
def few():
    """Lists of EOS, each word of the source and the two after it."""
    return lexicon_of(2)


def renormalized(next_words, listed):
    """The same distribution over the listed words alone."""

    def log_probs(prefix):
        row = np.where(listed, next_words(prefix), -np.inf)
        return row - np.logaddexp.reduce(row)

    return log_probs


def numpy_search(next_words, listed, source, config):
    """Results of beam search in NumPy: (score, log P, tokens), best first."""
    results, _ = search_oracle.beam(
        renormalized(next_words, listed),
        len(source) + config.extra_length,
        config.beams,
        config.beams,
        config.length_penalty,
        config.alpha,
    )
    return results


def test_a_shortlist_contains_the_lists_of_all_sentences(monkeypatch):
    monkeypatch.setattr(shortlist, "MIN_SIZE", 8)
    listed = np.zeros((2, 40), bool)
    listed[:, [*range(4), 33]] = listed[0, 9] = listed[1, 7] = True
    batch = Shortlist.from_lists(listed)
    assert batch.ids.tolist() == [0, 1, 2, 3, 7, 9, 33, 33], "the last one is repeated"
    assert np.flatnonzero(batch.listed[0]).tolist() == [0, 1, 2, 3, 5, 6]
    assert np.flatnonzero(batch.listed[1]).tolist() == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize(
    ("count", "size"), [(5, 512), (512, 512), (513, 1024), (4000, 4096), (4097, 8000)]
)
def test_shortlists_come_in_few_sizes(count, size):
    assert Shortlist.from_lists(np.arange(8000)[None] < count).ids.shape == (size,)


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_results_are_those_of_a_search_over_the_listed_words_alone(few, beams):
    searcher = translator(few, beams=beams)
    params = oracle.arrays(searcher.params)
    sentences = ["a b", "c", "g a g"]
    for sentence, results in zip(sentences, searcher.nbest(sentences, beams), strict=True):
        [source] = TOKENIZER.encode([sentence])
        [listed] = few.listed(np.array([source]), 2)
        next_words = search_oracle.next_words(params, searcher.config.model, source)
        expected = numpy_search(next_words, listed, source, searcher.config.decode)
        assert [result.tokens for result in results] == [tokens for _, _, tokens in expected]
        for result, (score, log_prob, _) in zip(results, expected, strict=True):
            np.testing.assert_allclose(
                [result.score, result.log_prob], [score, log_prob], atol=1e-5
            )
            assert all(listed[token] for token in result.tokens)


@pytest.mark.slow
def test_an_ensemble_averages_probabilities_renormalized_over_the_list(few):
    models, params = zip(*map(member, (0, 1)), strict=True)
    searcher = translator(few, 2, *ensemble.join(list(models), list(params)))
    sentences = ["a b", "g a g"]
    for sentence, results in zip(sentences, searcher.nbest(sentences, 3), strict=True):
        [source] = TOKENIZER.encode([sentence])
        [listed] = few.listed(np.array([source]), 2)
        each = [
            renormalized(search_oracle.next_words(oracle.arrays(one), model.config, source), listed)
            for model, one in zip(models, params, strict=True)
        ]

        def mean(prefix, each=each):
            with np.errstate(divide="ignore"):
                return np.log(np.mean([np.exp(one(prefix)) for one in each], axis=0))

        expected = numpy_search(mean, listed, source, searcher.config.decode)
        assert [result.tokens for result in results] == [tokens for _, _, tokens in expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", all_but_one_slow("beam search"))
def test_a_list_of_all_words_changes_no_translation(name):
    everything = lexicon_of(SIZE - 4)
    decode = SEARCHES[name]
    listed, full = (
        translator(everything, number, **decode)(SENTENCES) for number in (MAX_TRANSLATIONS, None)
    )
    for one, other in zip(listed, full, strict=True):
        close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", all_but_one_slow("diverse beams and constraints"))
def test_a_translation_does_not_depend_on_the_other_sentences(few, name):
    searcher = translator(few, **SEARCHES[name])
    together = searcher(SENTENCES)
    for row in (0, 2, 7):
        [alone] = searcher.nbest(SENTENCES[row : row + 1], 1, first_line=1 + row)
        close(together[row], alone[0])


@pytest.mark.slow
def test_lists_stay_with_their_sentences_when_finished_ones_are_dropped(few):
    sentences = [*SENTENCES, *(f"{sentence} a" for sentence in SENTENCES)]
    together, apart = (
        translator(few, batch_size=size)(sentences)
        for size in (MIN_BATCH_TO_SHRINK + 4, MIN_BATCH_TO_SHRINK // 2)
    )
    for one, other in zip(together, apart, strict=True):
        close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [
        {"data": 3},
        pytest.param(
            {"model": 2, "preset": "tensor", "rules": ("vocab=",)}, marks=pytest.mark.slow
        ),
    ],
)
def test_translations_are_the_same_on_every_mesh(few, parallel):
    one = translator(few)(SENTENCES)
    many = translator(few, parallel=ParallelConfig(**parallel))(SENTENCES)
    for some, others in zip(many, one, strict=True):
        close(some, others)


@pytest.mark.slow
def test_a_prefix_may_contain_words_that_are_not_listed(few):
    searcher = translator(few)
    free, forced = searcher(["a"]), searcher.nbest(["a"], 1, prefixes=["g f"])[0]
    [prefix] = TOKENIZER.encode(["g f"])
    assert not set(free[0].tokens) & set(prefix[:-1])
    assert list(forced[0].tokens[:2]) == prefix[:-1]


def test_if_no_listed_word_may_follow_the_translation_ends_before_the_minimum_length():
    """The list is the special ids and the source word, none of which may occur twice."""
    [actual] = translator(lexicon_of(0), min_length=4, block_ngrams=1)(["a"])
    [[word, end]] = TOKENIZER.encode(["a"])
    assert sorted(actual.tokens[:-1]) == [UNK_ID, word]
    assert actual.tokens[-1] == end


@pytest.mark.slow
def test_logits_are_computed_for_the_listed_words_only(few):
    """No matmul of the search is as wide as the vocabulary."""
    config = CONFIG.replace(decode=CONFIG.decode.replace(max_length=6))
    model = base.build(config.model)
    source = np.array([[4, 5, EOS_ID]])
    lists = Shortlist.from_lists(few.listed(source, 2))
    lists = Shortlist(lists.ids[:9], lists.listed[:, :9])
    options = {"model": model, "config": config.decode, "num_results": 1, "max_length": 6}

    def widths(shortlist):
        search = functools.partial(generate.search, **options)
        jaxpr = jax.make_jaxpr(search)(abstract_params(config), source, None, None, shortlist)
        matmuls = [one for one in oracle.equations(jaxpr) if one.primitive.name == "dot_general"]
        return {one.outvars[0].aval.shape[-1] for one in matmuls}

    assert SIZE in widths(None)
    with_shortlist = widths(lists)
    assert 9 in with_shortlist
    assert SIZE not in with_shortlist


def test_a_shortlist_needs_a_lexicon():
    with pytest.raises(InputError, match=r"decode\.shortlist is 2, but no lexicon is given"):
        translator(None)


def test_a_shortlist_may_use_all_translations_of_a_lexicon():
    assert DecodeConfig(shortlist=MAX_TRANSLATIONS).shortlist == MAX_TRANSLATIONS


@pytest.mark.parametrize("number", [0, MAX_TRANSLATIONS + 1])
def test_an_invalid_number_of_translations_raises_an_error(number):
    with pytest.raises(InputError, match=f"decode.shortlist.*{number}|{number}.*shortlist"):
        DecodeConfig(shortlist=number).validate()


@pytest.mark.parametrize("method", ["sample", "mbr"])
def test_shortlists_require_beam_search(method):
    with pytest.raises(InputError, match=rf"shortlist.*left out with decode.method={method!r}"):
        DecodeConfig(method=method, shortlist=20)


def test_labels_are_not_chosen_from_a_shortlist():
    with pytest.raises(InputError, match=r"decode\.shortlist is 5, but .* 'classifier' has labels"):
        Config(model=ClassifierConfig(), decode=DecodeConfig(shortlist=5))


def test_a_search_over_a_shortlist_cannot_be_recorded():
    model = base.build(CONFIG.model)
    decode = dataclasses.replace(CONFIG.decode, shortlist=3)
    with pytest.raises(InputError, match=r"decode\.shortlist is 3, but only a search over"):
        search_log.record(oracle.random_params(model, seed=3), CONFIG.model, [4, 2], decode=decode)
