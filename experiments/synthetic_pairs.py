# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs of text and its translations: filters, and the mixture that trains on them."""

import os
import pathlib

from experiments.corpora import text_files
from transformer import paths
from transformer.config import DataConfig


def mixture(
    data: DataConfig, output: pathlib.Path, weight: float, *, forward: bool = False
) -> dict[str, object]:
    """The fields ``data.direction`` and ``data.mixture`` of a training on the pairs.

    Args:
      data: of the model that translated, whose corpora are read too.
      output: directory of the pairs.
      weight: of the pairs.
      forward: see `direction`.
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

    Args:
      data: of the model that translated.
      forward: the training has the direction of that model, not the other one.
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
    *,
    max_length: int,
    max_ratio: float,
    min_score: float | None,
) -> str | None:
    """The filter that leaves a pair out; None if none does.

    Args:
      line: text that was translated.
      translation: of the line.
      num_tokens: of the line and of the translation, with EOS.
      log_prob: of the translation.
      max_length: maximum number of tokens of a side (``long``), as in training.
      max_ratio: maximum ratio of the two numbers of tokens (``ratio``).
      min_score: minimum log-probability per token (``score``).

    Returns:
      ``empty``, ``long``, ``copied``, ``ratio``, ``score`` or None.
    """
    if not line.strip() or not translation.strip():
        return "empty"
    if max(num_tokens) > max_length:
        return "long"
    if line.strip() == translation.strip():
        return "copied"
    if max(num_tokens) > max_ratio * min(num_tokens):
        return "ratio"
    if min_score is not None and log_prob < min_score * num_tokens[1]:
        return "score"
    return None
