# SPDX-License-Identifier: Apache-2.0
"""A measured program runs in a separate process, starts warm, and reports why it cannot run."""

import itertools
import os
import shutil
import subprocess
import sys
import time

import pytest
from apps import REPOSITORY

from experiments.benchmarks import worker
from experiments.benchmarks.comparison import Subject, Unavailable, Worker, compare, program
from experiments.benchmarks.workloads import Workload
from transformer.errors import InputError

TINY = Workload(1, 16, 2, 32, 64, 4, 6, 6)

FAKE = """
from experiments.benchmarks.worker import Program

def sleeping(workload, seconds):
    import time
    print("output of a library")
    return Program(lambda: time.sleep(seconds), {"batch_size": workload.batch_size})

def never_ready(workload, path):
    import os, pathlib, time
    unfinished = pathlib.Path(path).with_suffix(".unfinished")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(path)
    time.sleep(600)

def ending(workload):
    import itertools, time
    calls = itertools.count()
    return Program(lambda: exit(7) if next(calls) > 1 else time.sleep(2))
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A module `fake` for the workers."""
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")


def test_a_worker_takes_a_sample_each_time_it_is_asked(fake):
    with Worker(Subject("fake", "fake.sleeping", {"seconds": 0.01}), TINY) as process:
        assert process.about == {"batch_size": TINY.batch_size}
        samples = [process.sample(), process.sample()]
        assert process._process.poll() is None
    assert process._process.returncode is not None
    for sample in samples:
        assert sample.seconds >= 0.01
        # This process has imported JAX; the memory of a parent is not the worker's.
        assert 1 < sample.peak_mib < worker.peak_mib() / 2


def test_a_worker_of_another_checkout_runs_its_code(fake, tmp_path):
    other = tmp_path / "other"
    package = REPOSITORY / "experiments"
    shutil.copytree(package / "benchmarks", other / "experiments" / "benchmarks")
    shutil.copy(package / "__init__.py", other / "experiments")
    changed = FAKE.replace("workload.batch_size}", "'the other checkout'}")
    (other / "fake.py").write_text(changed)
    subject = Subject("fake", "fake.sleeping", {"seconds": 0.01}, checkout=str(other))
    with Worker(subject, TINY) as process:
        assert process.about == {"batch_size": "the other checkout"}


@pytest.mark.slow
def test_a_worker_that_ends_is_reported_by_name(fake):
    with (
        Worker(Subject("the fake", "fake.ending"), TINY) as process,
        pytest.raises(Unavailable, match="the process of the fake ended with status 7"),
    ):
        process.sample()


@pytest.mark.slow
def test_a_missing_peer_is_skipped_and_the_next_one_measured(fake, capsys):
    ours = Subject("ours", "fake.sleeping", {"seconds": 0.01})
    missing = Subject("missing", "no_such_module.training")
    slower = Subject("slower", "fake.sleeping", {"seconds": 0.04})
    [(peer, figures)] = compare(ours, [missing, slower], TINY, 1)
    assert peer is slower
    assert figures["speedup"] > 2
    assert figures["peer_batch_size"] == figures["batch_size"] == TINY.batch_size
    reason = "no_such_module is not installed (pip install -e .[bench])"
    assert f"missing is skipped: {reason}" in capsys.readouterr().err
    with pytest.raises(InputError, match="missing cannot be measured: no_such_module"):
        list(compare(missing, [slower], TINY, 1))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ModuleNotFoundError('no torch', name='torch')", r"^torch is not installed \(pip install"),
        (r"OSError('a broken library\nand more')", "^OSError: a broken library$"),
    ],
)
def test_a_peer_that_cannot_be_imported_is_reported(tmp_path, monkeypatch, error, message):
    (tmp_path / "torch.py").write_text(f"raise {error}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    peer = Worker(program("PyTorch", "pytorch.training", dtype="float32"), TINY)
    with pytest.raises(Unavailable, match=message), peer:
        pass


def test_termination_stops_the_workers(fake, tmp_path):
    script = (
        "from experiments.cli import process\n"
        "from experiments.benchmarks import comparison as c, workloads\n"
        f"ours = c.Subject('ours', 'fake.never_ready', {{'path': {str(tmp_path / 'pid')!r}}})\n"
        "process.prepare()\n"
        "list(c.compare(ours, [], workloads.WORKLOADS['W1'], 1))\n"
    )
    running = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY)
    while not (tmp_path / "pid").exists():
        assert running.poll() is None
        time.sleep(0.01)
    running.terminate()
    assert running.wait() == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


class Timed:
    """A call that takes a given number of seconds on a fake clock."""

    def __init__(self, monkeypatch, *seconds):
        self.now, self.calls, self._seconds = 0.0, 0, itertools.cycle(seconds)
        monkeypatch.setattr(worker.time, "perf_counter", lambda: self.now)

    def __call__(self):
        self.calls += 1
        self.now += next(self._seconds)


@pytest.mark.parametrize(("seconds", "calls"), [(0.01, 100), (0.3, 3), (6.0, 1)])
def test_a_sample_is_at_least_a_second_of_calls_and_starts_warm(monkeypatch, seconds, calls):
    call = Timed(monkeypatch, seconds)
    program = worker.Program(call, units=4.0)
    number = worker.calls_per_sample(program)
    before = call.calls
    sample = worker.take_sample(program, number)
    assert call.calls - before == worker.WARM_CALLS + calls
    assert sample["seconds"] == pytest.approx(seconds / 4)


def test_the_fastest_choice_is_used_although_load_comes_and_goes(monkeypatch):
    chosen = []
    # Pairs of an untimed and a timed call: 1 starts under load.
    call = Timed(monkeypatch, 9, 30.0, 9, 2.0, 9, 1.0, 9, 2.5, 9, 1.1, 9, 2.1)
    assert worker.fastest(call, chosen.append, [1, 2]) == 1
    assert chosen == [1, 2, 1, 2, 1, 2, 1]


STATISTICS = """\
cpu  900 90 90 9000 90 9 9 9 5 5
cpu0 100 10 20 1000 50 1 2 3 4 4
cpu1 200 0 0 2000 0 0 0 0 0 0
cpu11 7 0 0 0 0 0 0 0 0 0
intr 5 0 1
"""


@pytest.mark.parametrize(("cores", "ticks"), [({0}, 136), ({0, 1}, 336)])
def test_busy_time_is_all_but_idle_and_waiting_of_the_usable_cores(
    monkeypatch, tmp_path, cores, ticks
):
    # Of core 0: 100 + 10 + 20 + 1 + 2 + 3; guests are included in the first.
    (tmp_path / "stat").write_text(STATISTICS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    expected = pytest.approx(ticks / os.sysconf("SC_CLK_TCK"))
    assert worker.busy_seconds(tmp_path / "stat") == expected


def test_the_load_of_other_processes_excludes_that_of_the_program(monkeypatch):
    monkeypatch.setattr(worker, "busy_seconds", iter([100.0, 103.0]).__next__)
    monkeypatch.setattr(worker, "cpu_seconds", iter([50.0, 52.0]).__next__)
    # 3 busy seconds, 2 of them of this process, in 2 seconds.
    sample = worker.take_sample(worker.Program(Timed(monkeypatch, 2.0)), 1)
    assert sample["other_load"] == 0.5


def test_a_worker_imports_no_framework_before_its_program():
    program = (
        "import sys; import experiments.benchmarks.worker; "
        "print({'jax', 'torch', 'transformer'} & set(sys.modules))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert finished.stdout == "set()\n"
