# SPDX-License-Identifier: Apache-2.0
"""The embedded corpus `pronouns`: its splits, words, alignments, metrics and TFDS builder."""

import dataclasses
import hashlib
import sys
from collections import Counter, defaultdict
from random import Random

import pytest
import tensorflow_datasets as tfds

from experiments.data.grammars.pronouns import (
    SPLITS,
    PronounsGrammar,
    english,
    examples,
    french,
    german,
    join,
    pronoun_metrics,
    words,
)
from experiments.data.grammars.pronouns.dictionary import ADJECTIVES, NOUNS, VERBS, compatible
from experiments.data.grammars.pronouns.grammar import (
    FramePool,
    all_frames,
    draw_event,
    draw_statement,
    draw_twins,
)
from experiments.data.grammars.pronouns.meaning import realize
from experiments.data.grammars.pronouns.scenes import RELATIONAL_VERBS
from experiments.data.grammars.pronouns.sentences import unseen_pairs

TARGETS = {"de": german, "fr": french}
PUNCTUATION = {",", "."}
DIGESTS = {
    "de": "d37baae1d6f63ae4eba59b541ec167682425aa1aff63c7994c1fa91ca10d60e5",
    "fr": "1ab381fc1ad131cbfce9f6793817bd9508eb6fa412ab502a71deb233b63ceb1d",
}


def as_features(example):
    """The features that the data source returns for an example."""
    return {field.name: getattr(example, field.name) for field in dataclasses.fields(example)}


def lemmas(text):
    known = {form: noun for noun in NOUNS.values() for form in (noun.singular, noun.plural) if form}
    return {known[word].singular for word in words(text.lower()) if word in known}


def drawn_meanings(count):
    """Random meanings of all kinds, some of them in the corpus."""
    rng = Random(1)
    pool = FramePool(all_frames())
    meanings = []
    while len(meanings) < count:
        meanings.append(draw_statement(rng))
        meanings.append(draw_event(rng, pool, sights=True))
        plurals = (rng.random() < 0.3, rng.random() < 0.3)
        meanings.extend(draw_twins(rng, pool, plurals) or ())
    return meanings


# ------------------------------------------------------------------------------------- words


def test_words_of_a_sentence_are_the_tokens_of_the_grammar():
    for meaning in drawn_meanings(3_000):
        for language in (english, german, french):
            tokens = [token.text for token in realize(meaning, language)]
            assert words(join(tokens)) == tokens


# ------------------------------------------------------------------------------------ corpus


@pytest.fixture(params=["de", pytest.param("fr", marks=pytest.mark.slow)])
def language(request):
    """The target language of a corpus; the French one is made and tested nightly."""
    return request.param


def test_splits_have_their_sizes_and_share_no_sentence(language):
    sizes = {split: len(examples(language, split)) for split in SPLITS}
    assert sizes == {"train": 46_000, "validation": 1_000, "test": 2_000, "test_unseen": 2_000}
    sources = [example.source for split in SPLITS for example in examples(language, split)]
    assert len(set(sources)) == len(sources)
    for split in SPLITS:
        chosen = examples(language, split)
        assert sum(each.pronoun >= 0 for each in chosen) >= 0.6 * len(chosen)
        resolved = sum(each.resolution for each in chosen) / len(chosen)
        assert resolved >= (0.5 if split == "train" else 0.6)


def test_noun_pairs_of_test_unseen_occur_in_no_other_split_but_each_noun_in_train(language):
    pairs, occurrences, resolutions = {}, Counter(), Counter()
    for split in SPLITS:
        pairs[split] = set()
        for example in examples(language, split):
            found = lemmas(example.source)
            pairs[split].add(frozenset(found))
            if split == "train":
                occurrences.update(found)
                resolutions.update(found if example.resolution else ())
    unseen = pairs.pop("test_unseen")
    assert all(len(pair) == 2 for pair in unseen)
    assert unseen <= unseen_pairs()
    assert len(unseen) > 100
    assert not unseen & set.union(*pairs.values())
    for lemma in {lemma for pair in unseen_pairs() for lemma in pair}:
        assert occurrences[lemma] >= 100, lemma
        assert resolutions[lemma] >= 30, lemma


def test_twins_differ_in_the_reason_and_in_the_antecedent(language):
    twins = defaultdict(list)
    for split in SPLITS:
        for example in examples(language, split):
            assert (example.twin >= 0) == (example.pronoun >= 0)
            if example.twin >= 0:
                twins[split, example.twin].append(example)
    for pair in twins.values():
        first, second = pair
        assert first.resolution == second.resolution
        assert (first.antecedent, first.distractor) != (second.antecedent, second.distractor)
        assert {first.subject_pronoun} == {second.subject_pronoun}
        if first.resolution:
            assert words(first.source)[first.pronoun].lower() == "it"
            gold = {words(each.target)[each.target_pronoun].lower() for each in pair}
            assert len(gold) == 2
            assert first.subject_pronoun in gold
            # Only the adjective differs in English.
            differing = zip(words(first.source), words(second.source), strict=True)
            assert sum(one != other for one, other in differing) == 1


def test_baselines_stay_low(language):
    for split in SPLITS:
        chosen = [as_features(example) for example in examples(language, split)]
        scores = pronoun_metrics(chosen, [example["target"] for example in chosen])
        assert scores["pronoun_accuracy"] == scores["twin_accuracy"] == 1
        assert scores["subject"] == 0.5
        assert scores["majority"] <= 0.6
    # Always choosing the subject's pronoun scores as that baseline; this is the unseen test.
    scores = pronoun_metrics(chosen, [example["subject_pronoun"] for example in chosen])
    assert scores["pronoun_accuracy"] == scores["subject"] == 0.5
    assert scores["twin_accuracy"] == 0


def test_alignment_is_complete(language):
    for example in [each for split in SPLITS for each in examples(language, split)[:10_000]]:
        source, target = words(example.source), words(example.target)
        for side, sentence in enumerate((source, target)):
            aligned = {link[side] for link in example.alignment}
            assert aligned >= {i for i, word in enumerate(sentence) if word not in PUNCTUATION}
        assert all(i < len(source) and j < len(target) for i, j in example.alignment)
        assert len(set(example.alignment)) == len(example.alignment)
        if example.pronoun >= 0:
            assert (example.pronoun, example.target_pronoun) in example.alignment


def test_corpus_is_the_same_on_every_machine(language):
    digest = hashlib.sha256()
    for split in SPLITS:
        for example in examples(language, split):
            digest.update(repr(example).encode())
    # After a deliberate change of the grammar, update the digest and the builder's version.
    assert digest.hexdigest() == DIGESTS[language]


PUBLISHED = {
    "The animal didn't cross the street because it was too tired.": {
        "de": "Das Tier überquerte die Straße nicht, weil es zu müde war.",
        "fr": "L'animal n'a pas traversé la rue parce qu'il était trop fatigué.",
    },
    "The animal didn't cross the street because it was too wide.": {
        "de": "Das Tier überquerte die Straße nicht, weil sie zu breit war.",
        "fr": "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
    },
}


def test_published_sentences_are_twins_of_the_test_split(language):
    published = [each for each in examples(language, "test") if each.source in PUBLISHED]
    assert {each.source: each.target for each in published} == {
        source: targets[language] for source, targets in PUBLISHED.items()
    }
    assert [each.resolution for each in published] == [1, 1]
    assert published[0].twin == published[1].twin


WIDE = {
    #  0   1      2      3     4   5      6       7  8   9   10   11
    # The animal didn't cross the street because it was too wide .
    # Das Tier überquerte die Straße nicht , weil sie zu breit war .
    #  0   1    2          3   4      5    6  7    8   9   10   11 12
    "de": (
        {(0, 0), (1, 1), (2, 2), (2, 5), (3, 2), (4, 3), (5, 4), (6, 7), (7, 8), (8, 11), (9, 9),
         (10, 10), (11, 12)},
        (8, "es"),
    ),
    # L' animal n' a pas traversé la rue parce qu' elle était trop large .
    # 0  1      2  3 4   5        6  7   8     9   10   11    12   13    14
    "fr": (
        {(0, 0), (1, 1), (2, 2), (2, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8), (6, 9), (7, 10),
         (8, 11), (9, 12), (10, 13), (11, 14)},
        (10, "il"),
    ),
}  # fmt: skip


def test_published_alignment_and_indices(language):
    wide = "The animal didn't cross the street because it was too wide."
    example = next(each for each in examples(language, "test") if each.source == wide)
    alignment, pronouns = WIDE[language]
    assert set(example.alignment) == alignment
    assert (example.pronoun, example.antecedent, example.distractor) == (7, 5, 1)
    assert (example.target_pronoun, example.subject_pronoun) == pronouns


# ----------------------------------------------------------------------------------- lexicon


def test_an_english_word_has_one_translation():
    # Words: no English form belongs to two rows, or to two numbers or tenses of a row.
    nouns = [form for each in NOUNS.values() for form in (each.singular, each.plural) if form]
    assert len(set(nouns)) == len(nouns)
    assert not set(nouns) & set(ADJECTIVES)
    for verb in VERBS.values():
        assert len({verb.english, verb.english_third, verb.english_past}) == 3
    finite = [verb.english_past for verb in VERBS.values() if not verb.english_preposition]
    assert len(set(finite)) == len(finite)
    verbs = {
        form
        for each in VERBS.values()
        for form in (each.english, each.english_third, each.english_past, each.english_participle)
    }
    assert not verbs & {*nouns, *ADJECTIVES}
    # Reasons: the adjective and the event determine the noun.
    role_of = {}
    for frame in all_frames():
        event = (frame.scene.verb, frame.scene.negative, frame.subject, frame.object)
        for role, reasons in (("subject", frame.subject_reasons), ("object", frame.object_reasons)):
            for reason in reasons:
                assert role_of.setdefault((*event, reason), role) == role


def test_an_english_sentence_has_one_translation(language):
    """The corpus and other draws agree on sentences that are in both."""
    translations = {
        each.source: each.target for split in SPLITS for each in examples(language, split)
    }
    common = 0
    for meaning in drawn_meanings(6_000):
        source = join(token.text for token in realize(meaning, english))
        translation = join(token.text for token in realize(meaning, TARGETS[language]))
        common += source in translations
        assert translations.setdefault(source, translation) == translation
    assert common > 100


def test_a_reason_can_only_be_true_of_its_noun():
    for frame in all_frames():
        subject_reasons = {reason.english for reason in frame.subject_reasons}
        object_reasons = {reason.english for reason in frame.object_reasons}
        assert not subject_reasons & object_reasons
        if frame.scene.verb.name not in RELATIONAL_VERBS:
            assert not subject_reasons & set(frame.object.traits)
            assert not object_reasons & set(frame.subject.traits)


def test_adjectives_exclude_their_contrary_and_there_are_many_nouns_of_every_gender():
    assert compatible("old", "tired")
    assert not compatible("old", "young")
    assert not compatible("old", "old")
    assert len(NOUNS) >= 75
    german_genders = Counter(noun.german_gender for noun in NOUNS.values())
    french_genders = Counter(noun.french_gender for noun in NOUNS.values())
    assert min(german_genders.values()) >= 0.25 * len(NOUNS)
    assert min(french_genders.values()) >= 0.4 * len(NOUNS)


# ----------------------------------------------------------------------------------- metrics


def scored(target, target_pronoun, *, twin, subject="er", resolution=1):
    return {
        "target": target,
        "target_pronoun": target_pronoun,
        "subject_pronoun": subject,
        "twin": twin,
        "resolution": resolution,
    }


def test_pronoun_metrics_by_hand():
    chosen = [
        scored("Der Hund kam nicht, weil er müde war.", 6, twin=1),
        scored("Der Hund kam nicht, weil sie breit war.", 6, twin=1),
        scored("Weil er müde war, kam der Hund nicht.", 1, twin=2),
        scored("Weil es hoch war, kam der Hund nicht.", 1, twin=2),
        scored("Die Hunde kamen, weil sie müde waren.", 5, twin=3, subject="sie", resolution=0),
    ]
    hypotheses = [
        "Er schlief.",  # Correct pronoun; the rest does not count.
        "Der Hund kam nicht, weil sie breit war.",  # Correct.
        "Weil er und sie müde waren, kam der Hund nicht.",  # Two different pronouns: wrong.
        "Weil es hoch war, kam der Hund nicht, und es blieb.",  # The same pronoun twice: correct.
        "",  # Not counted.
    ]
    assert pronoun_metrics(chosen, hypotheses) == {
        "pronoun_accuracy": 3 / 4,
        "twin_accuracy": 1 / 2,
        "majority": 2 / 4,
        "subject": 2 / 4,
    }
    wrong = ["Die Straße.", "er", "es", "Sie", ""]
    scores = pronoun_metrics(chosen, wrong)
    assert (scores["pronoun_accuracy"], scores["twin_accuracy"]) == (0, 0)


def test_pronoun_metrics_need_resolution_sentences_and_one_hypothesis_per_example():
    assert pronoun_metrics([], []) == {}
    other = scored("Die Hunde kamen, weil sie müde waren.", 5, twin=3, resolution=0)
    assert pronoun_metrics([other], ["sie"]) == {}
    with pytest.raises(ValueError, match="longer"):
        pronoun_metrics([scored("er", 0, twin=0)], ["er", "sie"])


# ----------------------------------------------------------------------------------- builder


def test_builder_writes_and_reads_without_tensorflow(language, tmp_path):
    tfds.disable_progress_bar()
    builder = PronounsGrammar(config=language, data_dir=tmp_path, file_format="array_record")
    assert builder.name == "pronouns_grammar"
    assert str(builder.version) == "1.0.0"
    few = tfds.download.DownloadConfig(max_examples_per_split=50)
    builder.download_and_prepare(download_config=few)
    for split in SPLITS:
        source = builder.as_data_source(split)
        assert len(source) == 50
        for read, expected in zip(source, examples(language, split), strict=False):
            decoded = {
                name: value.decode() if isinstance(value, bytes) else value
                for name, value in read.items()
            }
            alignment = decoded.pop("alignment")
            features = as_features(expected)
            assert tuple(map(tuple, alignment.tolist())) == features.pop("alignment")
            assert decoded == features
    assert "tensorflow" not in sys.modules
