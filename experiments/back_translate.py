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

import hashlib
import itertools
import json
import pathlib
import shlex
import sys
from collections import Counter
from collections.abc import Iterator

from absl import flags

from experiments import checkpoint_flags, synthetic_pairs
from experiments.corpora import text_files
from experiments.flags import run
from experiments.line_output import LineProgress, ResumableFile
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator

INPUT = flags.DEFINE_string("input", None, "Text to translate, one sentence a line.")
OUTPUT = flags.DEFINE_string("output", None, "Output directory.")
RESUME = flags.DEFINE_boolean("resume", False, "Continue an interrupted translation.")
FORWARD = flags.DEFINE_boolean("forward", False, "Make the translations targets, not sources.")
TAG = flags.DEFINE_string("tag", None, "Word that begins each source, for example <BT>.")
MAX_RATIO = flags.DEFINE_float(
    "max_ratio", 3.0, "Maximum ratio of the numbers of tokens of the two sides, with EOS."
)
MIN_SCORE = flags.DEFINE_float(
    "min_score", None, "Minimum log-probability per token of a translation; default: none."
)
WEIGHT = flags.DEFINE_float(
    "weight", 1.0, "Weight of the pairs in the mixture: how often an epoch reads each."
)
TRANSLATIONS = "translations.tsv"
REPORT = "report.json"
BATCHES = 64
"""Batches in a chunk: its sentences are sorted by length, its results are written together."""


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
    translator = checkpoint_flags.translator(config)
    try:
        output.mkdir(parents=True, exist_ok=True)
        identity = _translate(translator, source, output)
        report = _filter(translator, source, output)
        report |= {
            "identity": identity,
            **synthetic_pairs.mixture(config.data, output, WEIGHT.value, forward=FORWARD.value),
        }
        workdir_files.write_json(output / REPORT, report)
    except OSError as error:
        raise InputError(f"--output={output} cannot be written: {paths.reason(error)}") from None
    fields = {name: shlex.quote(str(report[name])) for name in ("direction", "mixture")}
    print(" ".join(f"--config.data.{name}={value}" for name, value in fields.items()))
    print(json.dumps(report))


def _translate(translator: Translator, source: str, output: pathlib.Path) -> str:
    """Translate the lines that are not translated yet; returns the identity of all of them."""
    digest, total = hashlib.sha256(), 0
    for line in text_files.lines(source, allow_empty=True):
        digest.update(f"{line}\n".encode())
        total += 1
    config, checkpoints = translator.config, sorted(translator.checkpoints.items())
    settings = [config.decode, config.model, config.data.max_length, checkpoints]
    identity = hashlib.sha256(f"{digest.hexdigest()} {settings}".encode()).hexdigest()
    if _identity_of(output) == identity and (output / TRANSLATIONS).exists():
        print(f"{output / TRANSLATIONS} is complete; filtering it", file=sys.stderr)
        return identity
    (output / REPORT).unlink(missing_ok=True)
    size = BATCHES * config.decode.batch_size
    with ResumableFile(str(output / TRANSLATIONS), identity, RESUME.value, 1) as file:
        start = file.num_lines
        progress = LineProgress(start, total)
        remaining = itertools.islice(text_files.lines(source, allow_empty=True), start, None)
        while chunk := list(itertools.islice(remaining, size)):
            for [best] in translator.nbest(chunk, 1, start + 1):
                file.writelines([f"{best.log_prob:.6f}\t{len(best.tokens)}\t{best.text}\n"])
            file.flush()
            start += len(chunk)
            progress.report(start)
    workdir_files.write_json(output / REPORT, {"identity": identity})
    return identity


def _identity_of(output: pathlib.Path) -> str | None:
    """The identity of complete translations; None if there are none."""
    try:
        return json.loads((output / REPORT).read_text())["identity"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _filter(translator: Translator, source: str, output: pathlib.Path) -> dict[str, object]:
    """Write the pairs that pass the filters; returns their number, and the lines left out."""
    data = translator.config.data
    _, source_side, target_side = synthetic_pairs.direction(data, forward=FORWARD.value)
    dropped: Counter[str] = Counter()
    num_pairs = 0
    tag = f"{TAG.value} " if TAG.value else ""
    files = [output / f"pairs.{side}" for side in (source_side, target_side)]
    partial = [file.with_name(f"{file.name}.partial") for file in files]
    options = {"encoding": "utf-8", "newline": "\n"}
    with partial[0].open("w", **options) as sources, partial[1].open("w", **options) as targets:
        for text, translation, reason in _judged(translator, source, output):
            if reason:
                dropped[reason] += 1
                continue
            num_pairs += 1
            pair = (text, translation) if FORWARD.value else (translation, text)
            sources.write(f"{tag}{pair[0]}\n")
            targets.write(f"{pair[1]}\n")
    if not num_pairs:
        raise InputError(f"no line of {source} passed the filters ({dict(dropped)}); relax them")
    for file, complete in zip(partial, files, strict=True):
        file.replace(complete)
    return {"pairs": num_pairs, "dropped": dict(dropped), "tag": TAG.value}


def _judged(
    translator: Translator, source: str, output: pathlib.Path
) -> Iterator[tuple[str, str, str | None]]:
    """Yield each line, its translation, and the filter that leaves it out, or None."""
    lines = text_files.lines(source, allow_empty=True)
    translations = text_files.lines(str(output / TRANSLATIONS), allow_empty=True)
    while chunk := list(itertools.islice(lines, 10_000)):
        lengths = map(len, translator.vocabularies.source.encode(chunk))
        for line, length in zip(chunk, lengths, strict=True):
            log_prob, tokens, translation = next(translations).split("\t", 2)
            reason = synthetic_pairs.dropped_by(
                line,
                translation,
                (length, int(tokens)),
                float(log_prob),
                max_length=translator.config.data.max_length,
                max_ratio=MAX_RATIO.value,
                min_score=MIN_SCORE.value,
            )
            yield line, translation, reason


if __name__ == "__main__":
    run(main, config_from="workdir")
