# SPDX-License-Identifier: Apache-2.0
"""The flags of `translate` and `score`: ensembles, prefixes, sampling, interactive mode."""

import contextlib
import os
import platform
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from apps import REPOSITORY, environment, memory_falls_below, run, users_environment
from workdirs import make_workdir

from experiments.console import progress
from experiments.storage.line_output import ResumableFile
from transformer.errors import InputError

SENTENCES = "b c\na\n\ng d\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three workdirs, the last with another vocabulary, and a file of sentences."""
    folder = tmp_path_factory.mktemp("translate")
    make_workdir(folder / "one", 1)
    make_workdir(folder / "two", 2, d_model=12, num_layers=2)
    make_workdir(folder / "other", 3, words="t u v w x y z")
    (folder / "sentences").write_text(SENTENCES)
    return folder


@pytest.fixture(scope="module")
def translate(folder):
    """The command with flags, on the sentences by default."""

    def translate(*flags, stdin=SENTENCES):
        return run(
            "experiments.translate", f"--workdir={folder / 'one'}", *flags, stdin=stdin.encode()
        )

    return translate


def started(folder, *flags, **options):
    """Start the command as users do."""
    command = [sys.executable, "-m", "experiments.translate", f"--workdir={folder / 'one'}"]
    options = {"cwd": REPOSITORY, "env": environment()} | options
    return subprocess.Popen([*command, *flags], **options)


@pytest.fixture(scope="module")
def plain(translate):
    """Output of the command without further flags."""
    finished = translate("--scores")
    assert (finished.status, finished.err) == (0, "")
    return finished.out


def rows(text):
    """The lines and their columns."""
    return [line.split("\t") for line in text.splitlines()]


@pytest.mark.slow
def test_an_ensemble_translates_and_scores_and_of_one_model_twice_equals_the_model(
    folder, translate, plain
):
    twice = translate("--scores", f"--ensemble={folder / 'one'}")
    assert twice.status == 0, twice.err
    for (score, text), (other, same) in zip(rows(twice.out), rows(plain), strict=True):
        assert (float(score), text) == (pytest.approx(float(other), abs=2e-6), same)
    both = translate("--scores", f"--ensemble={folder / 'two'}")
    assert both.status == 0, both.err
    assert both.out != twice.out

    # Scoring agrees with the search.
    (folder / "targets").write_text("".join(text + "\n" for _, text in rows(both.out)))
    scored = run(
        "experiments.score",
        f"--workdir={folder / 'one'}",
        f"--ensemble={folder / 'two'}",
        f"--source={folder / 'sentences'}",
        f"--target={folder / 'targets'}",
    )
    assert scored.status == 0, scored.err
    for (score, text), (log_prob, tokens) in zip(rows(both.out), rows(scored.out), strict=True):
        penalty = ((5 + int(tokens)) / 6) ** 0.6
        if text and "⁇" not in text:
            assert float(log_prob) / penalty == pytest.approx(float(score), abs=1e-4)


def test_an_ensemble_with_different_vocabularies_raises_an_error_with_both_workdirs(folder):
    workdirs = f"--workdir={folder / 'one'}", f"--ensemble={folder / 'two'},{folder / 'other'}"
    files = [f"--{side}={folder / 'sentences'}" for side in ("source", "target")]
    for app, *flags in (("translate",), ("score", *files)):
        finished = run(f"experiments.{app}", *workdirs, *flags)
        assert (finished.status, finished.out) == (1, "")
        [message] = finished.err.splitlines()
        both = f"{folder / 'one'} and {folder / 'other'}"
        assert message.startswith(f"error: {both} have different vocabularies")
        assert "--config.data.tokenizer_model" in message


def test_translations_begin_with_the_lines_of_the_prefix_file(folder, translate, plain):
    (folder / "begin").write_text("a e\n\nc\nf\n")
    finished = translate(f"--prefix={folder / 'begin'}", f"--input={folder / 'sentences'}")
    assert finished.status == 0, finished.err
    first, free, empty, last = finished.out.splitlines()
    assert first.startswith("a e")
    assert free == rows(plain)[1][1]
    assert empty == ""
    assert last.startswith("f")


SAMPLING = ("--config.decode.method=sample", "--config.decode.beams=3", "--nbest=3")


@pytest.mark.slow
def test_samples_are_reproducible_and_depend_on_the_seed(translate):
    first = translate(*SAMPLING)
    assert first.status == 0, first.err
    assert len(first.out.splitlines()) == 12
    alone = translate(*SAMPLING, "--config.decode.batch_size=1")
    for (line, score, text), again in zip(rows(first.out), rows(alone.out), strict=True):
        # In a batch of another size, the last digit of a sum may be rounded differently.
        assert again == [line, again[1], text]
        assert float(again[1]) == pytest.approx(float(score), abs=2e-6)
    assert translate(*SAMPLING, "--config.decode.seed=1").out != first.out


def test_minimum_bayes_risk_ranks_by_similarity(translate):
    finished = translate("--config.decode.method=mbr", "--config.decode.mbr_samples=8", "--nbest=8")
    assert finished.status == 0, finished.err
    for line in (0, 1, 3):
        results = [(float(score), text) for i, score, text in rows(finished.out) if int(i) == line]
        assert len(results) == 8
        assert results == sorted(results, key=lambda entry: -entry[0])
        assert 0 <= results[0][0] <= 100
        texts = [text for score, text in results if score >= 0]
        assert len(set(texts)) == len(texts)
        assert all(text == "" for score, text in results if score < 0)


def test_piped_interactive_input_is_translated_up_to_an_empty_line(translate, plain):
    finished = translate("--interactive", "--nbest=2")
    assert finished.status == 0
    best = rows(finished.out)[::2]
    assert [int(index) for index, _, _ in best] == [0, 1], "the third line is empty"
    for (_, score, text), (other, same) in zip(best, rows(plain)[:2], strict=True):
        assert (float(score), text) == (pytest.approx(float(other), abs=2e-6), same)
    [hint] = finished.err.splitlines()
    assert "hint: standard input is not a terminal" in hint


def test_a_terminal_has_a_prompt_and_ctrl_c_ends_the_interactive_mode(folder, plain):
    master, terminal = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    variables = environment() | {"TERM": "dumb"}
    process = started(folder, "--interactive", "--scores", env=variables, **streams)
    os.close(terminal)
    shown = ""

    def wait_for(text, times=1):
        nonlocal shown
        while shown.count(text) < times:
            ready, _, _ = select.select([master], [], [], 60)
            assert ready, f"waited in vain for {text!r} after {shown!r}"
            shown += os.read(master, 4096).decode()

    try:
        wait_for("> ")
        assert "an empty line or Ctrl-D ends" in shown
        os.write(master, b"b c\n")
        wait_for("> ", 2)
        [(score, text)] = rows(shown.splitlines()[2])
        [(expected, same)] = rows(plain.splitlines()[0])
        assert (float(score), text) == (pytest.approx(float(expected), abs=2e-6), same)
        # As a user does: between printing its prompt and waiting for a key, the interpreter sees
        # a signal only at the next one.
        for _ in range(12):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
                break
        assert process.returncode == 130
    finally:
        process.kill()
        os.close(master)
    assert "Traceback" not in shown


RESUME = "error: --resume needs local files as --input and --output"
MISUSE = [
    ("--prefix={here}/no", ["--prefix={here}/no cannot be read"]),
    ("--prefix={here}/three", ["standard input has 4 lines but {here}/three has 3"]),
    ("--prefix={here}/long", ["line 2: the prefix has 6 tokens", "has 6 including EOS"]),
    ("--output=", ["--output= is empty; name a file"]),
    ("--interactive --input={here}/three", ["--input and --interactive"]),
    ("--interactive --prefix={here}/three", ["--prefix and --interactive"]),
    ("--ensemble={here}/no", ["{here}/no does not exist"]),
    ("--ensemble={here}/sentences", ["{here}/sentences is not a workdir"]),
    (
        "--config.decode.method=mbr --nbest=33",
        ["--nbest=33, but decode.mbr_samples is 32", "--config.decode.mbr_samples"],
    ),
    ("--config.decode.top_k=3", ["decode.top_k is 3", "decode.method='beam'"]),
    ("--config.decode.groups=3", ["decode.groups is 3", "decode.beams = 2"]),
    ("--resume", [RESUME]),
    ("--resume --output=out", [RESUME]),
    ("--resume --input=/dev/null --output=out", [RESUME]),
    ("--resume --input={here}/sentences", [RESUME]),
]


def test_misuse_is_reported_in_one_message(folder, translate):
    (folder / "three").write_text("a\nb\nc\n")
    (folder / "long").write_text("a\na a a a a a\n\nb\n")
    for flags, words in MISUSE:
        finished = translate(*flags.format(here=folder).split())
        assert (finished.status, finished.out) == (1, ""), flags
        [message] = finished.err.splitlines()
        assert message.startswith("error: ")
        for word in words:
            assert word.format(here=folder) in message


def test_an_invalid_byte_in_interactive_input_is_reported_with_its_sentence(folder):
    finished = run(
        "experiments.translate", f"--workdir={folder / 'one'}", "--interactive", stdin=b"a\nb\xff\n"
    )
    assert finished.status == 1
    assert len(finished.out.splitlines()) == 1
    assert "sentence 2" in finished.err
    assert "0xff at column 2" in finished.err


# Long files.

BATCHES = 64
"""Batches that are translated and written together."""


def test_lines_are_translated_before_the_input_ends(folder):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started(folder, "--config.decode.batch_size=1", **pipes) as process:
        process.stdin.write(b"a\n" * BATCHES)
        process.stdin.flush()
        lines = [process.stdout.readline() for _ in range(BATCHES)]
        process.stdin.close()
        assert (len(set(lines)), process.stdout.read()) == (1, b"")


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_the_memory_of_compilations_is_returned(tmp_path):
    bundle = REPOSITORY / "docs" / "pronouns_de.zip"
    command = [sys.executable, "-m", "experiments.translate", f"--workdir={bundle}"]
    with subprocess.Popen(
        [*command, "--config.decode.batch_size=1"],
        cwd=REPOSITORY,
        env=users_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdin.write(b"It was late.\n" * BATCHES)
        process.stdin.flush()
        process.stdout.readline()
        returned = memory_falls_below(0.85, process.pid)
        process.stdin.close()
        assert returned


@pytest.mark.slow
def test_an_interrupted_translation_keeps_the_old_file_and_is_resumed(folder, translate, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text(SENTENCES * 1024)
    target.write_text("old\n")
    files = [f"--input={source}", f"--output={target}", "--config.decode.batch_size=4"]
    with started(folder, *files, stderr=subprocess.PIPE, text=True) as process:
        while not sum(path.stat().st_size for path in tmp_path.glob("*.partial")):
            time.sleep(0.01)
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        [*_, message] = process.stderr.read().splitlines()
    [partial] = tmp_path.glob("target.*.partial")
    num_lines = partial.read_text().count("\n")
    assert process.returncode == 143
    assert message == (
        f"stopped by SIGTERM; {num_lines:,} lines are in {partial}; --resume continues there"
    )
    assert num_lines % (4 * BATCHES) == 0
    assert target.read_text() == "old\n"

    refused = translate(*files, "--resume", "--scores")
    assert refused.status == 1
    assert f"error: --resume: {partial} is of other flags, weights or input" in refused.err

    # Neither lines that are there nor the part of a line after them is translated again.
    partial.write_text("there\n" * num_lines + "and a part of")
    resumed = translate(*files, "--resume")
    assert resumed.status == 0, resumed.err
    again = translate(files[0], files[2])
    assert target.read_text().startswith("there\n" * num_lines)
    assert target.read_text().splitlines()[num_lines:] == again.out.splitlines()[num_lines:]
    assert sorted(tmp_path.iterdir()) == [source, target]


def test_a_resumed_file_has_complete_groups_of_lines(tmp_path):
    def lines_kept(text, multiple):
        with pytest.raises(ZeroDivisionError), ResumableFile(path, "same", True, multiple) as out:
            out.writelines([text])
            out.flush()
            raise ZeroDivisionError
        with contextlib.suppress(ZeroDivisionError), ResumableFile(path, "same", True, 3) as out:
            raise ZeroDivisionError
        return out.num_lines

    path = str(tmp_path / "out")
    assert lines_kept("1\n2\n3\n4\n5\n6\n7\n", 3) == 6
    with ResumableFile(path, "same", True, 3) as out:
        out.writelines(["last\n"])
    assert (tmp_path / "out").read_text() == "1\n2\n3\n4\n5\n6\nlast\n"


def test_a_file_is_written_by_one_process_at_a_time(tmp_path):
    path = str(tmp_path / "out")
    with ResumableFile(path, "same", False, 1) as file:
        file.writelines(["a\n"])
        with pytest.raises(InputError, match="another process is writing .*/out; wait for it"):
            ResumableFile(path, "same", False, 1)
    assert (tmp_path / "out").read_text() == "a\n"


def test_more_lines_than_the_complete_file_can_have_are_not_continued(tmp_path):
    with pytest.raises(ZeroDivisionError), ResumableFile(str(tmp_path / "o"), "x", True, 1) as file:
        file.writelines(["a\n"] * 3)
        raise ZeroDivisionError
    with pytest.raises(InputError, match="has 3 lines, but only 2 are to be written; remove it"):
        ResumableFile(str(tmp_path / "o"), "x", True, 1, total=2)
    with ResumableFile(str(tmp_path / "o"), "x", True, 1, total=3) as file:
        assert file.num_lines == 3


def test_lines_that_cannot_be_put_in_place_are_named_and_a_link_is_kept(tmp_path):
    with (
        pytest.raises(InputError, match="out cannot be written: Is a directory; its lines are in"),
        ResumableFile(str(tmp_path / "out"), "identity", False, 1) as file,
    ):
        file.writelines(["a\n"])
        (tmp_path / "out").mkdir()
    assert [path.read_text() for path in tmp_path.glob("*.partial")] == ["a\n"]
    (tmp_path / "link").symlink_to("file")
    with ResumableFile(str(tmp_path / "link"), "x", False, 1) as out:
        out.writelines(["a\n"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "a\n"


def test_progress_shows_lines_rate_and_remaining_time(monkeypatch, capsys):
    times = iter([0.0, 1.0, 10.0, 11.0, 20.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    lines = progress.Rate("lines", 100, 1100)
    for num_lines in (150, 200, 220, 300, 1100):
        lines.report(num_lines)
    # 100 lines in 10 s, and 900 are left; the second and the last report are too early or late.
    assert capsys.readouterr().err.splitlines() == [
        "200 of 1,100 lines  10.0 lines/s  0:01:30 left",
        "300 of 1,100 lines  10.0 lines/s  0:01:20 left",
    ]
