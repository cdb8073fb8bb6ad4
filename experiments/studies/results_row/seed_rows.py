# SPDX-License-Identifier: Apache-2.0
"""A row of a table of results from several trainings of one recipe."""

import pathlib
import platform
import re
import statistics
from collections.abc import Sequence
from typing import Any

import jax

from experiments.studies import study_tables
from experiments.studies.study_tables import Column
from transformer.cores import num_cores

COLUMNS = (
    Column("config", "config"),
    Column("parameters", "parameters", "{:,}"),
    Column("steps", "steps", "{:,}"),
    Column("seeds", "seeds"),
    Column("BLEU, 95% interval", "bleu"),
    Column("mean", "mean_bleu", "{:.1f}"),
    Column("chrF", "chrf"),
    Column("NLL", "nll"),
    Column("signature", "signature"),
    Column("minutes each", "minutes", "{:.0f}"),
    Column("minutes of teachers and translations", "teacher_minutes", "{:.0f}"),
    Column("hardware", "hardware"),
    Column("command", "command"),
)


def row_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of trainings that differ in their seed alone."""
    first = results[0]

    def each(key: str, form: str) -> str:
        return "; ".join(form.format(result[key]) for result in results)

    return {
        "parameters": first["parameters"],
        "steps": first["step"],
        "seeds": each("seed", "{}"),
        "bleu": "; ".join(map(study_tables.with_interval, results)),
        "mean_bleu": statistics.fmean(result["bleu"] for result in results),
        "chrf": each("chrf", "{:.1f}"),
        "nll": each("nll", "{:.3f}"),
        "signature": first["bleu_signature"],
        "minutes": statistics.fmean(result["seconds"] for result in results) / 60,
        "trainings": list(results),
    }


def hardware() -> str:
    """The devices that this process computes on, for example ``2 cores of AMD EPYC``."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    name = platform.processor() or platform.machine()
    information = pathlib.Path("/proc/cpuinfo")  # not on every system
    if information.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        name = found[1] if found else name
    cores = num_cores()
    return f"{cores} {'core' if cores == 1 else 'cores'} of {name}"
