# SPDX-License-Identifier: Apache-2.0
"""The files of ``checkpoints/``: listing, verifying, deleting and setting aside.

- ``<step>/`` is a finished checkpoint.
- ``digests/<step>.json`` holds its digests. It is written after all its files, and before the
  directory gets its final name, so every finished checkpoint has one.
- ``digests/<step>.deleted`` replaces that record while a checkpoint is deleted.
- ``damaged-<step>/`` is a checkpoint that was set aside.

Every other name that starts with a step is an unfinished save. Only process 0 uses this module.
"""

import contextlib
import itertools
import json
import logging
from collections.abc import Callable

from etils import epath

from transformer import paths
from transformer.checkpoints import integrity, selection
from transformer.checkpoints.selection import Checkpoint
from transformer.config import TrainingConfig
from transformer.errors import InputError

logger = logging.getLogger(__name__)

METRICS = "metrics/metrics"
"""Path of the validation scores in a checkpoint."""
WRITTEN_LAST = ("_CHECKPOINT_METADATA", "commit_success.txt")
"""Files that Orbax writes after the digests are taken; no parameter depends on them."""


class CheckpointDirectory:
    """The directory with all checkpoints of a run."""

    def __init__(self, path: epath.Path, is_finished: Callable[[epath.Path], bool]):
        """Does not touch the disk; `is_finished` tells whether the save at a path has finished."""
        self.path = path
        self._digests = path / "digests"
        self._is_finished = is_finished

    def open(self, writing: bool) -> list[Checkpoint]:
        """List the checkpoints, oldest first, and warn about damage visible without reading arrays.

        Args:
          writing: create the directory, remove unfinished saves, complete interrupted deletions.

        Raises:
          InputError: when the directory does not exist or cannot be written.
        """
        if writing:
            try:
                self._digests.mkdir(parents=True, exist_ok=True)
                self._remove_leftovers()
            # Each object store raises its own exception types.
            except Exception as error:  # noqa: BLE001
                raise InputError(
                    f"{self.path} cannot be written ({paths.reason(error)}); make it writable, or "
                    "use another --workdir"
                ) from None
        elif not self.path.is_dir():
            raise InputError(
                f"{self.path.parent} has no checkpoints; train first, or check --workdir"
            )
        checkpoints = self.finished()
        for one in checkpoints:
            if one.problem is not None:
                self._warn(one.step, f"{one.problem}; not used if another is intact")
        present = {str(one.step) for one in checkpoints}
        for record in paths.children(self._digests):
            if record.suffix == ".json" and record.stem not in present:
                self._warn(record.stem, "missing: its save did not finish, or it was removed")
                if writing:
                    record.unlink()
        return checkpoints

    def finished(self) -> list[Checkpoint]:
        """List the finished checkpoints, oldest first."""
        names = (path.name for path in paths.children(self.path))
        return [
            self._inspect(step)
            for step in sorted(int(name) for name in names if name.isdecimal())
            if self._is_finished(self.path / str(step))
            and not self._record(step, "deleted").exists()
        ]

    def damage(self, step: int) -> str | None:
        """Describe the first file that does not match its digest; None if all do."""
        try:
            expected = integrity.read_record(self._record(step), step)
            actual = integrity.directory_digests(self.path / str(step), WRITTEN_LAST)
            return integrity.first_difference(expected, actual)
        except integrity.RecordError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename or 'a file'} cannot be read ({paths.reason(error)})"

    def prune(self, config: TrainingConfig) -> list[Checkpoint]:
        """Delete the checkpoints that are not retained and return the others.

        Damaged ones are set aside instead, since users may want to repair them.
        """
        self._remove_leftovers()
        checkpoints = self.finished()
        retained = selection.retained(checkpoints, config)
        for checkpoint in checkpoints:
            if checkpoint not in retained:
                remove = self._delete if checkpoint.problem is None else self._set_aside
                remove(checkpoint.step)
        return retained

    def set_aside_after(self, step: int) -> list[Checkpoint]:
        """Rename all newer checkpoints ``damaged-<step>`` and return the others."""
        for checkpoint in self.finished():
            if checkpoint.step > step:
                self._set_aside(checkpoint.step)
        return self.finished()

    def write_digests(self, step: int, path: epath.Path) -> None:
        """Write the record of a checkpoint whose files, still in `path`, are complete."""
        digests = integrity.directory_digests(path, WRITTEN_LAST)
        integrity.write_record(self._record(step), step, digests)

    def discard(self, step: int) -> None:
        """Remove what a failed save left, as far as possible: writes may still be under way."""
        with contextlib.suppress(OSError):
            self._record(step).unlink(missing_ok=True)
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove unfinished saves and complete interrupted deletions."""
        for path in paths.children(self.path):
            if path.name.partition(".")[0].isdecimal() and not self._is_finished(path):
                path.rmtree()
        for record in paths.children(self._digests):
            if record.suffix == ".deleted":
                (self.path / record.stem).rmtree(missing_ok=True)
            if record.suffix != ".json":
                record.unlink()

    def _inspect(self, step: int) -> Checkpoint:
        """Read the metrics of a checkpoint, which count only if they match their digest."""
        path = self.path / str(step) / METRICS
        try:
            digests = integrity.read_record(self._record(step), step)
        except integrity.RecordError as error:
            metrics = None
            with contextlib.suppress(OSError, ValueError):
                metrics = json.loads(path.read_text())
            return Checkpoint(step, metrics, problem=str(error), verifiable=False)
        if METRICS not in digests:
            return Checkpoint(step, None)
        actual = {METRICS: integrity.file_digest(path)} if path.exists() else {}
        problem = integrity.first_difference({METRICS: digests[METRICS]}, actual)
        return Checkpoint(step, None if problem else json.loads(path.read_text()), problem)

    def _delete(self, step: int) -> None:
        """Delete a checkpoint; if interrupted, `_remove_leftovers` completes the deletion."""
        mark = self._record(step, "deleted")
        self._record(step).replace(mark)
        (self.path / str(step)).rmtree()
        mark.unlink()

    def _set_aside(self, step: int) -> None:
        numbered = (f"damaged-{step}-{number}" for number in itertools.count(2))
        names = itertools.chain([f"damaged-{step}"], numbered)
        unused = next(name for name in names if not (self.path / name).exists())
        (self.path / str(step)).rename(self.path / unused)
        self._record(step).unlink(missing_ok=True)

    def _warn(self, step: int | str, problem: str) -> None:
        logger.warning("%s: step %s: %s", self.path, step, problem)

    def _record(self, step: int, kind: str = "json") -> epath.Path:
        return self._digests / f"{step}.{kind}"
