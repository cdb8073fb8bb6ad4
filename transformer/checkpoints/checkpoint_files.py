# SPDX-License-Identifier: Apache-2.0
"""The directory of a run's checkpoints: which are there, intact, the best; what is kept.

``<step>/`` is a checkpoint. ``digests/<step>.json`` is the record of its digests, which is written
when its files are complete and before it gets its final name, so that no finished checkpoint is
ever without one. While a checkpoint is deleted ``digests/<step>.deleted`` stands in place of the
record. ``damaged-<step>/`` is one that was set aside. All else that begins with a step was never
finished.

Among several processes only process 0 has to do with the directory's files.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import re
from collections.abc import Callable
from typing import Literal

from etils import epath

from transformer import paths
from transformer.checkpoints import integrity
from transformer.config import TrainingConfig
from transformer.errors import InputError

logger = logging.getLogger(__name__)

METRICS = "metrics/metrics"
"""The file of a checkpoint that holds the scores of its validation."""
WRITTEN_LAST = ("_CHECKPOINT_METADATA", "commit_success.txt")
"""What Orbax writes after the digests are taken; no parameter depends on it."""


@dataclasses.dataclass(frozen=True)
class Score:
    """The validation score by which checkpoints are compared: the higher, the better."""

    best_by: Literal["nll", "bleu"]

    def __call__(self, metrics: dict[str, float]) -> float:
        """BLEU, or the NLL's negative."""
        return metrics["bleu"] if self.best_by == "bleu" else -metrics["nll"]


@dataclasses.dataclass(frozen=True)
class Saved:
    """One checkpoint, as far as can be seen without reading its arrays."""

    step: int
    problem: str | None
    verifiable: bool
    """Whether its digests can be read."""
    metrics: dict[str, float] | None


def best(found: list[Saved], best_by: Literal["nll", "bleu"]) -> Saved | None:
    """The best by validation, the newest if none was validated; None of none at all.

    What has a problem does not count unless all have. The newest of equally good ones is the best.
    """
    intact = [saved for saved in found if saved.problem is None] or found
    score = Score(best_by)

    def order(saved: Saved) -> tuple[float, int]:
        value = score(saved.metrics)
        return (value if math.isfinite(value) else -math.inf), saved.step

    validated = [saved for saved in intact if saved.metrics is not None]
    return max(validated, key=order, default=intact[-1] if intact else None)


class CheckpointFiles:
    """What a training, or whoever reads it, finds in the directory and does there."""

    def __init__(
        self,
        directory: epath.Path,
        config: TrainingConfig,
        is_finished: Callable[[epath.Path], bool],
    ):
        """Touches nothing.

        Args:
          directory: on this machine or wherever `etils.epath` reaches.
          config: how many checkpoints are kept, and by which validation score the best is known.
          is_finished: whether all of the checkpoint at a path was written.
        """
        self.directory = directory
        self._records = directory / "digests"
        self._config = config
        self._is_finished = is_finished

    def place(self, step: int) -> epath.Path:
        """The directory of one checkpoint."""
        return self.directory / str(step)

    def open(self, writing: bool) -> list[Saved]:
        """What is there, oldest first; warns of what can be seen to be damaged.

        Args:
          writing: makes the directory if needed, removes what was never finished, and finishes what
            was being deleted.

        Raises:
          InputError: when there is no such directory, or it cannot be written.
        """
        if writing:
            try:
                self._records.mkdir(parents=True, exist_ok=True)
                self._clean_up()
            except OSError as error:
                raise InputError(
                    f"{self.directory} cannot be written ({error.strerror or error}); make it "
                    "writable, or use another --workdir"
                ) from None
        elif not self.directory.is_dir():
            raise InputError(
                f"{self.directory.parent} has no checkpoints; train first, or check --workdir"
            )
        found = self.listed()
        for saved in found:
            if saved.problem is not None:
                logger.warning(
                    "in %s the checkpoint of step %d: %s; not used if another is intact",
                    *(self.directory, saved.step, saved.problem),
                )
        for step in sorted(self._recorded() - {saved.step for saved in found}):
            logger.warning(
                "in %s the checkpoint of step %d is not there: its save did not finish, or it was "
                "removed",
                *(self.directory, step),
            )
            if writing:
                self._record(step).unlink()
        return found

    def listed(self) -> list[Saved]:
        """What is there, oldest first."""
        steps = (_step_of(path.name) for path in paths.children(self.directory))
        return [
            self._look_at(step)
            for step in sorted(step for step in steps if step is not None)
            if self._is_finished(self.place(step)) and not self._deleted(step).exists()
        ]

    def damage(self, step: int) -> str | None:
        """What of a checkpoint differs from its digests; None if nothing does."""
        try:
            expected = integrity.read(self._record(step), step)
            return integrity.difference(
                expected, integrity.of_files(self.place(step), WRITTEN_LAST)
            )
        except integrity.UnreadableError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename or 'a file'} cannot be read ({error.strerror or error})"

    def tidy(self) -> list[Saved]:
        """Deletes what is no longer to be kept, and what saves that failed left; what is left.

        What is damaged is set aside: it may be what somebody wants to repair.
        """
        self._clean_up()
        found = self.listed()
        middle = found.index(best(found, self._config.best_by))
        around = self._config.keep_around_best
        kept = found[-self._config.keep_last :]
        kept += found[max(middle - around, 0) : middle + around + 1]
        for saved in found:
            if saved not in kept:
                (self._delete if saved.problem is None else self._set_aside)(saved.step)
        return [saved for saved in found if saved in kept]

    def set_aside_after(self, step: int) -> list[Saved]:
        """Renames all newer checkpoints ``damaged-<step>``; what is left."""
        for saved in self.listed():
            if saved.step > step:
                self._set_aside(saved.step)
        return self.listed()

    def take_digests(self, step: int, place: epath.Path) -> None:
        """Writes the record of the checkpoint that gets its final name next.

        Args:
          step: its.
          place: where it is now.
        """
        integrity.write(self._record(step), step, integrity.of_files(place, WRITTEN_LAST))

    def forget(self, step: int, place: epath.Path) -> None:
        """Removes what a save that failed has left, as far as that can be done: parts of it may
        still be on their way to the disk.
        """
        with contextlib.suppress(OSError):
            self._record(step).unlink(missing_ok=True)
            place.rmtree(missing_ok=True)

    def _clean_up(self) -> None:
        for path in paths.children(self.directory):
            if _step_of(path.name.partition(".")[0]) is not None and not self._is_finished(path):
                path.rmtree()
        for path in paths.children(self._records):
            if path.suffix == ".deleted" and (step := _step_of(path.stem)) is not None:
                self.place(step).rmtree(missing_ok=True)
            if path.suffix in (".deleted", ".partial"):
                path.unlink()

    def _recorded(self) -> set[int]:
        """The steps that have digests."""
        records = (path for path in paths.children(self._records) if path.suffix == ".json")
        return {_step_of(path.stem) for path in records} - {None}

    def _look_at(self, step: int) -> Saved:
        path, problem, metrics = self.place(step) / METRICS, None, None
        try:
            files = integrity.read(self._record(step), step)
        except integrity.UnreadableError as error:
            with contextlib.suppress(OSError, ValueError):
                metrics = json.loads(path.read_text())
            return Saved(step, str(error), False, metrics)
        if METRICS in files:
            found = {METRICS: integrity.of_file(path)} if path.exists() else {}
            problem = integrity.difference({METRICS: files[METRICS]}, found)
            metrics = None if problem else json.loads(path.read_text())
        return Saved(step, problem, True, metrics)

    def _delete(self, step: int) -> None:
        """Whatever interrupts it, the next opening ends it."""
        self._record(step).replace(self._deleted(step))
        self.place(step).rmtree()
        self._deleted(step).unlink()

    def _set_aside(self, step: int) -> None:
        again = (f"damaged-{step}-{number}" for number in itertools.count(2))
        names = itertools.chain([f"damaged-{step}"], again)
        free = next(name for name in names if not (self.directory / name).exists())
        self.place(step).rename(self.directory / free)
        self._record(step).unlink(missing_ok=True)

    def _record(self, step: int) -> epath.Path:
        return self._records / f"{step}.json"

    def _deleted(self, step: int) -> epath.Path:
        return self._records / f"{step}.deleted"


def _step_of(name: str) -> int | None:
    """The step that a name stands for, if it does."""
    return int(name) if re.fullmatch("0|[1-9][0-9]*", name) else None
