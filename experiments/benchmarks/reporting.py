# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of speed have in common on the command line: which peers, how much effort,
and how results are shown.
"""

import contextlib
import dataclasses
import fnmatch
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from absl import flags

from experiments import allocator, formatting
from experiments.benchmarks.alternating import PROGRAMS, Effort, Subject
from experiments.benchmarks.settings import Overrides, config_of, parse_own, parse_variant
from experiments.benchmarks.work import WORKS, Work
from transformer.errors import InputError

ONLY = flags.DEFINE_list(
    "only", [], "Only what one of these patterns matches, for example 'PyTorch*'; all unless given."
)
ROUNDS = flags.DEFINE_integer(
    "rounds", Effort.rounds, "Of which the median is taken.", lower_bound=1
)
QUIET = flags.DEFINE_float(
    "quiet", Effort.quiet, "The most cores that other processes may keep busy during a sample."
)
BUDGET = flags.DEFINE_float(
    "budget", Effort.budget, "Seconds for a comparison; until then loud samples are taken again."
)
OWN = flags.DEFINE_string(
    "own",
    "",
    "FIELD=VALUE,...: config fields of this program in every comparison, for example "
    "model.dropout_generator=hash; as users have it unless given.",
)
VARIANTS = flags.DEFINE_multi_string(
    "variant",
    [],
    "NAME:FIELD=VALUE,...: this program with these config fields and not those of --own, as one "
    "more that it is compared with; may be given several times.",
)


def define_dropout() -> flags.FlagHolder:
    """The flag of the benchmarks that train."""
    return flags.DEFINE_enum(
        "dropout",
        "inside",
        ["inside", "paper"],
        "inside: also on attention weights and in the feed-forward network, as PyTorch's layers "
        "have it; paper: as the paper has it. The same for all.",
    )


def effort() -> Effort:
    """As the flags say."""
    return Effort(ROUNDS.value, QUIET.value, BUDGET.value)


def works(names: Sequence[str]) -> list[str]:
    """The names, if there is such a work.

    Raises:
      InputError: if not.
    """
    for name in names:
        if name not in WORKS:
            raise InputError(f"--works={name}: there are {', '.join(WORKS)}")
    return list(names)


def chosen(subjects: Sequence[Subject]) -> list[Subject]:
    """Those that ``--only`` names.

    Raises:
      InputError: when a pattern matches none.
    """
    for pattern in ONLY.value:
        if not fnmatch.filter([subject.name for subject in subjects], pattern):
            names = "; ".join(dict.fromkeys(subject.name for subject in subjects))
            raise InputError(f"--only={pattern}: nothing has such a name; there are: {names}")
    return [
        subject
        for subject in subjects
        if not ONLY.value or any(fnmatch.fnmatch(subject.name, one) for one in ONLY.value)
    ]


def own(function: str, options: Mapping[str, Any], measured: Collection[Work]) -> Subject:
    """This program as it is for users but for the fields of ``--own``, to be compared with others.

    Args:
      function: of `programs.own`.
      options: its arguments beside the work and the overridden config fields.
      measured: the works that it will do.

    Raises:
      InputError: for a field that there is not, or a value that it cannot have in one of the works.
    """
    return Subject(
        "this program",
        f"{PROGRAMS}.own.{function}",
        {**options, "overrides": _possible(parse_own(OWN.value), measured)},
        # As `flags.run` does; where that has no effect, it has none here.
        keep_pages=allocator.keep_pages(),
    )


def with_returned_pages(own: Subject) -> list[Subject]:
    """This program with the allocator as it is by default, where that makes a difference."""
    if not own.keep_pages:
        return []
    return [dataclasses.replace(own, name="this program, pages given back", keep_pages=False)]


def variants(own: Subject, measured: Collection[Work]) -> list[Subject]:
    """This program with the fields of ``--variant``.

    Raises:
      InputError: for a field that there is not, or a value that it cannot have in one of the works.
    """
    subjects = []
    for name, overrides in map(parse_variant, VARIANTS.value):
        options = {**own.options, "overrides": _possible(overrides, measured)}
        subjects.append(dataclasses.replace(own, name=f"this program, {name}", options=options))
    return subjects


def _possible(overrides: Overrides, measured: Collection[Work]) -> Overrides:
    """The same, if each work can be done with them."""
    for work in measured:
        config_of(work, overrides)
    return overrides


def with_kept_pages(subject: Subject) -> Subject:
    """The same with this program's allocator settings."""
    return dataclasses.replace(subject, name=f"{subject.name}, pages kept", keep_pages=True)


def result(
    benchmark: str, name: str, work: Work, own: Subject, other: Subject, figures: dict[str, Any]
) -> dict[str, Any]:
    """Prints one result as a JSON object, and returns it."""
    about = {"benchmark": benchmark, "work": name, "rows": work.rows}
    about |= {"source": work.source, "target": work.target, "dropout_inside": work.dropout_inside}
    about |= {"buckets": work.buckets} if work.buckets else {}
    about |= {"own": own.options["overrides"], "against": other.name}
    about |= {"keep_pages": other.keep_pages}
    whole = about | figures
    print(json.dumps(whole), flush=True)
    return whole


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """On standard error, a result a line."""
    if not results:
        return
    head = ["against", "work", "ratio", "quartiles", "own ms", "its ms", "threads", "load", "loud"]
    rows = [head]
    for one in results:
        low, high = one["ratio_quartiles"]
        rows.append(
            [
                one["against"],
                one["work"] + (f", beam {one['beams']}" if "beams" in one else ""),
                f"{one['ratio']:.2f}",
                f"{low:.2f}..{high:.2f}",
                f"{one['own_ms']:.4g}",
                f"{one['ms']:.4g}",
                str(one.get("threads", "")),
                f"{one['other_load']:.2f}",
                f"{one['loud_rounds']}/{one['rounds']}",
            ]
        )
    with contextlib.redirect_stdout(sys.stderr):
        formatting.print_table(rows)


def say(text: str) -> None:
    """To the person who waits."""
    print(text, file=sys.stderr, flush=True)
