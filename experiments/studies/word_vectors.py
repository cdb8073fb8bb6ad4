# SPDX-License-Identifier: Apache-2.0
"""Word vectors: neighbors, analogies, what the dictionary of `pronouns` knows, and a picture."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from experiments.data import text_files
from experiments.data.grammars.pronouns.dictionary import ADJECTIVES, NOUNS, Noun
from experiments.studies.skip_gram import WordVectors
from transformer.arrays import Float
from transformer.config import Config
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.typesetting import text_width
from transformer.models import protocol
from transformer.nn.parameters import is_parameter
from transformer.translator import Translator

LANGUAGE_NAMES = {"de": "German", "fr": "French"}
Side = Literal["source", "target"]
Pair = tuple[str, str]

KINDS = ("animal", "food", "drink", "vehicle", "ship", "container", "furniture", "building", "way")
"""Kinds of nouns: groups of the dictionary, of which a noun has the first."""
MOST_FREQUENT = 60
"""Words in the picture of a corpus whose words have no kinds."""


@dataclasses.dataclass(frozen=True)
class Knowledge:
    """What is known about the words of one language."""

    pairs: Mapping[str, Sequence[Pair]] = dataclasses.field(default_factory=dict)
    """Word pairs with one relation; every two of them are an analogy."""
    labels: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Labels of words, by what they say: ``kind`` or ``gender``."""
    examples: Sequence[str] = ()
    """Words whose neighbors are of interest."""


# Vectors and their geometry.


def normalized(vectors: Float[np.ndarray, "words D"]) -> Float[np.ndarray, "words D"]:
    """Each vector divided by its length."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)


def nearest(space: WordVectors, word: str, count: int) -> list[tuple[str, float]]:
    """The words with the highest cosine to a word, and the cosines."""
    unit, index = normalized(space.vectors), space.words.index(word)
    cosines = unit @ unit[index]
    cosines[index] = -np.inf
    order = np.argsort(-cosines, kind="stable")[:count]
    return [(space.words[i], float(cosines[i])) for i in order]


def analogy_accuracy(
    space: WordVectors, questions: Sequence[tuple[str, str, str, str]]
) -> tuple[float | None, int]:
    """Share of questions a : b :: c : d in which d is nearest to b - a + c.

    The vectors have length 1, and a, b and c are no answers (Mikolov et al. 2013). Questions with a
    word that has no vector do not count.

    Returns:
      the share, None without questions, and the number of questions.
    """
    ids = {word: index for index, word in enumerate(space.words)}
    known = [[ids[word] for word in each] for each in questions if all(w in ids for w in each)]
    if not known:
        return None, 0
    unit = normalized(space.vectors)
    a, b, c, d = np.array(known).T
    scores = (unit[b] - unit[a] + unit[c]) @ unit.T  # [questions, words]
    np.put_along_axis(scores, np.stack([a, b, c], -1), -np.inf, axis=1)
    return float((scores.argmax(1) == d).mean()), len(known)


def neighbor_agreement(
    space: WordVectors, labels: Mapping[str, str]
) -> tuple[float | None, float | None]:
    """Share of labeled words whose nearest labeled word has the same label.

    Returns:
      the share, and the share by chance: of the pairs of different labeled words. None for fewer
      than two labeled words.
    """
    chosen = [word for word in space.words if word in labels]
    if len(chosen) < 2:
        return None, None
    unit = normalized(space.vectors[[space.words.index(word) for word in chosen]])
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    names = np.array([labels[word] for word in chosen])
    same = names[:, None] == names
    chance = (same.sum() - len(chosen)) / (len(chosen) * (len(chosen) - 1))
    return float((names[cosines.argmax(1)] == names).mean()), float(chance)


def principal_components(
    vectors: Float[np.ndarray, "points D"],
) -> tuple[Float[np.ndarray, "points 2"], float]:
    """Coordinates along the two directions of most variance, and their share of the variance.

    The coordinate of largest size is positive in each direction, so pictures are reproducible.
    """
    centered = vectors - vectors.mean(0)
    u, singular, _ = np.linalg.svd(centered, full_matrices=False)
    points = u[:, :2] * singular[:2]
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])
    return points * signs, float((singular[:2] ** 2).sum() / (singular**2).sum())


def model_vectors(translator: Translator, side: Side, words: Sequence[str]) -> WordVectors:
    """The mean of the rows of each word's tokens in the side's embedding table.

    The tables are the parameters that their declarations call embeddings of a vocabulary. If there
    are several, the source's has ``source`` in its path.

    Raises:
      InputError: if the model has no such table.
    """
    metadata = protocol.parameter_metadata(translator.model)
    declared = jax.tree_util.tree_leaves_with_path(metadata, is_leaf=is_parameter)
    tables = {
        "source" in jax.tree_util.keystr(path): array
        for (path, parameter), array in zip(
            declared, jax.tree.leaves(translator.params), strict=True
        )
        if parameter.kind == "embedding" and parameter.names[0] in ("vocab", "source_vocab")
    }
    if not tables:
        raise InputError(
            f"model.family {translator.config.model.family!r} has no embedding of its vocabulary; "
            "give the workdir of another family, such as 'transformer'"
        )
    table = np.asarray(tables.get(side == "source", next(iter(tables.values()))), np.float64)
    tokens = getattr(translator.vocabularies, side).encode(words)  # EOS last
    return WordVectors(tuple(words), np.stack([table[ids[:-1]].mean(0) for ids in tokens]))


# What is known about the words.


def language_of(config: Config, side: Side) -> str | None:
    """``en``, ``de`` or ``fr`` on `pronouns`; None elsewhere."""
    corpus, _, name = config.data.dataset.partition("/")
    if corpus == "english_pronouns":
        return "en"
    if corpus != "pronouns_grammar":
        return None
    is_english = (side == "source") == (config.data.direction != "backward")
    return "en" if is_english else name


def knowledge(language: str, other: str | None = None) -> Knowledge:
    """The nouns of the dictionary of `pronouns`, and words that agree in gender.

    English nouns have no gender; in a model of translation their label is that of the noun in the
    `other` language.
    """
    forms = {"en": ("singular", "plural"), "de": ("german", "german_plural")}
    singular, plural = forms.get(language, ("french", "french_plural"))
    nouns = [(noun, getattr(noun, singular), getattr(noun, plural)) for noun in NOUNS.values()]
    kinds, genders = {}, {}
    for noun, one, many in nouns:
        kind = next((kind for kind in KINDS if kind in noun.groups), None)
        for word in filter(None, (one, many)):
            if kind:
                kinds[word] = kind
        genders[one] = _gender(noun, other if language == "en" else language)
    labels = {"kind": kinds}
    if language != "en":
        labels["gender"] = genders
    elif other:
        labels[f"gender in {LANGUAGE_NAMES[other]}"] = genders
    number = [(one, many) for _, one, many in nouns if many and many != one]
    pairs = {"number": number} | {
        "de": {"gender": [("der", "die"), ("dieser", "diese"), ("ein", "eine"), ("er", "sie")]},
        "fr": {
            "gender": [("le", "la"), ("un", "une"), ("ce", "cette"), ("il", "elle")]
            + [
                (each.french_masculine, each.french_feminine)
                for each in ADJECTIVES.values()
                if each.french_masculine != each.french_feminine
            ]
        },
    }.get(language, {})
    examples = [getattr(NOUNS[name], singular) for name in ("dog", "street", "apple", "car")]
    examples += [getattr(NOUNS["dog"], plural)]
    examples += {"en": ["it", "tired"], "de": ["er", "müde"]}.get(language, ["il", "fatigué"])
    return Knowledge(pairs, labels, examples=examples)


def _gender(noun: Noun, language: str | None) -> str:
    return noun.french_gender if language == "fr" else noun.german_gender


def read_analogies(path: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """The questions of a file by section, in the format of word2vec.

    Raises:
      InputError: naming the first line that is neither a section nor four words.
    """
    questions: dict[str, list[tuple[str, str, str, str]]] = {}
    section = "analogies"
    for number, line in enumerate(text_files.lines(path), 1):
        fields = line.split()
        if fields[:1] == [":"]:
            section = " ".join(fields[1:])
        elif len(fields) == 4:
            questions.setdefault(section, []).append(tuple(fields))
        elif fields:
            raise InputError(
                f"{path}:{number}: {line!r} has {len(fields)} words; write 'a b c d' (a is to b as "
                "c is to d), or ': name' for a section"
            )
    return questions


def questions_of(pairs: Sequence[Pair]) -> Iterator[tuple[str, str, str, str]]:
    """Every two pairs as an analogy."""
    for (a, b), (c, d) in itertools.permutations(pairs, 2):
        yield a, b, c, d


# The picture.

MARKERS = {"m": "^", "f": "o", "n": "s", "": "x"}
GENDER_NAMES = {"m": "masculine", "f": "feminine", "n": "neuter", "": "plural"}
PLURAL = ""
PANEL = 5.4
"""Width and height of a panel in inches."""


@style.styled
def draw(
    spaces: Mapping[str, WordVectors], known: Knowledge, side: Side
) -> figures.DescribedFigure:
    """Both spaces in two dimensions: nouns colored by kind, each joined with its plural."""
    kinds = known.labels.get("kind", {})
    some = next(iter(spaces.values())).words
    chosen = [word for word in some if word in kinds] or list(some[:MOST_FREQUENT])
    names = [kind for kind in KINDS if kind in kinds.values()]
    gendered = [name for name in known.labels if name.startswith("gender")]
    genders = known.labels[gendered[0]] if gendered else {}
    figure = parts.sheet(
        2 * PANEL + 0.5 + (1.2 if names else 0.0),
        PANEL + 0.3,
        f"Word vectors of the {side} in two dimensions",
        "Principal components of the words shown. Words that would overlap others have no name. "
        + ("Lines join singular and plural." if "number" in known.pairs else ""),
    )
    shares = {}
    for index, (name, space) in enumerate(spaces.items()):
        rows = [space.words.index(word) for word in chosen]
        points, shares[name] = principal_components(space.vectors[rows])
        left = index * (PANEL + 0.4)
        parts.put_text(
            figure.content,
            *(left, 0.05, f"{name}: {shares[name]:.0%} of the variance"),
            **{"ha": "left", "fontsize": style.HEADING},
        )
        ax = parts.axes(figure, left, 0.25, PANEL, PANEL, name)
        ax.set_xticks([])
        ax.set_yticks([])
        _draw_points(ax, dict(zip(chosen, points, strict=True)), kinds, genders, known.pairs)
    for row, kind in enumerate(names):
        x, y = 2 * PANEL + 0.65, 0.45 + 0.22 * row
        figure.content.plot([x], [y], "o", color=_color(kind), markersize=5)
        parts.put_text(figure.content, x + 0.15, y, kind, ha="left")
    shown = [gender for gender in MARKERS if gender in genders.values()]
    for row, gender in enumerate([*shown, PLURAL] if shown else []):
        x, y = 2 * PANEL + 0.65, 0.65 + 0.22 * (len(names) + row)
        figure.content.plot([x], [y], MARKERS[gender], color=style.SOFT, markersize=5)
        parts.put_text(figure.content, x + 0.15, y, GENDER_NAMES[gender], ha="left")
    figure.description = (
        f"{len(chosen)} words of the {side} in two dimensions by "
        + " and ".join(f"{name} ({share:.0%} of the variance)" for name, share in shares.items())
        + "."
    )
    return figure


def _draw_points(
    ax: Any,
    points: Mapping[str, np.ndarray],
    kinds: Mapping[str, str],
    genders: Mapping[str, str],
    pairs: Mapping[str, Sequence[Pair]],
) -> None:
    """The points, lines between singular and plural, and names where there is space."""
    for one, many in pairs.get("number", ()):
        if one in points and many in points:
            ax.plot(
                *zip(points[one], points[many], strict=True), color=style.FAINT, lw=0.7, zorder=1
            )
    for word, (x, y) in points.items():
        marker = MARKERS[genders.get(word, PLURAL)] if genders else "o"
        ax.plot([x], [y], marker, color=_color(kinds.get(word)), markersize=3.8, zorder=2)
    ax.margins(0.06)
    ax.autoscale_view()
    (x_low, x_high), (y_low, y_high) = ax.get_xlim(), ax.get_ylim()
    taken: list[tuple[float, float, float, float]] = []
    for word, (x, y) in points.items():
        left = (x - x_low) / (x_high - x_low) * PANEL + 0.05
        bottom = (y - y_low) / (y_high - y_low) * PANEL - 0.05
        box = (left, bottom, left + text_width(word, style.TEXT), bottom + 0.11)
        if box[2] > PANEL or any(_overlap(box, other) for other in taken):
            continue
        taken.append(box)
        ax.annotate(
            word,
            (x, y),
            xytext=(0.05 * 72, 0),
            textcoords="offset points",
            **{"fontsize": style.TEXT, "va": "center", "color": _color(kinds.get(word))},
        )


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _color(kind: str | None) -> str:
    colors = (*style.LINE_COLORS, "#8c564b", "#7f7f7f")
    return style.SOFT if kind is None else colors[KINDS.index(kind)]
