# SPDX-License-Identifier: Apache-2.0
"""IBM Model 1 by hand and by its definition; lists, files and errors of a lexicon."""

import collections

import numpy as np
import pytest
from etils import epath

from transformer.arrays import SpecialIds
from transformer.errors import InputError
from transformer.text.lexicon import MAX_TRANSLATIONS, Lexicon, translation_probabilities

PAD_ID, BOS_ID, EOS_ID, UNK_ID = SpecialIds()
THE, HOUSE, BOOK, A, DAS, HAUS, BUCH, EIN = range(4, 12)
SOURCES = [[THE, HOUSE], [THE, BOOK], [A, BOOK]]
TARGETS = [[DAS, HAUS], [DAS, BUCH], [EIN, BUCH]]
VOCABULARY = 12


def probabilities(sources, targets, iterations):
    """{(source, target): t}."""
    pairs, actual = translation_probabilities(sources, targets, VOCABULARY, iterations)
    assert (np.diff(pairs) > 0).all()
    return {divmod(int(pair), VOCABULARY): value for pair, value in zip(pairs, actual, strict=True)}


def by_definition(sources, targets, iterations):
    """IBM Model 1 as in the textbook."""
    t = collections.defaultdict(lambda: 1.0)
    for _ in range(iterations):
        count, total = collections.Counter(), collections.Counter()
        for source, target in zip(sources, targets, strict=True):
            for f in target:
                among = sum(t[e, f] for e in source)
                for e in source:
                    count[e, f] += t[e, f] / among
                    total[e] += t[e, f] / among
        t = {(e, f): count[e, f] / total[e] for e, f in count}
    return t


def test_the_first_iteration_counts_cooccurrences():
    t = probabilities(SOURCES, TARGETS, 1)
    assert t[THE, DAS] == 1 / 2
    assert t[THE, HAUS] == t[THE, BUCH] == 1 / 4
    assert t[HOUSE, DAS] == t[HOUSE, HAUS] == 1 / 2
    assert (THE, EIN) not in t


def test_the_second_iteration_prefers_das_as_the_translation_of_the():
    """By hand: in (the house, das Haus), t(das | the) = t(das | house) = 1/2, so each takes half of
    das; of Haus, `the` takes 1/4 : 1/2, a third. In (the book, das Buch) `the` takes 1/2 : 1/4 of
    das, two thirds, and of Buch 1/4 : 1/2, a third.
    """
    t = probabilities(SOURCES, TARGETS, 2)
    of_das, of_haus, of_buch = 1 / 2 + 2 / 3, 1 / 3, 1 / 3
    total = of_das + of_haus + of_buch
    np.testing.assert_allclose(t[THE, DAS], of_das / total)
    np.testing.assert_allclose(t[THE, HAUS], of_haus / total)


def test_probabilities_of_a_random_text_follow_the_definition():
    random = np.random.default_rng(0)
    sources, targets = (
        [random.integers(3, VOCABULARY, random.integers(1, 7)).tolist() for _ in range(30)]
        for _ in range(2)
    )
    actual, expected = (each(sources, targets, 5) for each in (probabilities, by_definition))
    assert actual.keys() == expected.keys()
    for pair, value in actual.items():
        np.testing.assert_allclose(value, expected[pair], rtol=1e-9)


@pytest.fixture
def learned():
    """The lexicon of the three sentence pairs, with EOS."""
    sources, targets = ([[*row, EOS_ID] for row in rows] for rows in (SOURCES, TARGETS))
    return Lexicon.learn(sources, targets, VOCABULARY)


def test_translations_are_sorted_by_probability(learned):
    assert learned.translations[THE, 0] == DAS
    assert learned.translations[BOOK, 0] == BUCH
    t = probabilities(*([[*row, EOS_ID] for row in rows] for rows in (SOURCES, TARGETS)), 5)
    of_book = [t[BOOK, target] for target in learned.translations[BOOK] if target != PAD_ID]
    assert of_book == sorted(of_book, reverse=True)
    assert len(of_book) == len({target for source, target in t if source == BOOK})
    assert (learned.translations[DAS] == PAD_ID).all(), "never in a source"


def test_only_the_most_probable_translations_are_kept():
    others = range(20, 20 + 2 * MAX_TRANSLATIONS)
    sources = [[10, EOS_ID]] * (2 * MAX_TRANSLATIONS + 50)
    targets = [[other] for other in others] + [[19]] * 50
    learned = Lexicon.learn(sources, targets, 20 + 2 * MAX_TRANSLATIONS)
    assert learned.translations.shape[1] == MAX_TRANSLATIONS
    assert learned.translations[10, 0] == 19


def test_a_list_has_frequent_subwords_translations_source_and_prefix():
    translations = np.zeros((VOCABULARY, MAX_TRANSLATIONS), np.int32)
    translations[THE, :3] = DAS, EIN, HAUS
    translations[BOOK, :1] = BUCH
    lexicon = Lexicon(translations, np.array([EOS_ID, A]))

    def listed(source, number, prefix=None):
        prefix = None if prefix is None else np.array([prefix])
        return set(np.flatnonzero(lexicon.listed(np.array([source]), number, prefix)))

    always = {PAD_ID, BOS_ID, EOS_ID, UNK_ID, A}
    assert listed([EOS_ID], 5) == always
    assert listed([THE, EOS_ID], 1) == always | {THE, DAS}
    assert listed([THE, EOS_ID, PAD_ID], 2) == always | {THE, DAS, EIN}
    assert listed([THE, BOOK, EOS_ID], 9) == always | {THE, DAS, EIN, HAUS, BOOK, BUCH}
    assert listed([EOS_ID], 5, [HAUS, PAD_ID]) == always | {HAUS}


def test_the_list_of_a_sentence_does_not_depend_on_the_batch(learned):
    batch = np.array([[THE, HOUSE, EOS_ID], [A, EOS_ID, PAD_ID], [PAD_ID] * 3])
    for row, together in zip(batch, learned.listed(batch, 2), strict=True):
        alone = learned.listed(row[None, row != PAD_ID], 2)
        np.testing.assert_array_equal(together, alone[0])


def test_a_saved_lexicon_is_loaded_unchanged(learned, tmp_path):
    path = epath.Path(tmp_path / "shortlist.npz")
    learned.save(path)
    again = Lexicon.load(path, VOCABULARY)
    np.testing.assert_array_equal(again.translations, learned.translations)
    np.testing.assert_array_equal(again.frequent, learned.frequent)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_missing_damaged_or_unsuitable_lexicon_raises_an_error_with_a_remedy(learned, tmp_path):
    path = epath.Path(tmp_path / "shortlist.npz")
    again = rf"python -m experiments\.learn_lexicon --workdir={tmp_path}"
    with pytest.raises(InputError, match=rf"is missing, which decode\.shortlist needs; .*{again}"):
        Lexicon.load(path, VOCABULARY)
    learned.save(path)
    with pytest.raises(InputError, match=rf"is for 12 subwords, but .* has 13; .*{again}"):
        Lexicon.load(path, VOCABULARY + 1)
    content = path.read_bytes()
    for damaged in (b"", b"text", content[: len(content) // 2], content[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"cannot be read .*{again}"):
            Lexicon.load(path, VOCABULARY)
