# SPDX-License-Identifier: Apache-2.0
"""Compile the programs of a training before they are called, one on each core."""

import concurrent.futures
import functools
from collections.abc import Callable

import jax

from experiments.training import allocator
from experiments.training.compose import Experiment
from transformer.cores import num_cores


class StepPrograms:
    """The shapes of batches for which the training step is compiled.

    `jax.jit` finds a program that was compiled for the shapes of its arguments.
    """

    def __init__(self, experiment: Experiment, say: Callable[[str], None]):
        """`say` prints a line."""
        self._experiment, self._say = experiment, say
        self._compiled: set[tuple[int, int]] = set()

    def __contains__(self, shape: tuple[int, int]) -> bool:
        """Whether the step is compiled for batches of this (rows, length)."""
        return shape in self._compiled

    def compile_for(self, shape: tuple[int, int], step: int) -> None:
        """Compile the training step for the batch after `step`, whose shape is new.

        A compilation keeps one core busy. On a CPU, the others compile what later batches and the
        validations need.
        """
        experiment, threads = self._experiment, _threads(self._experiment)
        shapes, evaluated = [shape], []
        if threads > 1:
            steps = experiment.config.training.steps
            later = experiment.data.train.shapes_between(step, steps)
            shapes += [each for each in later if each not in self._compiled | {shape}]
            if not self._compiled:
                evaluated = sorted({each.source.shape for each in experiment.validation_batches()})
        for each in shapes:
            self._say(f"compiling the step for {self._describe(*each)}")
        lowerings = [
            *(functools.partial(experiment.lower_step, *each) for each in shapes),
            *(functools.partial(experiment.lower_eval_step, *each) for each in evaluated),
        ]
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            # Tracing is Python, which threads do not make faster.
            compilations = [pool.submit(lower().compile) for lower in lowerings]
        for compilation in compilations:
            compilation.result()
        self._compiled.update(shapes)
        allocator.return_unused_pages()

    def _describe(self, rows: int, length: int) -> str:
        parts = self._experiment.config.training.micro_batches or 1
        batches = f"batches of {rows} x {length} tokens"
        return f"{batches}, in {parts} micro-batches" if parts > 1 else batches


def _threads(experiment: Experiment) -> int:
    """Programs that are compiled at the same time.

    A compilation for a GPU measures kernels on it, which must not disturb each other. Several
    processes compile in the same order.
    """
    on_cpu = experiment.mesh.devices.flat[0].platform == "cpu"
    return num_cores() if on_cpu and jax.process_count() == 1 else 1
