# SPDX-License-Identifier: Apache-2.0
"""Save and restore training states with Orbax; the only module that imports it.

A checkpoint is ``checkpoints/<step>/`` with the items ``params`` (the weights to use: the running
average if there is one), ``progress`` (the other fields of the training state), ``meta`` (JSON,
with the `Identity` of model and vocabularies) and, after a validation, ``metrics``. Reading the
parameters needs no ``progress``, which may be deleted from a copy.

Orbax does not detect a flipped byte, so ``digests/<step>.json`` has the SHA-256 of every file. It
is written after all files, and before the directory gets its final name. Files are compared with it
when a checkpoint is restored. One that differs is never used: a training sets it aside as
``damaged-<step>``. One without readable digests is used, with a warning.

A training deletes old checkpoints only when the new one is complete. A reader whose checkpoint is
deleted meanwhile chooses again.

With several processes, all of them call every method. All write and read arrays; process 0 alone
inspects and changes the directory.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import jax
import orbax.checkpoint as ocp
from etils import epath

from transformer import paths, processes
from transformer.arrays import Params
from transformer.checkpoints import integrity, selection, workdir_files
from transformer.checkpoints.identity import Identity
from transformer.checkpoints.selection import Checkpoint
from transformer.config import TrainingConfig
from transformer.errors import InputError
from transformer.training.step import TrainState

logger = logging.getLogger(__name__)
Restored = TypeVar("Restored")

IDENTITY = "trained_with"
"""Key of the `Identity` in the meta data of a checkpoint."""
METRICS = "metrics/metrics"
"""Path of the validation scores in a checkpoint."""
WRITTEN_LAST = ("_CHECKPOINT_METADATA", "commit_success.txt")
"""Files that Orbax writes after the digests are taken; no parameter depends on them."""
_MOST_LISTINGS = 20
"""Listings of a directory that another process changes meanwhile."""
DELETED = "deleted"
"""Directory into which checkpoints are moved to be deleted: renaming is atomic, deleting is not."""


class _DamageError(InputError):
    """A checkpoint does not match its digests, or cannot be read."""


class _DeletedError(Exception):
    """A training has deleted the checkpoint that is being read."""


class _Manager(ocp.CheckpointManager):
    """Orbax's manager, which is not asked when a training should stop."""

    def reached_preemption(self, step: int) -> bool:
        """Return False: the training loop notices signals, and saves.

        After a save because of a signal, Orbax computes the time since the previous checkpoint. It
        fails if an earlier process saved that one: with `lightweight_initialize` its time is unset.
        """
        del step
        return False


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of one workdir, saved in the background; use it in a ``with`` statement."""

    def __init__(
        self,
        workdir: str | os.PathLike,
        config: TrainingConfig,
        identity: Identity | None = None,
        *,
        writing: bool = False,
    ):
        """Open ``workdir/checkpoints`` and warn about damage that is visible in small files.

        Args:
          workdir: local, or in an object store.
          config: how many checkpoints are kept, and the validation score that ranks them.
          identity: saved with each checkpoint, and required of each that is restored. Checkpoints
            of earlier versions have none.
          writing: open for training; otherwise nothing in the directory changes.

        Raises:
          InputError: when the directory does not exist or cannot be written, or for a path that
            Orbax cannot read.
        """
        self.directory = paths.absolute(workdir) / workdir_files.CHECKPOINTS
        workdir_files.require_readable_name(self.directory.parent)
        self._digests = self.directory / "digests"
        self._config, self._identity, self._writing = config, identity, writing
        self._saving: int | None = None  # the step
        self.restored_steps: list[int] = []  # of the parameters restored last
        processes.from_main_process(self._prepare_directory)
        self._manager = self._new_manager()
        self._update(warn=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the save in progress, which would otherwise be lost."""
        try:
            self.finish()
        finally:
            self._manager.close()

    def finish(self) -> None:
        """Wait for the save in progress, and delete the checkpoints that are no longer kept.

        Raises an InputError when the checkpoint could not be written.
        """
        if self._saving is not None:
            with self._explained(self._saving):
                self._manager.wait_until_finished()
            self._saving = None
            self._update()
            self._delete_old()

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        return [checkpoint.step for checkpoint in self._checkpoints]

    def best(self) -> int | None:
        """The step with the best validation score; the newest if none was validated."""
        best = selection.best(self._checkpoints)
        return None if best is None else best.step

    def save(
        self, state: TrainState, meta: dict[str, Any], metrics: dict[str, float] | None = None
    ) -> None:
        """Start a save; returns when the arrays are copied, before they are written.

        Args:
          state: without logical axes attached. The base of adapters is not saved.
          meta: a value that JSON can represent.
          metrics: ``nll`` and ``bleu`` of the validation at this step, if there was one.

        Raises:
          InputError: when this checkpoint, or the one before, could not be written.
        """
        self.finish()
        step = int(state.step)
        if step in self.steps():
            return
        items = {"progress": ocp.args.StandardSave(_progress(state))}
        if metrics is not None:
            items["metrics"] = ocp.args.JsonSave(metrics)
        self._start_save(step, state.weights, meta, **items)

    def save_params(self, params: Params) -> None:
        """Save parameters without a training state, as of step 0, and wait until they are saved."""
        self._start_save(0, params, {})
        self.finish()

    def _start_save(
        self, step: int, params: Params, meta: dict[str, Any], **items: ocp.args.CheckpointArgs
    ) -> None:
        if self._identity:
            meta = meta | {IDENTITY: self._identity.to_json()}
        items |= {"params": ocp.args.StandardSave(params), "meta": ocp.args.JsonSave(meta)}
        with self._explained(step):
            self._saving = step
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """Restore the newest intact state and its meta; None if nothing was ever saved.

        The base of adapters is not part of a checkpoint, so it is None.

        Args:
          abstract: shapes, dtypes and shardings of the state to restore.

        Raises:
          InputError: when there are checkpoints but none can be used, or the one that would be
            used is of another model or vocabulary.
        """
        if not self._checkpoints:
            return None
        if self.steps() == [0] and not (self._path(0) / "progress").exists():  # `save_params`
            raise InputError(
                f"{self.directory} holds parameters without a training state; train from them in "
                f"another workdir, with --config.training.init_from={self.directory.parent}"
            )

        def read(step: int) -> tuple[TrainState, dict[str, Any]]:
            items = self._read(
                step,
                params=ocp.args.StandardRestore(abstract.weights),
                progress=ocp.args.StandardRestore(_progress(abstract)),
                meta=ocp.args.JsonRestore(),
            )
            weights = {_weights_field(abstract): items["params"]}
            items["meta"].pop(IDENTITY, None)
            return TrainState(**weights, **items["progress"]), items["meta"]

        step, restored = self._first_intact(reversed(self._checkpoints), read)
        damaged = [newer for newer in self.steps() if newer > step]
        if self._writing and damaged:
            processes.from_main_process(lambda: self._set_aside(damaged))
            self._manager.close()
            self._manager = self._new_manager()
            self._update()
        return restored

    def restore_params(
        self,
        abstract: Params,
        average: int | None = None,
        around: Literal["last", "best"] = "last",
        to_model: Callable[[Params], Params] | None = None,
    ) -> Params:
        """Restore the best parameters by validation, or the mean of several (paper 6.1).

        Args:
          abstract: shapes, dtypes and shardings.
          average: number of checkpoints to average; None restores the best one alone.
          around: whether to average the last ones, or the best one and its neighbors.
          to_model: with LoRA, merges the adapters of each checkpoint, before averaging.

        Raises:
          InputError: when no checkpoint can be used, there are fewer than `average`, or one of them
            is of another model or vocabulary.
        """

        def read(step: int) -> Params:
            params = self._read(step, params=ocp.args.StandardRestore(abstract))["params"]
            return params if to_model is None else to_model(params)

        while True:
            try:
                return self._restore_params(read, average, around)
            except _DeletedError:
                self._update()

    def require_readable(self, abstract: Params) -> None:
        """Wait for the save in progress, and read the newest parameters back.

        Args:
          abstract: their shapes, dtypes and shardings.

        Raises:
          InputError: when they cannot be read.
        """
        self.finish()
        params = ocp.args.StandardRestore(abstract)
        self._intact(self.steps()[-1], lambda step: self._read(step, params=params))

    def _restore_params(
        self, read: Callable[[int], Params], average: int | None, around: Literal["last", "best"]
    ) -> Params:
        best = selection.best(self._checkpoints)
        if average is None:
            newest_first = reversed(self._checkpoints)
            candidates = sorted(newest_first, key=lambda one: one != best)
            step, params = self._first_intact(candidates, read)
            self.restored_steps = [step]
            return params
        if not 1 <= average <= len(self._checkpoints):
            raise InputError(
                f"--average={average}, but {self.directory} holds {len(self._checkpoints)} "
                "checkpoints; average at most that many, or keep more with training.keep_last"
            )
        center = best if around == "best" else None
        chosen = selection.averaged(self._checkpoints, average, center)
        self.restored_steps = [checkpoint.step for checkpoint in chosen]
        try:
            params = [self._intact(step, read) for step in self.restored_steps]
        except _DamageError as error:
            raise InputError(
                f"--average={average} needs intact checkpoints {self.restored_steps}, but {error}; "
                "average fewer, or leave --average out"
            ) from None
        return average_params(params)

    def _prepare_directory(self) -> None:
        if self._writing:
            try:
                self._digests.mkdir(parents=True, exist_ok=True)
            # Each object store raises its own exception types.
            except Exception as error:  # noqa: BLE001
                raise InputError(
                    f"{self.directory} cannot be written ({paths.reason(error)}); make it "
                    "writable, or use another --workdir"
                ) from None
        elif not self.directory.is_dir():
            raise InputError(
                f"{self.directory.parent} has no checkpoints; train first, or check --workdir"
            )

    def _new_manager(self) -> ocp.CheckpointManager:
        return _Manager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                create=False,
                # Orbax would fail on damaged metrics; they are read here, after their digests.
                lightweight_initialize=True,
                async_options=ocp.AsyncOptions(post_finalization_callback=self._write_digests),
            ),
        )

    def _update(self, warn: bool = False) -> None:
        """List the checkpoints as process 0 sees them."""
        listed = processes.from_main_process(lambda: self._inspect_all(warn))
        self._checkpoints = [Checkpoint(**fields) for fields in listed]

    def _inspect_all(self, warn: bool) -> list[dict[str, Any]]:
        if self._writing:
            self._remove_leftovers()
        for _ in range(_MOST_LISTINGS):
            steps = sorted(ocp.utils.checkpoint_steps(self.directory))
            checkpoints = [self._inspect(step, warn) for step in steps]
            # None was deleted meanwhile. A listing can also miss the newest, which was renamed, and
            # the one before it, which was deleted.
            some_saved = steps or not paths.children(self._digests)
            if some_saved and all(self._path(step).exists() for step in steps):
                break
        for record in paths.children(self._digests):
            if not self._path(record.stem).exists():
                reported = self._writing or not self._is_moving(record.stem)
                if warn and record.suffix == ".json" and reported:
                    logger.warning(
                        "%s: step %s: missing: its save did not finish, or it was removed",
                        *(self.directory, record.stem),
                    )
                if self._writing:
                    record.unlink()
        return [dataclasses.asdict(checkpoint) for checkpoint in checkpoints]

    def _is_moving(self, step: str) -> bool:
        """Whether a training is completing this checkpoint, has just done so, or deletes it."""
        names = f"{step}{ocp.utils.TMP_DIR_SUFFIX}", step, f"{DELETED}/{step}"
        return any((self.directory / name).exists() for name in names)

    def _delete_old(self) -> None:
        """Delete the checkpoints that are not to be kept."""
        kept = selection.retained(self._checkpoints, self._config)
        old = [one.step for one in self._checkpoints if one not in kept]

        def delete() -> None:
            for step in old:
                if paths.is_remote(self.directory):  # to rename is to copy
                    self._record(step).unlink(missing_ok=True)
                    self._path(step).rmtree()
                else:
                    (self.directory / DELETED).mkdir(exist_ok=True)
                    self._path(step).rename(self.directory / DELETED / str(step))

        if old:
            processes.from_main_process(delete)
            self._update()

    def _remove_leftovers(self) -> None:
        """Remove unfinished saves and what `_delete_old` has moved."""
        for path in paths.children(self.directory / DELETED):
            self._record(path.name).unlink(missing_ok=True)
            path.rmtree()
        for path in paths.children(self.directory):
            step, suffix, _ = path.name.partition(".")
            if path.name == DELETED or (suffix and step.isdecimal()):
                path.rmtree()

    def _inspect(self, step: int, warn: bool) -> Checkpoint:
        """Read the validation score of a checkpoint; damaged ones do not count."""
        path, metrics, actual = self._path(step) / METRICS, None, None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if paths.is_regular_file(path):
                data = path.read_bytes()
                actual = hashlib.sha256(data).hexdigest()
                metrics = json.loads(data)
        digests = integrity.read_record(self._record(step))
        if digests is not None and digests.get(METRICS) != actual:
            metrics = None
            if warn and self._path(step).exists():
                logger.warning(
                    "%s: step %d: file %s is missing or does not match its digest",
                    *(self.directory, step, METRICS),
                )
        best_by = self._config.best_by
        if not (isinstance(metrics, dict) and isinstance(metrics.get(best_by), int | float)):
            return Checkpoint(step, None)
        return Checkpoint(step, selection.score(metrics, best_by))

    def _damage(self, step: int) -> str | None:
        """Describe the first file of a checkpoint that differs from its digest."""
        if not self._path(step).exists():
            return "deleted"
        expected = integrity.read_record(self._record(step))
        if expected is None:
            logger.warning(
                "%s: step %d: used although it cannot be verified: digests/%d.json is missing or "
                "damaged",
                *(self.directory, step, step),
            )
            return None
        if not (self._writing or (self._path(step) / "progress").exists()):
            needed = (name for name in expected if not name.startswith("progress/"))
            expected = {name: expected[name] for name in needed}
        try:
            actual = integrity.directory_digests(self._path(step), WRITTEN_LAST)
        except OSError as error:
            return str(error)
        return integrity.first_difference(expected, actual)

    def _set_aside(self, steps: Iterable[int]) -> None:
        for step in steps:
            target = self.directory / f"damaged-{step}"
            target.rmtree(missing_ok=True)
            self._path(step).rename(target)
            self._record(step).unlink(missing_ok=True)

    def _read(self, step: int, **items: ocp.args.CheckpointArgs) -> ocp.args.Composite:
        return self._manager.restore(step, args=ocp.args.Composite(**items))

    def _first_intact(
        self, candidates: Iterable[Checkpoint], read: Callable[[int], Restored]
    ) -> tuple[int, Restored]:
        """Return the step and content of the first intact checkpoint."""
        problems = []
        for checkpoint in candidates:
            try:
                return checkpoint.step, self._intact(checkpoint.step, read)
            except _DamageError as error:
                logger.warning("%s: %s; not used", self.directory, error)
                problems.append(str(error))
        if not problems:
            raise InputError(
                f"{self.directory} holds no checkpoint yet; the first validation of a training "
                "saves one"
            )
        raise InputError(
            f"no intact checkpoint left in {self.directory} ({'; '.join(problems)}); restore the "
            "directory from a copy, or train again in another --workdir"
        )

    def _intact(self, step: int, read: Callable[[int], Restored]) -> Restored:
        """Verify and read a checkpoint; if it is damaged, raise a `_DamageError` with its step."""
        restored, problem = None, processes.from_main_process(lambda: self._damage(step))
        if problem is None:
            try:
                meta = self._read(step, meta=ocp.args.JsonRestore())["meta"]
                if self._identity and IDENTITY in meta:
                    self._identity.require(meta[IDENTITY], f"checkpoint {self._path(step)}")
                restored = read(step)
            except InputError:
                raise
            # Orbax and TensorStore raise many types for a checkpoint that cannot be read.
            except Exception as error:  # noqa: BLE001
                problem = paths.reason(error)
            problem = processes.first_error(problem, "read it")
        if problem is not None:
            if not processes.from_main_process(self._path(step).exists):
                raise _DeletedError
            raise _DamageError(f"step {step}: {problem}")
        return restored

    def _path(self, step: int | str) -> epath.Path:
        return self.directory / str(step)

    def _record(self, step: int | str) -> epath.Path:
        return self._digests / f"{step}.json"

    def _write_digests(self) -> None:
        """Called by Orbax in the background in process 0, when all files are complete."""
        step = self._saving
        path = self.directory / f"{step}{ocp.utils.TMP_DIR_SUFFIX}"
        # In an object store the files have their final names from the start.
        path = path if path.exists() else self._path(step)
        digests = integrity.directory_digests(path, WRITTEN_LAST)
        integrity.write_record(self._record(step), digests)

    @contextlib.contextmanager
    def _explained(self, step: int) -> Iterator[None]:
        """Turn a failed save into one message, and remove what it left.

        If several arrays could not be written, TensorStore's threads may also print ``Event loop is
        closed``.
        """
        try:
            yield
        # TensorStore's OSError arrives as a ValueError.
        except (OSError, ValueError) as error:
            self._saving = None
            # Writes of other arrays may still be under way.
            with contextlib.suppress(OSError, InputError):
                self._update()
            steps = self.steps()
            previous = f"that of step {steps[-1]} is intact" if steps else "no other was saved"
            match = re.search(r"os_error_code='(\d+)'", str(error))
            reason = os.strerror(int(match[1])) if match else paths.reason(error)
            raise InputError(
                f"the checkpoint of step {step} could not be saved in {self.directory} ({reason}); "
                f"{previous}; free space there or make it writable, then run the same command to "
                "continue"
            ) from error


def average_params(params: Sequence[Params]) -> Params:
    """Return the mean of several parameter trees, leaf by leaf."""
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *params)


def _weights_field(state: TrainState) -> str:
    return "params" if state.average is None else "average"


def _progress(state: TrainState) -> dict[str, Any]:
    """Return the fields of a state beside the weights to use and the base of adapters."""
    return {
        name: value
        for name, value in vars(state).items()
        if name not in (_weights_field(state), "base") and value is not None
    }
