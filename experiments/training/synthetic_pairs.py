# SPDX-License-Identifier: Apache-2.0
"""Make and filter pairs of a text and its translations, and the mixture that trains on them."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from etils import epath

from experiments.console.progress import Rate, say
from experiments.data import text_files
from experiments.storage.line_output import ResumableFile
from experiments.training import allocator
from transformer import paths
from transformer.checkpoints import integrity, workdir_files
from transformer.config import DataConfig
from transformer.errors import InputError
from transformer.translator import Translator

TRANSLATIONS = "translations.tsv"
REPORT = "report.json"
BATCHES = 64
"""Batches in a chunk: its sentences are sorted by length, its results are written together."""


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """Which pairs are made of lines and their translations."""

    forward: bool = False
    """Make the translations targets, not sources."""
    tag: str | None = None
    """Word that begins each source, for example <BT>."""
    max_ratio: float = 3.0
    """Maximum ratio of the numbers of tokens of the two sides, with EOS."""
    min_score: float | None = None
    """Minimum log-probability per token of a translation; default: none."""
    weight: float = 1.0
    """Weight of the pairs in the mixture: how often an epoch reads each."""


def make(
    translator: Translator,
    source: str,
    output: pathlib.Path,
    options: PairOptions,
    *,
    resume: bool = False,
) -> dict[str, Any]:
    """Translate a text, filter the pairs, and write them to a directory.

    What a complete directory has is not translated again: only the filters are applied.

    Args:
      translator: translates the lines.
      source: text file, one sentence a line.
      output: directory, made if missing, of ``translations.tsv`` (log-probability, number of
        tokens, translation of each line), the two files of pairs, and ``report.json``.
      options: which pairs are made.
      resume: continue an interrupted translation.

    Returns:
      The report: ``pairs`` and ``dropped``, their numbers, and the fields of `mixture`.

    Raises:
      InputError: when no pair passes the filters, or nothing can be written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        complete = _translate(translator, source, output, resume)
        report = _filter(translator, source, output, options)
        data = translator.config.data
        fields = mixture(data, output, options.weight, forward=options.forward)
        report |= {**complete, **fields}
        workdir_files.write_json(output / REPORT, report)
    except OSError as error:
        raise InputError(
            f"{output} cannot be written: {paths.reason(error)}; name another directory"
        ) from None
    return report


def _translate(
    translator: Translator, source: str, output: pathlib.Path, resume: bool
) -> dict[str, str]:
    """Translate the lines that are not translated yet.

    Returns:
      ``identity`` of what all translations depend on, and ``digest`` of their file.
    """
    digest, total = hashlib.sha256(), 0
    for line in text_files.lines(source, allow_empty=True):
        digest.update(f"{line}\n".encode())
        total += 1
    config = translator.config
    settings = [config.decode, config.model, config.data.max_length, translator.params_digest]
    identity = hashlib.sha256(f"{digest.hexdigest()} {settings}".encode()).hexdigest()
    file = epath.Path(output) / TRANSLATIONS
    complete = _complete(output)
    if complete.get("identity") == identity and file.exists():
        if complete.get("digest") != integrity.file_digest(file):
            raise InputError(f"{file} was changed after it was made; remove it to translate again")
        say(f"{file} is complete; filtering it")
        return complete
    (output / REPORT).unlink(missing_ok=True)
    size = BATCHES * config.decode.batch_size
    with ResumableFile(str(file), identity, resume, 1, total) as lines:
        start = lines.num_lines
        progress = Rate("lines", start, total)
        remaining = itertools.islice(text_files.lines(source, allow_empty=True), start, None)
        while chunk := list(itertools.islice(remaining, size)):
            for [best] in translator.nbest(chunk, 1, start + 1):
                lines.writelines([f"{best.log_prob:.6f}\t{len(best.tokens)}\t{best.text}\n"])
            lines.flush()
            allocator.return_unused_pages()
            start += len(chunk)
            progress.report(start)
    complete = {"identity": identity, "digest": integrity.file_digest(file)}
    workdir_files.write_json(output / REPORT, complete)
    return complete


def _complete(output: pathlib.Path) -> dict[str, str]:
    """The identity and the digest of complete translations; empty if there are none."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        report = json.loads((output / REPORT).read_text())
        return {"identity": report["identity"], "digest": report["digest"]}
    return {}


def _filter(
    translator: Translator, source: str, output: pathlib.Path, options: PairOptions
) -> dict[str, Any]:
    """Write the pairs that pass the filters; returns their number, and the lines left out."""
    _, source_side, target_side = direction(translator.config.data, forward=options.forward)
    dropped: Counter[str] = Counter()
    num_pairs = 0
    tag = f"{options.tag} " if options.tag else ""
    files = [output / f"pairs.{side}" for side in (source_side, target_side)]
    partial = [file.with_name(f"{file.name}.partial") for file in files]
    as_text = {"encoding": "utf-8", "newline": "\n"}
    with partial[0].open("w", **as_text) as sources, partial[1].open("w", **as_text) as targets:
        for text, translation, reason in _judged(translator, source, output, options):
            if reason:
                dropped[reason] += 1
                continue
            num_pairs += 1
            pair = (text, translation) if options.forward else (translation, text)
            sources.write(f"{tag}{pair[0]}\n")
            targets.write(f"{pair[1]}\n")
    if not num_pairs:
        raise InputError(f"no line of {source} passed the filters ({dict(dropped)}); relax them")
    for file, complete in zip(partial, files, strict=True):
        file.replace(complete)
    return {"pairs": num_pairs, "dropped": dict(dropped), "tag": options.tag}


def _judged(
    translator: Translator, source: str, output: pathlib.Path, options: PairOptions
) -> Iterator[tuple[str, str, str | None]]:
    """Yield each line, its translation, and the filter that leaves it out, or None."""
    lines = text_files.lines(source, allow_empty=True)
    translations = text_files.lines(str(output / TRANSLATIONS), allow_empty=True)
    max_length = translator.config.data.max_length
    while chunk := list(itertools.islice(lines, 10_000)):
        lengths = map(len, translator.vocabularies.source.encode(chunk))
        for line, length in zip(chunk, lengths, strict=True):
            log_prob, tokens, translation = next(translations).split("\t", 2)
            yield (
                line,
                translation,
                dropped_by(
                    *(line, translation, (length, int(tokens)), float(log_prob)),
                    max_length,
                    options,
                ),
            )


def mixture(
    data: DataConfig, output: pathlib.Path, weight: float, *, forward: bool = False
) -> dict[str, object]:
    """The fields ``data.direction`` and ``data.mixture`` of a training on the pairs.

    It reads the corpora of `data`, the data config of the model that translated, too.
    """
    name, source, target = direction(data, forward=forward)
    corpora = data.mixture or (data.dataset,)
    if not data.mixture and data.dataset == "text_files":
        files = (data.train_source, data.train_target)
        corpora = (",".join(os.fspath(paths.absolute(file)) for file in files if file),)
    # The entries are read in this direction, which swaps the files of each if it is backward.
    sides = (target, source) if name == "backward" else (source, target)
    pairs = ",".join(str(output / f"pairs.{side}") for side in sides)
    weighted = [entry if "*" in entry else f"1*{entry}" for entry in corpora]
    return {"direction": name, "mixture": (*weighted, f"{weight:g}*{pairs}")}


def direction(data: DataConfig, *, forward: bool = False) -> tuple[str, str, str]:
    """The direction of a training on the pairs, and the names of its source and target.

    With `forward` it is the direction of the model that translated, not the other one.
    """
    if data.direction not in ("forward", "backward"):
        source, _, target = data.direction.partition("-")
        if not forward:
            source, target = target, source
        return f"{source}-{target}", source, target
    files = [data.train_source, data.train_target]
    if data.mixture:
        files = data.mixture[0].rpartition("*")[2].split(",")
    languages = None
    if len(files) == 2 and all(files):
        languages = text_files.TwoFiles(*files).languages
    other = {"forward": "backward", "backward": "forward"}
    name = data.direction if forward else other[data.direction]
    if languages is None:
        return name, "source", "target"
    return name, *(reversed(languages) if name == "backward" else languages)


def dropped_by(
    line: str,
    translation: str,
    num_tokens: tuple[int, int],
    log_prob: float,
    max_length: int,
    options: PairOptions,
) -> Literal["empty", "long", "copied", "ratio", "score"] | None:
    """The filter that leaves a pair out; None if none does. `num_tokens` of both sides have EOS."""
    if not line.strip() or not translation.strip():
        return "empty"
    if max(num_tokens) > max_length:
        return "long"
    if line.strip() == translation.strip():
        return "copied"
    if max(num_tokens) > options.max_ratio * min(num_tokens):
        return "ratio"
    if options.min_score is not None and log_prob < options.min_score * num_tokens[1]:
        return "score"
    return None
