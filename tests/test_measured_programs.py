# SPDX-License-Identifier: Apache-2.0
"""A program that is measured has a process of its own, begins warm, and says why it cannot."""

import itertools
import os
import subprocess
import sys
import time

import pytest
from apps import REPOSITORY

from experiments.benchmarks import load, program, threads
from experiments.benchmarks.alternating import PROGRAMS, Effort, Subject, Unavailable, compare
from experiments.benchmarks.work import Work
from transformer.errors import InputError

TINY = Work(layers=1, d_model=16, heads=2, d_ff=32, vocabulary=64, rows=4, source=6, target=6)

FAKE = """
from experiments.benchmarks.program import Program

def sleeping(work, seconds):
    import time
    print("what a library says")
    return Program(lambda: time.sleep(seconds), {"rows": work.rows})

def never_ready(work, path):
    import os, pathlib, time
    unfinished = pathlib.Path(path).with_suffix(".unfinished")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(path)
    time.sleep(600)

def ending(work):
    samples = iter([1.0])
    return Program(seconds=lambda: next(samples, None) or exit(7))
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")


def test_a_program_in_a_process_of_its_own_gives_a_sample_each_time_it_is_asked(fake):
    with Subject("fake", "fake.sleeping", {"seconds": 0.01}).start(TINY) as process:
        assert process.about == {"rows": TINY.rows}
        samples = [process.sample(), process.sample()]
        assert process._process.poll() is None
    assert process._process.returncode is not None
    assert all(0.01 <= sample.seconds < 0.2 and sample.peak_mib > 1 for sample in samples)


def test_a_program_that_ends_by_itself_is_told_by_its_name(fake):
    with (
        Subject("the fake", "fake.ending").start(TINY) as process,
        pytest.raises(Unavailable, match="the process of the fake ended with status 7"),
    ):
        process.sample()


def test_a_peer_that_is_missing_is_skipped_and_the_next_one_measured(fake):
    said = []
    own_program = Subject("own", "fake.sleeping", {"seconds": 0.01})
    missing = Subject("missing", "no_such_module.training")
    slower = Subject("slower", "fake.sleeping", {"seconds": 0.04})
    effort = Effort(rounds=1, budget=0)
    [(measured_one, found)] = compare(own_program, [missing, slower], TINY, effort, said.append)
    assert measured_one is slower
    assert found["ratio"] > 2
    assert "missing is skipped: no_such_module is not installed (pip install -e .[bench])" in said
    with pytest.raises(InputError, match="missing cannot be measured: no_such_module"):
        list(compare(missing, [slower], TINY, effort, said.append))


def test_termination_ends_the_measured_programs_too(fake, tmp_path):
    script = (
        "from experiments.benchmarks import alternating as a, work\n"
        f"own = a.Subject('own', 'fake.never_ready', {{'path': {str(tmp_path / 'process')!r}}})\n"
        "list(a.compare(own, [], work.WORKS['W1'], a.Effort(), print))\n"
    )
    running = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY)
    while not (tmp_path / "process").exists():
        assert running.poll() is None
        time.sleep(0.01)
    running.terminate()
    assert running.wait() == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)


def test_a_peer_that_is_not_installed_says_so(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    options = {"compiled": False, "dtype": "float32"}
    with pytest.raises(Unavailable, match=r"torch is not installed \(pip install"):
        Subject("PyTorch", f"{PROGRAMS}.pytorch.training", options).start(TINY)


def test_a_peer_that_fails_says_why(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise OSError('a broken library\\nand more')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    with pytest.raises(Unavailable, match="^OSError: a broken library$"):
        Subject("Marian", f"{PROGRAMS}.marian.training", {"dtype": "float32"}).start(TINY)


class Timed:
    """A call that takes so many seconds, and the clock that it is timed with."""

    def __init__(self, monkeypatch, *seconds):
        self.now, self.calls, self._seconds = 0.0, 0, itertools.cycle(seconds)
        monkeypatch.setattr(program.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(program.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(load, "_counts", lambda: None)

    def __call__(self):
        self.calls += 1
        self.now += next(self._seconds)


@pytest.mark.parametrize(
    ("seconds", "calls"),
    # Of one or two calls a sample, one more goes before them, unless it takes long.
    [(0.01, 100), (0.3, 3), (0.5, 1 + 2), (2.0, 1 + 1), (6.0, 1)],
)
def test_a_sample_is_of_calls_that_last_a_second_and_begins_warm(monkeypatch, seconds, calls):
    call = Timed(monkeypatch, seconds)
    sampler = program.Sampler(program.Program(call, units=4.0))
    before = call.calls
    sample = sampler.sample()
    assert call.calls - before == calls
    assert sample["seconds"] == pytest.approx(seconds / 4)


def loads(monkeypatch, *cores):
    """Has the other load of each trial be one of these, one after the other."""
    following = itertools.cycle(cores)

    class Load(load.OtherLoad):
        def __exit__(self, *_):
            self.cores = next(following)

    monkeypatch.setattr(threads, "OtherLoad", Load)


def test_the_fastest_choice_is_found_although_other_load_comes_and_goes(monkeypatch, capfd):
    chosen = []
    # Of each trial, the call that is not counted and the one that is: 1 begins under load.
    call = Timed(monkeypatch, 9, 30.0, 9, 2.0, 9, 1.0, 9, 2.5)
    loads(monkeypatch, 0.9, 0.0)
    assert threads.fastest(call, chosen.append, [1, 2]) == 1
    # There is time for two turns.
    assert chosen == [1, 2, 1, 2, 1]
    assert "1: 1 (other load 0.90), 2: 2 (other load 0.00)" in capfd.readouterr().err


def test_choices_are_tried_until_each_has_had_quiet_trials(monkeypatch):
    chosen = []
    loads(monkeypatch, 0.0)
    call = Timed(monkeypatch, 0.1)
    threads.fastest(call, chosen.append, ["a", "b"])
    assert len(chosen) == 2 * threads.TRIALS + 1
    # A trial is of as many calls as take 0.3 seconds.
    assert call.calls == 2 * threads.TRIALS * (1 + 3)
    # b is never quiet: the choices are tried as long as there is time, 1.2 seconds a turn.
    chosen.clear()
    loads(monkeypatch, 0.0, 0.5)
    threads.fastest(Timed(monkeypatch, 0.15), chosen.append, ["a", "b"])
    turns = -(-threads.CHOICE_SECONDS // (2 * 3 * 0.15))
    assert abs(len(chosen) - (2 * turns + 1)) <= 2


def test_choices_are_tried_on_batches_from_all_parts_of_a_text():
    assert threads.a_few(list(range(16))) == [0, 4, 8, 12]
    assert threads.a_few(list(range(9))) == [0, 3, 6]
    assert threads.a_few([7]) == [7]


def test_peers_do_not_load_jax_nor_this_program_the_peers():
    program = (
        "import sys; import experiments.benchmarks.program; "
        "print({'jax', 'torch', 'transformer'} & set(sys.modules))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert finished.stdout == "set()\n"


@pytest.mark.skipif(not load._STATISTICS.exists(), reason="no /proc")
def test_the_peak_of_a_process_is_its_own_and_not_that_of_its_parent(fake):
    with Subject("fake", "fake.sleeping", {"seconds": 0.01}).start(TINY) as process:
        # This process has JAX.
        assert process.sample().peak_mib < program.peak_mib() / 2
