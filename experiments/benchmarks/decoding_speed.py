# SPDX-License-Identifier: Apache-2.0
"""Speed of greedy and beam search, beside CTranslate2, Hugging Face and other checkouts.

python -m experiments.benchmarks.decoding_speed --workloads=W1,W2 --beams=1,4
python -m experiments.benchmarks.decoding_speed --workloads=W1 --sentences=1
python -m experiments.benchmarks.decoding_speed --lines=val.en \\
    --train_source=train.en --train_target=train.de
python -m experiments.benchmarks.decoding_speed --against=../older --only='checkout*'

W1 is a small model and W2 the paper's base model (`workloads.py`), with random weights; CTranslate2
has those of the Marian model, converted. Every translation has exactly the length of the workload,
from ids to ids, with the complete search: finished hypotheses, length penalty, stopping rule; real
text is described in `real_text.py`. Turns and output are those of `training_speed`.
"""

from typing import Any

from absl import flags

from experiments.benchmarks import real_text, reporting
from experiments.benchmarks.workloads import TRANSFORMERS, Workload
from experiments.cli.command_line import run
from experiments.cli.options import parse_integers
from transformer.errors import InputError

_BEAMS = flags.DEFINE_list("beams", ["1", "4"], "Beam sizes; 1 is greedy search.")
_SENTENCES = flags.DEFINE_integer(
    "sentences", None, "Sentences per batch; 1 measures latency.", lower_bound=1
)
_LINES = flags.DEFINE_string(
    "lines", None, "Text to translate; the vocabulary is that of --train_source and --train_target."
)


def main() -> None:
    """Measure and print."""
    results = []
    beam_sizes = parse_integers("beams", _BEAMS.value)
    size = {"batch_size": _SENTENCES.value} if _SENTENCES.value else {}
    for name, workload in reporting.workloads(**size).items():
        if workload.family != "transformer":
            known = ", ".join(TRANSFORMERS)
            raise InputError(f"--workloads={name}: its peer does not decode; choose from {known}")
        if _LINES.value:
            with real_text.prepared(workload, _LINES.value) as (workload, path):
                for beams in beam_sizes:
                    results += _measure(name, workload, beams, path)
        else:
            for beams in beam_sizes:
                results += _measure(name, workload, beams)
    reporting.print_table(results)


def _measure(
    name: str, workload: Workload, beams: int, path: str | None = None
) -> list[dict[str, Any]]:
    reporting.log(f"{name}, {'greedy' if beams == 1 else f'beam {beams}'}")
    about = {"benchmark": "decoding", "workload": name, "beams": beams}
    options: dict[str, Any] = {"beams": beams}
    function, together = "decoding", {}
    if path:
        about |= {"benchmark": "translating text", "unit": "sentence"}
        options["path"] = path
        function, together = "translating", {"together": workload.batch_size}
    ours = reporting.this_project(function, workload, **options, **together)
    dtypes = reporting.PEER_DTYPES.value or ("float32", "int8")
    peers = [
        *(
            reporting.program(f"CTranslate2 {dtype}", "opennmt.decoding", dtype=dtype, **options)
            for dtype in dtypes
        ),
        reporting.program(f"Marian {dtypes[0]}", "marian.decoding", dtype=dtypes[0], **options),
    ]
    return reporting.measure(ours, peers, workload, about)


if __name__ == "__main__":
    run(main, config_from=None)
