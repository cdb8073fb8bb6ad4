# SPDX-License-Identifier: Apache-2.0
"""How fast sentences are translated, beside CTranslate2 and Hugging Face.

python -m experiments.benchmarks.decoding_speed --works=W1,W2 --beams=1,4
python -m experiments.benchmarks.decoding_speed --works=W1 --sentences=1

W1 is a small model and W2 the paper's base model (`benchmarks/work.py`), with random weights;
CTranslate2 has those of the Marian model, converted. Every sentence is searched to exactly as many
tokens as the work says, from ids to ids, with the whole search: finished hypotheses, length penalty
and stopping rule. This program and each peer are timed in turns, each in a process of its own; a
figure is the median over the rounds, and a ratio says how many times as long the peer takes.
"matrix products" are those of the search alone, each in its fastest form, as in `training`. Peers
come with pip install -e .[bench]; one that is not there is skipped. Standard output has one JSON
object a result, standard error a table.
"""

import dataclasses
from collections.abc import Iterator

from absl import flags

from experiments.benchmarks import reporting
from experiments.benchmarks.alternating import PROGRAMS, Subject, compare
from experiments.benchmarks.settings import numbers
from experiments.benchmarks.work import WORKS, Work
from experiments.flags import run

_WORKS = flags.DEFINE_list("works", list(WORKS), "Which of them.")
_BEAMS = flags.DEFINE_list("beams", ["1", "4"], "Numbers of beams; 1 is greedy search.")
_SENTENCES = flags.DEFINE_integer(
    "sentences", None, "Translated together; 1 measures the latency of one.", lower_bound=1
)
_TARGETS = flags.DEFINE_list(
    "targets", [], "Tokens of each translation, in place of the work's own."
)


def main() -> None:
    """Measures and prints."""
    works, results = dict(_works()), []
    for name, work in works.items():
        for beams in numbers("beams", _BEAMS.value):
            reporting.say(f"{name}, {'greedy' if beams == 1 else f'{beams} beams'}")
            own = reporting.own("decoding", {"beams": beams}, works.values())
            products = dataclasses.replace(
                own, name="matrix products", place=f"{PROGRAMS}.own.search_products"
            )
            ways = [
                products,
                *reporting.variants(own, works.values()),
                *reporting.with_returned_pages(own),
            ]
            others = reporting.chosen([*_peers(beams), *ways])
            for other, figures in compare(own, others, work, reporting.effort(), reporting.say):
                tokens = work.rows * work.target
                figures |= {
                    "beams": beams,
                    "own_tokens_per_second": round(tokens / figures["own_ms"] * 1e3),
                    "own_sentences_per_second": round(work.rows / figures["own_ms"] * 1e3, 1),
                }
                results.append(reporting.result("decoding", name, work, own, other, figures))
    reporting.print_table(results)


def _works() -> Iterator[tuple[str, Work]]:
    targets = numbers("targets", _TARGETS.value)
    for name in reporting.works(_WORKS.value):
        work = dataclasses.replace(WORKS[name], rows=_SENTENCES.value or WORKS[name].rows)
        if not targets:
            yield name, work
        for target in targets:
            yield f"{name} {target}", dataclasses.replace(work, target=target)


def _peers(beams: int) -> list[Subject]:
    peers = [
        Subject(
            f"CTranslate2 {dtype}", f"{PROGRAMS}.opennmt.decoding", {"beams": beams, "dtype": dtype}
        )
        for dtype in ("float32", "int8")
    ]
    peers.append(Subject("Marian float32", f"{PROGRAMS}.marian.decoding", {"beams": beams}))
    return peers + [reporting.with_kept_pages(peer) for peer in peers]


if __name__ == "__main__":
    run(main, config_from=None)
