# SPDX-License-Identifier: Apache-2.0
"""Model cards: where a trained model is from, what it scores, and how it is used."""

import contextlib
import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.provenance import provenance
from transformer.trained_model import TrainedModel
from transformer.translator import Translator

_MAX_SCORES = 20


@dataclasses.dataclass(frozen=True)
class Export:
    """The part of a model card about the format of the files."""

    usage: str
    """How to load and use it, in Markdown."""
    dtype: str
    """In which the parameters are stored."""
    differences: Sequence[str] = ()
    """What differs from translating with this project."""
    library: str | None = None
    """Name of the library for the metadata that Hugging Face reads."""


def model_card(
    workdir: paths.Readable,
    trained: TrainedModel | Translator,
    export: Export,
    summary: str,
    weights: str,
) -> str:
    """Return a model card in Markdown, with the records of an opened workdir or bundle.

    `summary` is its first paragraph, and `weights` says which checkpoints were used.
    """
    rows = _facts(workdir, trained, weights, export.dtype)
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    parts = [
        f"# {paths.absolute(str(workdir)).name}\n",
        f"{summary}\n",
        f"| | |\n|---|---|\n{table}\n",
    ]
    scores = _scores(workdir)
    if scores:
        parts.append(f"## Scores\n\nAs `evaluate` recorded them, before the export.\n\n{scores}")
    parts.append(f"## Use\n\n{export.usage}")
    if export.differences:
        notes = "".join(f"- {note}\n" for note in export.differences)
        parts.append(f"## Differences\n\n{notes}")
    fields = json.dumps(dataclasses.asdict(trained.config.model), indent=2)
    parts.append(f"## Model\n\n```json\n{fields}\n```\n")
    return "\n".join(parts)


def _facts(
    workdir: paths.Readable, trained: TrainedModel | Translator, weights: str, dtype: str
) -> dict[str, str]:
    """What is known of a model and its training: name -> value."""
    config = trained.config
    data = config.data
    parameters = sum(leaf.size for leaf in jax.tree.leaves(trained.params))
    source, target = (tokenizer.vocab_size for tokenizer in trained.vocabularies)
    shared = trained.vocabularies.are_shared
    vocabulary = (
        f"{target:,} tokens" if shared else f"{source:,} source and {target:,} target tokens"
    )
    corpora = ", ".join(data.mixture) or data.train_source or data.dataset
    result = _result(workdir)
    training = {"training data": f"{corpora} ({data.direction})"}
    if "imported" in result:
        training = {"imported from": ", ".join(map(str, result["imported"].values()))}
    steps = [str(step) for steps in trained.checkpoints.values() for step in steps]
    return {
        "model": f"{config.model.family}, {parameters:,} parameters ({dtype})",
        "vocabulary": f"{vocabulary} ({data.tokenizer})",
        **training,
        **({"fine-tuned from": config.training.init_from} if config.training.init_from else {}),
        "weights": weights,
        "checkpoints": f"step {', '.join(steps)}",
        **{
            f"last validation, {name}": f"{value:.4g}"
            for name, value in result.get("validation", {}).items()
        },
        "made": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        **{name: value for name, value in provenance().items() if value},
    }


def _result(workdir: paths.Readable) -> dict[str, Any]:
    """The record of a finished training or of an import; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        result = json.loads((workdir / workdir_files.RESULT).read_text())
        return result if isinstance(result, dict) else {}
    return {}


def _scores(workdir: paths.Readable) -> str:
    """A table of the evaluations that a workdir keeps; empty without any."""
    records = []
    # A bundle has none, and a workdir only if something was evaluated.
    with contextlib.suppress(OSError, ValueError):
        for path in (workdir / workdir_files.EVALUATIONS).iterdir():
            if path.name.endswith(".json"):
                with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                    record = json.loads(path.read_text(encoding="utf-8"))
                    records.append((record["origin"]["time"], _score_row(record)))
    if not records:
        return ""
    # An evaluation that was made again has the same row.
    rows = list(dict.fromkeys(row for _, row in sorted(records)))[-_MAX_SCORES:]
    head = "| data | sentences | weights | search | BLEU, 95% interval | chrF | signature of BLEU |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows]) + "\n"


def _score_row(record: Mapping[str, Any]) -> str:
    origin = record["origin"]
    data = f"{origin['dataset']}, {origin['split']}" if "split" in origin else origin["source"]
    decode = origin["decode"]
    search = decode["method"]
    if search == "beam":
        search = f"{decode['beams']} beams"
        if decode["length_penalty"] != "none":
            search += f", length penalty {decode['length_penalty']} {decode['alpha']:g}"
    low, high = record["bleu_ci"]
    bleu = f"{record['bleu']:.1f}, {low:.1f} to {high:.1f}"
    columns = [
        *(data, str(record["sentences"]), origin["weights"], search, bleu),
        *(f"{record['chrf']:.1f}", f"`{record['bleu_signature']}`"),
    ]
    return "| " + " | ".join(column.replace("|", r"\|") for column in columns) + " |"


def hub_metadata(config: Config, library: str | None) -> str:
    """Return the YAML block with which a model card begins on the Hugging Face Hub."""
    languages = config.data.direction.split("-")
    lines = ["---", "pipeline_tag: translation"]
    if len(languages) == 2 and all(languages):
        lines += ["language:", *(f"- {language}" for language in languages)]
    if library:
        lines.append(f"library_name: {library}")
    return "\n".join([*lines, "---", "", ""])
