# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring training states; the only file that imports Orbax.

A checkpoint is ``checkpoints/<step>/`` with three items: ``params`` (the weights to use: where a
running average is kept, the average), ``progress`` (optimizer moments, step, random key, and beside
an average the parameters that are trained) and ``meta`` (plain JSON). Orbax does not notice a
flipped byte, so the SHA-256 of every file is kept in ``checkpoints/digests/<step>.json``, and a
checkpoint that does not match is never used.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from transformer.arrays import Params
from transformer.config import TrainingConfig
from transformer.errors import InputError
from transformer.training import TrainState

logger = logging.getLogger(__name__)
Restored = TypeVar("Restored")


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of one workdir, written in the background; use it in a ``with``."""

    def __init__(self, workdir: pathlib.Path, config: TrainingConfig, *, writing: bool = False):
        """Opens ``workdir/checkpoints``.

        Args:
          workdir: the run's directory.
          config: how many checkpoints are kept, and by which validation score the best is known.
          writing: for a training; otherwise nothing in the directory changes.
        """
        self.directory = pathlib.Path(workdir).absolute() / "checkpoints"
        self._writing = writing
        self._score = Score(config.best_by)
        if self._writing:
            (self.directory / "digests").mkdir(parents=True, exist_ok=True)
        elif not self.directory.is_dir():
            raise InputError(f"{workdir} has no checkpoints; train first, or check --workdir")
        options = ocp.CheckpointManagerOptions(
            read_only=not self._writing,
            best_fn=self._score,
            best_mode="max",
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(
                [
                    checkpoint_managers.LatestN(config.keep_last),
                    _AroundBest(self._score, config.keep_around_best),
                ]
            )
            if writing
            else None,
        )
        with _without_warnings():
            self._manager = ocp.CheckpointManager(
                self.directory, options=options, handler_registry=_handlers()
            )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the save under way; without it an unfinished save would be lost."""
        self.finish()
        self._manager.close()

    def finish(self) -> None:
        """Waits for the save under way and takes the digests of what it wrote."""
        self._manager.wait_until_finished()
        if not self._writing:
            return
        kept = set(self.steps())
        for step in kept:
            if not self._digest_file(step).exists():
                text = json.dumps(_digests(self.directory / str(step)), indent=1)
                partial = self._digest_file(step).with_suffix(".partial")
                partial.write_text(text)
                partial.replace(self._digest_file(step))
        for path in (self.directory / "digests").glob("*.json"):
            if int(path.stem) not in kept:
                path.unlink()

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        return sorted(self._manager.all_steps())

    def best(self) -> int | None:
        """The step with the best validation score; the newest if none was validated."""
        best = self._manager.best_step()
        return self._manager.latest_step() if best is None else best

    def save(
        self, state: TrainState, meta: dict[str, Any], metrics: dict[str, float] | None = None
    ) -> None:
        """Starts saving; returns when the arrays are copied, not when they are written.

        Args:
          state: without logical axes attached.
          meta: what JSON can hold.
          metrics: ``nll`` and ``bleu`` of the validation at this step, if there was one.
        """
        self.finish()
        step = int(state.step)
        if step in self.steps():
            return
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.weights),
            progress=ocp.args.StandardSave(_progress(state)),
            meta=ocp.args.JsonSave(meta),
        )
        if not self._manager.save(step, args=items, metrics=metrics, force=True):
            raise OSError(f"the checkpoint of step {step} could not be saved in {self.directory}")

    def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest intact state, with its meta; None when nothing was ever saved.

        A damaged checkpoint is named in a warning, set aside as ``damaged-<step>``, and the one
        before it is used.

        Args:
          abstract: shapes, dtypes and shardings of the state to restore.

        Raises:
          InputError: when there are checkpoints but no intact one.
        """
        if not self.steps():
            return None

        def read(step: int) -> tuple[TrainState, dict[str, Any]]:
            items = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(abstract.weights),
                    progress=ocp.args.StandardRestore(_progress(abstract)),
                    meta=ocp.args.JsonRestore(),
                ),
            )
            weights = "params" if abstract.average is None else "average"
            return TrainState(**{weights: items["params"]}, **items["progress"]), items["meta"]

        step, restored = self._first_intact(reversed(self.steps()), read)
        for damaged in [other for other in self.steps() if other > step]:
            self._set_aside(damaged)
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
          InputError: when there is no intact checkpoint, or fewer than `average`.
        """

        def read(step: int) -> Params:
            self._require_shapes(step, abstract)
            items = ocp.args.Composite(params=ocp.args.StandardRestore(abstract))
            return self._manager.restore(step, args=items)["params"]

        steps = self.steps()
        if average is not None:
            if not 1 <= average <= len(steps):
                raise InputError(
                    f"--average={average}, but {self.directory} holds {len(steps)} checkpoints; "
                    "average at most that many, or keep more with training.keep_last"
                )
            if around == "best":
                first = max(min(steps.index(self.best()) - average // 2, len(steps) - average), 0)
                chosen = steps[first : first + average]
            else:
                chosen = steps[-average:]
            try:
                return average_params([self._intact(step, read) for step in chosen])
            except InputError as error:
                raise InputError(
                    f"--average={average} needs the checkpoints {chosen} whole, but {error}; "
                    "average fewer, or leave --average out"
                ) from None
        best = self.best()
        order = sorted(steps, key=lambda step: (step != best, -step))
        return self._first_intact(order, read)[1]

    def _require_shapes(self, step: int, abstract: Params) -> None:
        """Refuses parameters of another model before Orbax tries to read them."""
        saved = self._manager.item_metadata(step)["params"].tree
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
        self, steps: Iterable[int], read: Callable[[int], Restored]
    ) -> tuple[int, Restored]:
        problems = []
        for step in steps:
            try:
                return step, self._intact(step, read)
            except InputError as error:
                logger.warning("in %s the checkpoint of %s; not used", self.directory, error)
                problems.append(str(error))
        tried = "; ".join(problems) or "it is empty"
        raise InputError(
            f"no intact checkpoint left in {self.directory} ({tried}); restore the directory from "
            "a copy, or train again in another --workdir"
        )

    def _intact(self, step: int, read: Callable[[int], Restored]) -> Restored:
        """What `read` gives for a step; an InputError that names it when it is damaged."""
        problem = self._problem(step)
        if problem is None:
            try:
                return read(step)
            # Orbax raises many kinds for what is one case here: this checkpoint cannot be read.
            except Exception as error:  # noqa: BLE001
                problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"step {step}: {problem}")

    def _problem(self, step: int) -> str | None:
        """What differs from the digests taken when it was written; None if nothing does."""
        if not self._digest_file(step).exists():
            return None
        try:
            expected = json.loads(self._digest_file(step).read_text())
            if not isinstance(expected, dict):
                raise ValueError
        except (OSError, ValueError):
            return f"{self._digest_file(step).name} cannot be read"
        found = _digests(self.directory / str(step))
        for name in sorted(expected | found):
            if name not in found:
                return f"file {name} is missing"
            if expected.get(name) != found[name]:
                return f"file {name} is not what was written"
        return None

    def _set_aside(self, step: int) -> None:
        again = (f"damaged-{step}-{number}" for number in itertools.count(2))
        names = itertools.chain([f"damaged-{step}"], again)
        place = next(name for name in names if not (self.directory / name).exists())
        (self.directory / str(step)).rename(self.directory / place)
        self._digest_file(step).unlink(missing_ok=True)
        self._manager.reload()

    def _digest_file(self, step: int) -> pathlib.Path:
        return self.directory / "digests" / f"{step}.json"


def average_params(checkpoints: list[Params]) -> Params:
    """The mean of several checkpoints' parameters, leaf by leaf (paper 6.1)."""
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *checkpoints)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keeps Orbax from warning, through absl's logger, that what is opened for reading is
    read-only.
    """
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        yield
    finally:
        absl.setLevel(level)


@dataclasses.dataclass(frozen=True)
class Score:
    """The validation score by which checkpoints are compared: the higher, the better."""

    best_by: Literal["nll", "bleu"]

    def __call__(self, metrics: dict[str, float]) -> float:
        """BLEU, or the NLL's negative."""
        return metrics["bleu"] if self.best_by == "bleu" else -metrics["nll"]


@dataclasses.dataclass
class _AroundBest(checkpoint_managers.PreservationPolicy):
    """Keeps the best checkpoint and so many of its neighbours on each side."""

    score: Score
    neighbours: int

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        """One answer a checkpoint, oldest first; the newest of equally good ones is the best."""
        del context
        scores = [
            -math.inf if info.metrics is None else self.score(info.metrics) for info in checkpoints
        ]
        best = max(range(len(scores)), key=lambda place: (scores[place], place), default=0)
        return [abs(place - best) <= self.neighbours for place in range(len(scores))]


def _progress(state: TrainState) -> dict[str, Any]:
    """What a training needs beside the weights to use."""
    progress = {"step": state.step, "opt_state": state.opt_state, "rng": state.rng}
    return progress if state.average is None else progress | {"params": state.params}


def _digests(directory: pathlib.Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def _handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """Which handler serves which item; without it Orbax warns about items it has not seen yet."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item in ("params", "progress"):
        registry.add(item, ocp.args.StandardSave, ocp.StandardCheckpointHandler)
        registry.add(item, ocp.args.StandardRestore, ocp.StandardCheckpointHandler)
    # Orbax itself reads the metrics back from a file of that name.
    for item, filename in (("meta", None), ("metrics", "metrics")):
        handler = ocp.JsonCheckpointHandler(filename=filename)
        registry.add(item, ocp.args.JsonSave, handler)
        registry.add(item, ocp.args.JsonRestore, handler)
    return registry
