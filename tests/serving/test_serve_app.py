# SPDX-License-Identifier: Apache-2.0
"""The app `serve` as a process: it starts, answers under load, and stops as signals ask."""

import collections
import math
import os
import signal
import threading
import types

import pytest
from apps import start
from workdirs import make_workdir

from experiments import serve
from experiments.benchmarks.service_load import address_of, metrics, send
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator

WORDS = ["a", "b", "c", "d", "e", "f", "g"]
LINES = [f"{first} {second} {third}" for first in WORDS for second in WORDS for third in WORDS]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A workdir of a model with random parameters."""
    folder = tmp_path_factory.mktemp("serve") / "run"
    make_workdir(folder, 1, d_model=32, d_ff=32, num_heads=4)
    return folder


class Service:
    """The app in a process, ready; its address, and what it prints."""

    def __init__(self, workdir, *flags):
        self.process = start("experiments.serve", f"--workdir={workdir}", "--port=0", *flags)
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.address = address_of(line)

    def end(self, number=signal.SIGTERM):
        """Send a signal; the exit status and standard error."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, err


@pytest.mark.slow
def test_each_request_of_32_clients_is_answered_and_nothing_is_compiled(workdir):
    translations = Translator.from_workdir(workdir)(LINES)
    expected = {line: one.text for line, one in zip(LINES, translations, strict=True)}
    assert len(set(expected.values())) > 50, "otherwise a wrong answer could pass for a right one"
    sentences = LINES * 3
    service = Service(workdir)
    before = metrics(service.address)
    replies = send(service.address, sentences, 32)
    assert sorted(reply.sentence for reply in replies) == sorted(sentences)
    assert {reply.status for reply in replies} == {200}
    assert [reply for reply in replies if reply.text != expected[reply.sentence]] == []
    after = metrics(service.address)
    compilations = "transformer_compilations_total"
    assert after[compilations] == before[compilations]
    assert after["transformer_batches_total"] < 0.75 * len(sentences), "clients share batches"
    status, err = service.end()
    assert status == 143
    count = len(sentences)
    assert f"accepted {count} requests, answered {count}\nstopped by SIGTERM" in err
    assert not any(word in err for word in ("a a a", "Traceback"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)]
)
def test_a_signal_under_load_loses_nothing_that_was_accepted(workdir, number, status):
    service = Service(workdir)
    ended = []
    timer = threading.Timer(1.0, lambda: ended.append(service.end(number)))
    timer.start()
    replies = send(service.address, LINES * 20, 16)
    timer.join()
    counts = collections.Counter(reply.status for reply in replies)
    assert counts[200] > 50, "it was under load"
    assert counts[0] > 0, "it has stopped"
    assert set(counts) <= {0, 200, 503}
    [(returned, err)] = ended
    assert returned == status
    assert f"accepted {counts[200]} requests, answered {counts[200]}\n" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_signal_ends_the_warm_up(workdir):
    process = start("experiments.serve", f"--workdir={workdir}", "--port=0")
    assert "warming up at http://127.0.0.1:" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (143, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lines": 2000}, "--max_lines=2000, but only --queue=1024 sentences may wait"),
        ({"window_ms": -1.0}, "--window_ms=-1.0 is not between 0, which does not wait, and --tim"),
        ({"window_ms": math.nan}, "--window_ms=nan is not between 0"),
        ({"window_ms": 30_000.0}, "--window_ms=30000.0 is not between 0"),
        ({"timeout": 0.0}, "--timeout=0.0 is not positive and finite"),
        ({"timeout": math.nan}, "--timeout=nan is not positive and finite"),
        ({"timeout": math.inf}, "--timeout=inf is not positive and finite"),
        ({"host": "a..b"}, "--host=a..b --port=8080 cannot be listened on"),
        ({"token_file": "/nowhere"}, "--token_file=/nowhere cannot be read"),
        ({"private_key": "x.pem"}, "TLS needs both"),
        ({"port": 70000}, "--port=70000 is not a port"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_loaded(options, message):
    with pytest.raises(InputError, match=message):
        serve.run(serve.Options(config=Config(), **options))


@pytest.mark.parametrize("name", ["token_file", "certificate", "private_key"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=f"--{name}={pipe} is not a regular file"):
        serve.run(serve.Options(config=Config(), **{name: str(pipe)}))


def test_an_error_of_the_warm_up_stops_the_server_and_is_kept_to_be_raised():
    server, failures = types.SimpleNamespace(should_exit=False), []
    engine = types.SimpleNamespace(warm_up=lambda: 1 / 0)
    serve._warm_up(engine, "http://127.0.0.1:1", server, failures)
    assert server.should_exit
    assert [type(error) for error in failures] == [ZeroDivisionError]
