# SPDX-License-Identifier: Apache-2.0
"""Make sentence pairs from monolingual text by back-translation (Sennrich et al. 2016).

transformer back_translate --workdir=runs/en-de --input=mono.en --output=back
transformer back_translate --forward --workdir=runs/de-en --ensemble=runs/de-en-1 \\
    --input=train.de --output=forward

The text is in the target language of the model that is to be improved (here German to English). The
workdir is of a model in the other direction, which translates each line. With --forward it is of
models in the same direction, the text is in the source language, and the translations are targets:
the new model learns what an ensemble knows (Kim and Rush 2016). The output directory has the pairs
that pass the filters as two files, and translations.tsv with all lines: log-probability, number of
tokens, translation.

Translations are searched for as the workdir's decode fields say, or sampled, which helps more with
much text (Edunov et al. 2018): --config.decode.method=sample. With --tag="<BT>" each source begins
with a tag, by which the model can tell the pair from a real one (Caswell et al. 2019).

Standard output has the flags that train on the pairs beside the text that the model of the workdir
was trained on, and as the last line one JSON object with the number of pairs and of lines that each
filter left out. After an interruption the same command with --resume continues at the next line. On
a complete output only the filters are applied again.
"""

import dataclasses
import json
import pathlib
import shlex
from typing import Any

from experiments.cli import command_line
from experiments.cli.weights import Weights
from experiments.data import text_files
from experiments.training import synthetic_pairs
from experiments.training.synthetic_pairs import PairOptions
from transformer import paths
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options(PairOptions, Weights):
    """The model, the text, and which pairs are kept."""

    input: str | None = None
    """Text to translate, one sentence a line."""
    output: str | None = None
    """Output directory."""
    resume: bool = False
    """Continue an interrupted translation."""


def run(options: Options) -> dict[str, Any]:
    """Translate what is missing, and filter; return the mixture and what was left out."""
    tag, model = options.tag, options.config.model
    if not (options.input and options.output):
        raise InputError("missing --input=FILE (text to translate) or --output=DIRECTORY")
    if not model.reads_source:
        raise InputError(f"model.family {model.family!r} reads no source to translate")
    if tag is not None and (not tag or tag.split() != [tag]):
        raise InputError(f"--tag={tag!r} must be one word without spaces")
    if not 1 <= options.max_ratio < float("inf"):
        raise InputError(f"--max_ratio={options.max_ratio} must be a number of at least 1")
    if not 0 < options.weight < float("inf"):
        raise InputError(f"--weight={options.weight} must be a number above 0")
    source = paths.local(options.input, "--input")
    text_files.require_file(source, "--input")
    output = pathlib.Path(paths.local(options.output, "--output")).absolute()
    return synthetic_pairs.make(
        options.translator(), source, output, options, resume=options.resume
    )


def main(options: Options) -> None:
    """Print the mixture and the report."""
    report = run(options)
    fields = {name: shlex.quote(str(report[name])) for name in ("direction", "mixture")}
    print(" ".join(f"--config.data.{name}={value}" for name, value in fields.items()))
    print(json.dumps(report))


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
