# SPDX-License-Identifier: Apache-2.0
"""How fast real text is trained and translated, whose sentences have all kinds of lengths.

python -m experiments.benchmarks.real_text --source=train.en --target=train.de --translate=val.en

The vocabulary is learned from the training text; W1 is a small model and W2 the paper's base model
(`benchmarks/work.py`), with random weights. Programs are timed in turns, each in a process of its
own; a figure is the median over the rounds, and a ratio says how many times as long the peer takes.
Peers come with pip install -e .[bench]; one that is not there is skipped. Standard output has one
JSON object a result, standard error a table.

Training: the first batches of an epoch as `train` makes them, their reading included; times are of
1,000 target tokens, and padding is not one. PyTorch has the same pairs in memory, in the same
batches or in its own, sorted by length within the same budget, each batch padded no further than to
its longest source and its longest target. All shapes have been compiled before.

Translating: this program from text to text, each translation one token longer than its source;
times are of one sentence. The peers go from ids to ids, in batches sorted by length. Their limits
hold for a whole batch, so each of its translations has as many tokens as all have on average: the
tokens are as many, and no sentence of a batch waits for a longer one. For
--variant=shortlist:decode.shortlist=20 a lexicon is learned from the training text.
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from experiments.benchmarks import prepared, reporting
from experiments.benchmarks.alternating import PROGRAMS, Subject, compare
from experiments.benchmarks.settings import numbers, parse_own
from experiments.benchmarks.work import WORKS, Work
from experiments.corpora import text_files
from experiments.corpora.text_files import TwoFiles
from experiments.flags import run
from transformer.config import DataConfig
from transformer.errors import InputError

_SOURCE = flags.DEFINE_string("source", None, "Training text, one sentence a line.")
_TARGET = flags.DEFINE_string("target", None, "Its translation, line by line.")
_TRANSLATE = flags.DEFINE_string(
    "translate", None, "Text that is translated; unless given, only training is measured."
)
_WORKS = flags.DEFINE_list("works", list(WORKS), "Which of them.")
_VOCABULARY = flags.DEFINE_integer(
    "vocabulary", None, "Sub-words; as many as the work has unless given.", lower_bound=5
)
_BUCKETS = flags.DEFINE_list(
    "buckets",
    ["12", "16", "20", "24", "32", "64"],
    "The lengths that this program's batches come in; longer sentences are left out.",
)
_TOKENS = flags.DEFINE_integer("tokens", 2048, "Positions of a batch, source and target each.")
_BATCHES = flags.DEFINE_integer("batches", 16, "Trained in one sample.", lower_bound=1)
_SENTENCES = flags.DEFINE_integer(
    "sentences", None, "Only the first so many lines are translated.", lower_bound=1
)
_TOGETHER = flags.DEFINE_integer(
    "together", 64, "Sentences that are translated at once.", lower_bound=1
)
_BEAMS = flags.DEFINE_list("beams", ["4"], "Numbers of beams; 1 is greedy search.")
_DROPOUT = reporting.define_dropout()


@dataclasses.dataclass(frozen=True)
class Task:
    """What programs are compared in."""

    name: str
    own: Subject
    others: Sequence[Subject]
    about: dict[str, Any]
    """For the results."""


def main() -> None:
    """Measures and prints."""
    for flag in (_SOURCE, _TARGET):
        if not flag.value:
            raise InputError(f"--{flag.name}=FILE is missing")
    beams = numbers("beams", _BEAMS.value)
    works = dict(_works())
    # Before anything is prepared, the fields of --own and --variant are looked at.
    reporting.variants(reporting.own("training_text", {}, works.values()), works.values())
    pairs = TwoFiles(_SOURCE.value, _TARGET.value)
    lines = text_files.read_lines(_TRANSLATE.value) if _TRANSLATE.value else []
    lines = lines[: _SENTENCES.value]
    results = []
    for name, work in works.items():
        with tempfile.TemporaryDirectory() as folder:
            reporting.say(f"{name}: learning a vocabulary and tokenizing")
            overrides = parse_own(reporting.OWN.value)
            text = prepared.prepare(work, folder, pairs, lines, _BATCHES.value, overrides)
            tasks = [_training(work, folder, pairs, len(text.rows))]
            if text.lines:
                tasks += [_translating(work, folder, number) for number in beams]
            chosen = reporting.chosen([other for task in tasks for other in task.others])
            for task in tasks:
                others = [other for other in task.others if other in chosen]
                results += _results(name, work, dataclasses.replace(task, others=others))
    reporting.print_table(results)


def _works() -> Iterator[tuple[str, Work]]:
    buckets = tuple(sorted(set(numbers("buckets", _BUCKETS.value))))
    rows, least = _TOKENS.value // buckets[-1], DataConfig.row_multiple
    if rows < least:
        raise InputError(
            f"--tokens={_TOKENS.value}: a batch has at least {least} rows, so of sentences of "
            f"{buckets[-1]} tokens at least {least * buckets[-1]}; raise it, or shorten --buckets"
        )
    for name in reporting.works(_WORKS.value):
        one = WORKS[name]
        yield (
            name,
            dataclasses.replace(
                one,
                vocabulary=_VOCABULARY.value or one.vocabulary,
                rows=rows,
                source=buckets[-1],
                target=buckets[-1],
                dropout_inside=_DROPOUT.value == "inside",
                buckets=buckets,
            ),
        )


def _training(work: Work, folder: str, pairs: TwoFiles, batches: int) -> Task:
    options = {"folder": folder, "source": pairs.source, "target": pairs.target}
    options["batches"] = batches
    own = reporting.own("training_text", options, [work])
    peers = [
        Subject(
            f"PyTorch eager {dtype} {cut}",
            f"{PROGRAMS}.pytorch.training_text",
            {"path": prepared.text_file(folder), "by_length": by_length, "dtype": dtype},
        )
        for dtype in ("float32", "bfloat16")
        for cut, by_length in (("same batches", False), ("sorted by length", True))
    ]
    return _task("training a text", work, own, peers, {"unit": "1,000 target tokens"})


def _translating(work: Work, folder: str, beams: int) -> Task:
    shared = {"beams": beams, "together": _TOGETHER.value}
    own = reporting.own("translating", {"folder": folder, **shared}, [work])
    options = {"path": prepared.text_file(folder), **shared}
    peers = [
        Subject(
            f"CTranslate2 {dtype}", f"{PROGRAMS}.opennmt.translating", {**options, "dtype": dtype}
        )
        for dtype in ("float32", "int8")
    ]
    peers.append(Subject("Marian float32", f"{PROGRAMS}.marian.translating", options))
    about = {"unit": "sentence"} | shared
    return _task("translating a text", work, own, peers, about)


def _task(
    name: str, work: Work, own: Subject, peers: Sequence[Subject], about: dict[str, Any]
) -> Task:
    kept = map(reporting.with_kept_pages, peers)
    ways = [*reporting.variants(own, [work]), *reporting.with_returned_pages(own)]
    return Task(name, own, [*peers, *kept, *ways], about)


def _results(name: str, work: Work, task: Task) -> Iterator[dict[str, Any]]:
    if not task.others:
        return
    reporting.say(f"{name}, {task.name}")
    for other, figures in compare(task.own, task.others, work, reporting.effort(), reporting.say):
        figures |= task.about
        for side in ("own_", ""):
            a_second = 1e3 / figures[f"{side}ms"]
            if "beams" in task.about:
                figures[f"{side}sentences_per_second"] = round(a_second, 1)
            else:
                figures[f"{side}target_tokens_per_second"] = round(1000 * a_second)
        yield reporting.result(task.name, name, work, task.own, other, figures)


if __name__ == "__main__":
    run(main, config_from=None)
