# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring training states; the only file that imports Orbax.

A checkpoint is ``checkpoints/<step>/`` with the items ``params`` (the weights to use: where a
running average is kept, the average), ``progress`` (all else of the training state: optimizer
moments, step, random key, and beside an average the parameters that are trained), ``meta`` (plain
JSON) and, after a validation, ``metrics``.

Orbax does not notice a flipped byte. Therefore ``checkpoints/digests/<step>.json`` holds the
SHA-256 of every file, and of itself, and a checkpoint that does not match is never used. One whose
digests themselves are missing or damaged cannot be verified: it is used, with a warning, only when
no other is intact.

Among several processes every method is called by all of them. The arrays are written and read by
all; process 0 alone looks at the directory, decides, and changes it.
"""

import contextlib
import dataclasses
import errno
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

import jax
import orbax.checkpoint as ocp
from etils import epath

from transformer import paths, processes
from transformer.arrays import Params
from transformer.checkpoints import checkpoint_files, workdir_files
from transformer.checkpoints.checkpoint_files import CheckpointFiles, Saved
from transformer.config import TrainingConfig
from transformer.errors import InputError
from transformer.training.step import TrainState

logger = logging.getLogger(__name__)
Restored = TypeVar("Restored")


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of one workdir, written in the background; use it in a ``with``."""

    def __init__(
        self, workdir: str | os.PathLike, config: TrainingConfig, *, writing: bool = False
    ):
        """Opens ``workdir/checkpoints``; warns of what can be seen to be damaged.

        Args:
          workdir: the run's directory, on this machine or wherever `etils.epath` reaches.
          config: how many checkpoints are kept, and by which validation score the best is known.
          writing: for a training; otherwise nothing in the directory changes.

        Raises:
          InputError: when there is no such directory, or it cannot be written.
        """
        self.directory = paths.absolute(workdir) / workdir_files.CHECKPOINTS
        self._files = CheckpointFiles(self.directory, config, ocp.utils.is_checkpoint_finalized)
        self._best_by = config.best_by
        self._writing = writing
        self._under_way: int | None = None
        self._saved: list[Saved] = []
        self._know(lambda: self._files.open(writing))
        _quieten()
        self._orbax = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(handler_registry=_handlers()),
            async_options=ocp.AsyncOptions(post_finalization_callback=self._take_digests),
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the save under way; without it an unfinished save would be lost."""
        try:
            self.finish()
        finally:
            self._orbax.close()

    def finish(self) -> None:
        """Waits for the save under way, then deletes what is no longer to be kept.

        Raises:
          InputError: when what was saved could not be written.
        """
        if self._under_way is not None:
            with self._saving(self._under_way):
                self._orbax.wait_until_finished()
            self._under_way = None
            self._know(self._files.tidy)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        return [saved.step for saved in self._saved]

    def best(self) -> int | None:
        """The step with the best validation score; the newest if none was validated.

        One whose score or digests are damaged is passed over; the opening has named it.
        """
        best = checkpoint_files.best(self._saved, self._best_by)
        return None if best is None else best.step

    def save(
        self, state: TrainState, meta: dict[str, Any], metrics: dict[str, float] | None = None
    ) -> None:
        """Starts saving; returns when the arrays are copied, not when they are written.

        Args:
          state: without logical axes attached.
          meta: what JSON can hold.
          metrics: ``nll`` and ``bleu`` of the validation at this step, if there was one.

        Raises:
          InputError: when this, or what was saved before, could not be written.
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
        with self._saving(step):
            self._under_way = step
            place = self._files.place(step)
            self._orbax.save(place, args=ocp.args.Composite(**items), force=True)

    def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest intact state, with its meta; None when nothing was ever saved.

        A damaged checkpoint is named in a warning, set aside as ``damaged-<step>``, and the one
        before it is used.

        Args:
          abstract: shapes, dtypes and shardings of the state to restore.

        Raises:
          InputError: when there are checkpoints but none that can be used.
        """
        if not self._saved:
            return None

        def read(step: int) -> tuple[TrainState, dict[str, Any]]:
            items = self._read(
                step,
                params=ocp.args.StandardRestore(abstract.weights),
                progress=ocp.args.StandardRestore(_progress(abstract)),
                meta=ocp.args.JsonRestore(),
            )
            weights = {_weights(abstract): items["params"]}
            return TrainState(**weights, **items["progress"]), items["meta"]

        step, restored = self._first_intact(reversed(self._saved), read)
        if self._writing and step != self.steps()[-1]:
            self._know(lambda: self._files.set_aside_after(step))
        return restored

    def restore_params(
        self,
        abstract: Params,
        average: int | None = None,
        around: Literal["last", "best"] = "last",
    ) -> Params:
        """The best parameters by validation, or the mean of several checkpoints' (paper 6.1).

        Args:
          abstract: shapes, dtypes and shardings.
          average: how many checkpoints; None takes the best alone.
          around: which: the ``last``, or those about the ``best``, half of them before it and half
            after it as far as they are there.

        Raises:
          InputError: when there is no checkpoint that can be used, or fewer than `average`.
        """

        def read(step: int) -> Params:
            self._require_shapes(step, abstract)
            return self._read(step, params=ocp.args.StandardRestore(abstract))["params"]

        if average is None:
            best = self.best()
            order = sorted(self._saved, key=lambda saved: (saved.step != best, -saved.step))
            return self._first_intact(order, read)[1]
        steps = self.steps()
        if not 1 <= average <= len(steps):
            raise InputError(
                f"--average={average}, but {self.directory} holds {len(steps)} checkpoints; "
                "average at most that many, or keep more with training.keep_last"
            )
        first = len(steps) - average
        if around == "best":
            first = max(min(steps.index(self.best()) - average // 2, first), 0)
        chosen = self._saved[first : first + average]
        unverified = not any(saved.verifiable for saved in self._saved)
        try:
            return average_params([self._intact(saved, read, unverified) for saved in chosen])
        except InputError as error:
            raise InputError(
                f"--average={average} needs the checkpoints {[saved.step for saved in chosen]} "
                f"whole, but {error}; average fewer, or leave --average out"
            ) from None

    def _know(self, look: Callable[[], list[Saved]]) -> None:
        """Makes the list that `look` gives in process 0 that of every process."""
        found = processes.agreed(lambda: [dataclasses.asdict(saved) for saved in look()])
        self._saved = [Saved(**fields) for fields in found]

    def _read(self, step: int, **items: ocp.args.CheckpointArgs) -> ocp.args.Composite:
        return self._orbax.restore(self._files.place(step), args=ocp.args.Composite(**items))

    def _require_shapes(self, step: int, abstract: Params) -> None:
        """Refuses parameters of another model before Orbax tries to read them."""
        saved = ocp.StandardCheckpointHandler().metadata(self._files.place(step) / "params").tree
        saved = {
            jax.tree_util.keystr(path): tuple(leaf.shape)
            for path, leaf in jax.tree_util.tree_leaves_with_path(saved)
        }
        wanted = {
            jax.tree_util.keystr(path): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(abstract)
        }
        for name in sorted(saved.keys() | wanted.keys()):
            if saved.get(name) != wanted.get(name):
                raise InputError(
                    f"params{name} has the shape {saved.get(name)}, but config.json makes "
                    f"{wanted.get(name)}"
                )

    def _first_intact(
        self, order: Iterable[Saved], read: Callable[[int], Restored]
    ) -> tuple[int, Restored]:
        """The first that is intact, its step before it; if none is, the first that can be read at
        all of those that cannot be verified.
        """
        problems = []
        for saved in sorted(order, key=lambda saved: not saved.verifiable):
            try:
                restored = self._intact(saved, read, unverified=True)
            except InputError as error:
                # Of the others the opening has warned.
                if saved.problem is None:
                    logger.warning("in %s the checkpoint of %s; not used", self.directory, error)
                problems.append(str(error))
                continue
            if not saved.verifiable:
                logger.warning(
                    "in %s no checkpoint is known to be intact; that of step %d is used although "
                    "it cannot be verified",
                    *(self.directory, saved.step),
                )
            return saved.step, restored
        tried = "; ".join(problems) or "it is empty"
        raise InputError(
            f"no intact checkpoint left in {self.directory} ({tried}); restore the directory from "
            "a copy, or train again in another --workdir"
        )

    def _intact(self, saved: Saved, read: Callable[[int], Restored], unverified: bool) -> Restored:
        """What `read` gives for a step; an InputError that names it when it is damaged.

        `unverified` allows one whose digests cannot be read.
        """
        problem = saved.problem
        if saved.verifiable and problem is None:
            problem = processes.agreed(lambda: self._files.damage(saved.step))
        elif not saved.verifiable and unverified:
            problem = None
        restored = None
        if problem is None:
            try:
                restored = read(saved.step)
            # Orbax raises many kinds for what is one case here: this checkpoint cannot be read.
            except Exception as error:  # noqa: BLE001
                problem = paths.reason(error)
            problem = processes.any_problem(problem, "read it")
        if problem is not None:
            raise InputError(f"step {saved.step}: {problem}")
        return restored

    def _unnamed(self, step: int) -> epath.Path:
        """Where a checkpoint is before it gets its final name."""
        return self._orbax.get_temporary_path(self._files.place(step)).get()

    def _take_digests(self) -> None:
        """Called by Orbax in process 0, in the background, when all files are complete."""
        step = self._under_way
        self._files.take_digests(step, self._unnamed(step))

    @contextlib.contextmanager
    def _saving(self, step: int) -> Iterator[None]:
        """Turns what goes wrong with the disk into one message, and removes what it left."""
        try:
            yield
        # An OSError of TensorStore arrives as a ValueError.
        except (OSError, ValueError) as error:
            self._under_way = None
            if jax.process_index() == 0:
                self._files.forget(step, self._unnamed(step))
            intact = [saved.step for saved in self._saved if saved.problem is None]
            before = f"that of step {intact[-1]} is intact" if intact else "there is none before it"
            reason, remedy = _reason(error)
            raise InputError(
                f"the checkpoint of step {step} could not be saved in {self.directory} ({reason}); "
                f"{before}; {remedy}, then run the same command to go on"
            ) from error


def average_params(checkpoints: list[Params]) -> Params:
    """The mean of several checkpoints' parameters, leaf by leaf (paper 6.1)."""
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *checkpoints)


def _weights(state: TrainState) -> str:
    """Which field holds the weights to use."""
    return "params" if state.average is None else "average"


def _progress(state: TrainState) -> dict[str, Any]:
    """What a training needs beside the weights to use: all other fields."""
    names = {field.name for field in dataclasses.fields(state)} - {_weights(state)}
    values = {name: getattr(state, name) for name in sorted(names)}
    return {name: value for name, value in values.items() if value is not None}


@functools.cache
def _quieten() -> None:
    """Keeps from being shown, for as long as the program runs, what Orbax and TensorStore say
    beside what they raise; their threads may say it when the checkpoints are long closed.

    Orbax logs every error that it raises through absl, with a traceback, and warns of options that
    are meant. When one part cannot be written or read, it closes the event loop, and TensorStore
    still reports the others to it.
    """
    logging.getLogger("absl").addFilter(
        lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname
    )
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.object is not None or str(unraisable.exc_value) != "Event loop is closed":
            usual(unraisable)

    sys.unraisablehook = hook


def _reason(error: Exception) -> tuple[str, str]:
    """Why something could not be written, and what to do about it."""
    # TensorStore has the number in its text.
    told = re.search(r"os_error_code='(\d+)'", str(error))
    number = int(told[1]) if told else getattr(error, "errno", None)
    reason = paths.reason(error) if number is None else os.strerror(number)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return reason, "free space there"
    return reason, "see that it can be written"


def _handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """Which handler serves which item; without it Orbax warns about items it has not seen yet."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item in ("params", "progress"):
        registry.add(item, ocp.args.StandardSave, ocp.StandardCheckpointHandler)
        registry.add(item, ocp.args.StandardRestore, ocp.StandardCheckpointHandler)
    for item, filename in (("meta", None), ("metrics", "metrics")):
        handler = ocp.JsonCheckpointHandler(filename=filename)
        registry.add(item, ocp.args.JsonSave, handler)
        registry.add(item, ocp.args.JsonRestore, handler)
    return registry
