# SPDX-License-Identifier: Apache-2.0
"""Make sentence pairs from monolingual text by back-translation (Sennrich et al. 2016).

python -m experiments.back_translate --workdir=runs/en-de --input=mono.en --output=back
python -m experiments.back_translate --forward --workdir=runs/de-en --ensemble=runs/de-en-1 \\
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

import json
import pathlib
import shlex

from absl import flags

from experiments.cli import checkpoint_flags
from experiments.cli.command_line import run
from experiments.data import text_files
from experiments.training import synthetic_pairs
from experiments.training.synthetic_pairs import Options
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError

INPUT = flags.DEFINE_string("input", None, "Text to translate, one sentence a line.")
OUTPUT = flags.DEFINE_string("output", None, "Output directory.")
RESUME = flags.DEFINE_boolean("resume", False, "Continue an interrupted translation.")
FORWARD = flags.DEFINE_boolean("forward", False, "Make the translations targets, not sources.")
TAG = flags.DEFINE_string("tag", None, "Word that begins each source, for example <BT>.")
MAX_RATIO = flags.DEFINE_float(
    "max_ratio",
    Options.max_ratio,
    "Maximum ratio of the numbers of tokens of the two sides, with EOS.",
)
MIN_SCORE = flags.DEFINE_float(
    "min_score", None, "Minimum log-probability per token of a translation; default: none."
)
WEIGHT = flags.DEFINE_float(
    "weight", Options.weight, "Weight of the pairs in the mixture: how often an epoch reads each."
)


def main(config: Config) -> None:
    """Translate what is missing, filter, and print the mixture."""
    if not (INPUT.value and OUTPUT.value):
        raise InputError("missing --input=FILE (text to translate) or --output=DIRECTORY")
    if not config.model.reads_source:
        raise InputError(f"model.family {config.model.family!r} reads no source to translate")
    if TAG.value is not None and (not TAG.value or TAG.value.split() != [TAG.value]):
        raise InputError(f"--tag={TAG.value!r} must be one word without spaces")
    if not 1 <= MAX_RATIO.value < float("inf"):
        raise InputError(f"--max_ratio={MAX_RATIO.value} must be a number of at least 1")
    if not 0 < WEIGHT.value < float("inf"):
        raise InputError(f"--weight={WEIGHT.value} must be a number above 0")
    source = paths.local(INPUT.value, "--input")
    text_files.require_file(source, "--input")
    output = pathlib.Path(paths.local(OUTPUT.value, "--output")).absolute()
    options = Options(
        forward=FORWARD.value,
        tag=TAG.value,
        max_ratio=MAX_RATIO.value,
        min_score=MIN_SCORE.value,
        weight=WEIGHT.value,
    )
    translator = checkpoint_flags.translator(config)
    report = synthetic_pairs.make(translator, source, output, options, resume=RESUME.value)
    fields = {name: shlex.quote(str(report[name])) for name in ("direction", "mixture")}
    print(" ".join(f"--config.data.{name}={value}" for name, value in fields.items()))
    print(json.dumps(report))


if __name__ == "__main__":
    run(main, config_from="workdir")
