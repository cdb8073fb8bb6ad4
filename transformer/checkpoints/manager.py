# SPDX-License-Identifier: Apache-2.0
"""Save and restore training states; the only module that imports Orbax.

A checkpoint is ``checkpoints/<step>/`` with the items ``params`` (the weights to use: the running
average if there is one), ``progress`` (the other fields of the training state), ``meta`` (JSON)
and, after a validation, ``metrics``.

Orbax does not detect a flipped byte, so every file has a SHA-256 digest. A checkpoint that does not
match its digests is never used. One whose digests are missing or damaged cannot be verified; it is
used, with a warning, only if no other checkpoint is intact.

Orbax's `CheckpointManager` is not used, since it ranks and deletes checkpoints by metrics that were
not verified, and does not open a directory in which one metrics file is damaged. It also needs
permissions on the bucket, where `AsyncCheckpointer` needs them on the objects only.

With several processes, all of them call every method. All write and read arrays; process 0 alone
inspects and changes the directory.
"""

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

import jax
import orbax.checkpoint as ocp
from etils import epath

from transformer import paths, processes
from transformer.arrays import Params
from transformer.checkpoints import selection, workdir_files
from transformer.checkpoints.checkpoint_directory import CheckpointDirectory
from transformer.checkpoints.selection import Checkpoint
from transformer.config import TrainingConfig
from transformer.errors import InputError
from transformer.training.step import TrainState

logger = logging.getLogger(__name__)
Restored = TypeVar("Restored")


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of one workdir, saved in the background; use it in a ``with`` statement."""

    def __init__(
        self, workdir: str | os.PathLike, config: TrainingConfig, *, writing: bool = False
    ):
        """Open ``workdir/checkpoints`` and warn about visible damage.

        Args:
          workdir: local, or in an object store.
          config: how many checkpoints are kept, and the validation score that ranks them.
          writing: open for training; otherwise nothing in the directory changes.

        Raises:
          InputError: when the directory does not exist or cannot be written.
        """
        self.directory = paths.absolute(workdir) / workdir_files.CHECKPOINTS
        self._files = CheckpointDirectory(self.directory, ocp.utils.is_checkpoint_finalized)
        self._config, self._writing = config, writing
        self._saving_step: int | None = None
        self._checkpoints: list[Checkpoint] = []
        self._update(lambda: self._files.open(writing))
        # Orbax logs every error that it also raises, with a traceback.
        logging.getLogger("absl").addFilter(_is_not_from_orbax)
        self._orbax = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(handler_registry=_handlers()),
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_digests),
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the save in progress, which would otherwise be lost."""
        try:
            self.finish()
        finally:
            self._orbax.close()

    def finish(self) -> None:
        """Wait for the save in progress, then delete the checkpoints that are no longer kept.

        Raises:
          InputError: when the checkpoint could not be written.
        """
        if self._saving_step is not None:
            with self._explained(self._saving_step):
                self._orbax.wait_until_finished()
            self._saving_step = None
            self._update(lambda: self._files.prune(self._config))

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        return [checkpoint.step for checkpoint in self._checkpoints]

    def best(self) -> int | None:
        """The step with the best validation score; the newest if none was validated.

        Checkpoints whose score or digests are damaged are skipped.
        """
        best = selection.best(self._checkpoints, self._config.best_by)
        return None if best is None else best.step

    def save(
        self, state: TrainState, meta: dict[str, Any], metrics: dict[str, float] | None = None
    ) -> None:
        """Start a save; returns when the arrays are copied, before they are written.

        Args:
          state: without logical axes attached.
          meta: a value that JSON can represent.
          metrics: ``nll`` and ``bleu`` of the validation at this step, if there was one.

        Raises:
          InputError: when this checkpoint, or the one before, could not be written.
        """
        self.finish()
        step = int(state.step)
        if step in self.steps():
            return
        items = {
            "params": ocp.args.StandardSave(state.weights),
            "progress": ocp.args.StandardSave(_progress(state)),
            "meta": ocp.args.JsonSave(meta),
        }
        if metrics is not None:
            items["metrics"] = ocp.args.JsonSave(metrics)
        with self._explained(step):
            self._saving_step = step
            self._orbax.save(self._path(step), args=ocp.args.Composite(**items), force=True)

    def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """Restore the newest intact state and its meta; None if nothing was ever saved.

        Newer checkpoints that are damaged are reported and set aside as ``damaged-<step>``.

        Args:
          abstract: shapes, dtypes and shardings of the state to restore.

        Raises:
          InputError: when there are checkpoints but none can be used.
        """
        if not self._checkpoints:
            return None

        def read(step: int) -> tuple[TrainState, dict[str, Any]]:
            items = self._read(
                step,
                params=ocp.args.StandardRestore(abstract.weights),
                progress=ocp.args.StandardRestore(_progress(abstract)),
                meta=ocp.args.JsonRestore(),
            )
            weights = {_weights_field(abstract): items["params"]}
            return TrainState(**weights, **items["progress"]), items["meta"]

        step, restored = self._first_intact(reversed(self._checkpoints), read)
        if self._writing and step != self.steps()[-1]:
            self._update(lambda: self._files.set_aside_after(step))
        return restored

    def restore_params(
        self,
        abstract: Params,
        average: int | None = None,
        around: Literal["last", "best"] = "last",
    ) -> Params:
        """Restore the best parameters by validation, or the mean of several (paper 6.1).

        Args:
          abstract: shapes, dtypes and shardings.
          average: number of checkpoints to average; None restores the best one alone.
          around: which checkpoints to average: the ``last`` ones, or the ``best`` one and its
            neighbors.

        Raises:
          InputError: when no checkpoint can be used, or there are fewer than `average`.
        """

        def read(step: int) -> Params:
            self._require_shapes(step, abstract)
            return self._read(step, params=ocp.args.StandardRestore(abstract))["params"]

        best = selection.best(self._checkpoints, self._config.best_by)
        if average is None:
            newest_first = reversed(self._checkpoints)
            return self._first_intact(sorted(newest_first, key=lambda one: one != best), read)[1]
        if not 1 <= average <= len(self._checkpoints):
            raise InputError(
                f"--average={average}, but {self.directory} holds {len(self._checkpoints)} "
                "checkpoints; average at most that many, or keep more with training.keep_last"
            )
        center = best if around == "best" else None
        chosen = selection.averaged(self._checkpoints, average, center)
        allow_unverified = not any(checkpoint.verifiable for checkpoint in self._checkpoints)
        try:
            params = [self._intact(one, read, allow_unverified) for one in chosen]
        except InputError as error:
            steps = [checkpoint.step for checkpoint in chosen]
            raise InputError(
                f"--average={average} needs intact checkpoints {steps}, but {error}; average "
                "fewer, or leave --average out"
            ) from None
        return selection.average_params(params)

    def _update(self, list_checkpoints: Callable[[], list[Checkpoint]]) -> None:
        """Update the list of checkpoints in all processes with the one that process 0 sees."""
        listed = processes.from_main_process(
            lambda: [dataclasses.asdict(checkpoint) for checkpoint in list_checkpoints()]
        )
        self._checkpoints = [Checkpoint(**fields) for fields in listed]

    def _read(self, step: int, **items: ocp.args.CheckpointArgs) -> ocp.args.Composite:
        return self._orbax.restore(self._path(step), args=ocp.args.Composite(**items))

    def _require_shapes(self, step: int, abstract: Params) -> None:
        """Refuse parameters of another model; Orbax's own error does not name them."""
        metadata = ocp.StandardCheckpointHandler().metadata(self._path(step) / "params")
        saved = _shapes(metadata.tree)
        expected = _shapes(abstract)
        for name in sorted(saved.keys() | expected.keys()):
            if saved.get(name) != expected.get(name):
                raise InputError(
                    f"params{name} has the shape {saved.get(name)}, but config.json makes "
                    f"{expected.get(name)}"
                )

    def _first_intact(
        self, candidates: Iterable[Checkpoint], read: Callable[[int], Restored]
    ) -> tuple[int, Restored]:
        """Return the step and content of the first intact checkpoint.

        If none is intact, the first one that can be read among those that cannot be verified.
        """
        problems = []
        for checkpoint in sorted(candidates, key=lambda one: not one.verifiable):
            try:
                restored = self._intact(checkpoint, read, allow_unverified=True)
            except InputError as error:
                # `CheckpointDirectory.open` has reported the other problems.
                if checkpoint.problem is None:
                    logger.warning("%s: %s; not used", self.directory, error)
                problems.append(str(error))
                continue
            if not checkpoint.verifiable:
                logger.warning(
                    "%s: step %d: used although it cannot be verified, since no other is intact",
                    *(self.directory, checkpoint.step),
                )
            return checkpoint.step, restored
        raise InputError(
            f"no intact checkpoint left in {self.directory} ({'; '.join(problems) or 'it is empty'}"
            "); restore the directory from a copy, or train again in another --workdir"
        )

    def _intact(
        self, checkpoint: Checkpoint, read: Callable[[int], Restored], allow_unverified: bool
    ) -> Restored:
        """Verify and read a checkpoint.

        Raises:
          InputError: when it is damaged; the message starts with its step.
        """
        restored, problem = None, checkpoint.problem
        if not checkpoint.verifiable and allow_unverified:
            problem = None
        elif problem is None:
            problem = processes.from_main_process(lambda: self._files.damage(checkpoint.step))
        if problem is None:
            try:
                restored = read(checkpoint.step)
            # Orbax and TensorStore raise many types for a checkpoint that cannot be read.
            except Exception as error:  # noqa: BLE001
                problem = paths.reason(error)
            problem = processes.first_error(problem, "read it")
        if problem is not None:
            raise InputError(f"step {checkpoint.step}: {problem}")
        return restored

    def _path(self, step: int) -> epath.Path:
        return self.directory / str(step)

    def _write_digests(self) -> None:
        """Called by Orbax in the background in process 0, when all files are complete."""
        step = self._saving_step
        self._files.write_digests(step, self._orbax.get_temporary_path(self._path(step)).get())

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
            self._saving_step = None
            if jax.process_index() == 0:
                self._files.discard(step)
            intact = [one.step for one in self._checkpoints if one.problem is None]
            previous = f"that of step {intact[-1]} is intact" if intact else "no other was saved"
            raise InputError(
                f"the checkpoint of step {step} could not be saved in {self.directory} "
                f"({_disk_error(error)}); {previous}; free space there or make it writable, then "
                "run the same command to continue"
            ) from error


def _weights_field(state: TrainState) -> str:
    return "params" if state.average is None else "average"


def _progress(state: TrainState) -> dict[str, Any]:
    """Return the fields of a state beside the weights to use."""
    return {
        name: value
        for name, value in vars(state).items()
        if name != _weights_field(state) and value is not None
    }


def _shapes(params: Params) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): tuple(leaf.shape) for path, leaf in leaves}


def _is_not_from_orbax(record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _disk_error(error: Exception) -> str:
    """Return the reason of a failed write; TensorStore has its number in the text only."""
    match = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(match[1])) if match else paths.reason(error)


def _handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """Return the default handlers, but with metrics in the file ``metrics/metrics``."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    metrics = ocp.JsonCheckpointHandler(filename="metrics")
    registry.add("metrics", ocp.args.JsonSave, metrics)
    registry.add("metrics", ocp.args.JsonRestore, metrics)
    return registry
