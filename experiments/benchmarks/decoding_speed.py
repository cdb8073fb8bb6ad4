# SPDX-License-Identifier: Apache-2.0
"""Speed of greedy and beam search, beside CTranslate2, Hugging Face and other checkouts.

python -m experiments.benchmarks.decoding_speed --workloads=W1,W2 --beams=1,4
python -m experiments.benchmarks.decoding_speed --workloads=W1 --sentences=1
python -m experiments.benchmarks.decoding_speed --against=../older --only='checkout*'

W1 is a small model and W2 the paper's base model (`workloads.py`), with random weights; CTranslate2
has those of the Marian model, converted. Every translation has exactly the length of the workload,
from ids to ids, with the complete search: finished hypotheses, length penalty, stopping rule. Turns
and output are those of `training_speed`.
"""

import dataclasses

from absl import flags

from experiments.benchmarks import reporting
from experiments.benchmarks.alternating import PROGRAMS, Subject
from experiments.benchmarks.settings import parse_integers
from experiments.flags import run

_BEAMS = flags.DEFINE_list("beams", ["1", "4"], "Beam sizes; 1 is greedy search.")
_SENTENCES = flags.DEFINE_integer(
    "sentences", None, "Sentences per batch; 1 measures latency.", lower_bound=1
)


def main() -> None:
    """Measure and print."""
    results = []
    workloads = reporting.workloads(
        lambda one: dataclasses.replace(one, batch_size=_SENTENCES.value or one.batch_size)
    )
    for name, workload in workloads.items():
        for beams in parse_integers("beams", _BEAMS.value):
            reporting.log(f"{name}, {'greedy' if beams == 1 else f'beam {beams}'}")
            ours = reporting.this_project("decoding", {"beams": beams}, workload)
            about = {"benchmark": "decoding", "workload": name, "beams": beams}
            results += reporting.measure(ours, _peers(beams), workload, about)
    reporting.print_table(results)


def _peers(beams: int) -> list[Subject]:
    return [
        *(
            Subject(
                f"CTranslate2 {dtype}",
                f"{PROGRAMS}.opennmt.decoding",
                {"beams": beams, "dtype": dtype},
            )
            for dtype in ("float32", "int8")
        ),
        Subject("Marian float32", f"{PROGRAMS}.marian.decoding", {"beams": beams}),
    ]


if __name__ == "__main__":
    run(main, config_from=None)
