# SPDX-License-Identifier: Apache-2.0
"""A damaged checkpoint is reported, set aside and never used."""

import json
import logging
import os
import shutil

import pytest
from saving import (
    KEEP_ALL,
    best_params,
    bits,
    contents,
    meta_at,
    restored,
    save,
    state_at,
    steps_in,
)

from transformer.checkpoints.manager import Checkpoints
from transformer.errors import InputError


def flip(workdir, step):
    """Flip one bit in the middle of the largest array file of a checkpoint."""
    files = (workdir / "checkpoints" / str(step) / "params").rglob("d/*")
    largest = max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    return "does not match its digest"


def truncate(workdir, step):
    """Truncate a file of the optimizer state to half its size."""
    folder = workdir / "checkpoints" / str(step) / "progress"
    path = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return "does not match its digest"


def remove(workdir, step):
    """Remove the checkpoint."""
    shutil.rmtree(workdir / "checkpoints" / str(step))
    return "missing"


def lose(workdir, step):
    """Remove the meta file."""
    (workdir / "checkpoints" / str(step) / "meta" / "metadata").unlink()
    return "file meta/metadata is missing"


def fifo(workdir, step):
    """Make a FIFO beside the arrays."""
    os.mkfifo(workdir / "checkpoints" / str(step) / "params" / "pipe")
    return "file params/pipe is not a regular file"


DAMAGES = {
    "a flipped bit": flip,
    "a file cut short": truncate,
    "a file missing": lose,
    "a checkpoint missing": remove,
    "a FIFO beside the arrays": fifo,
}


damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())


@damaged
def test_a_damaged_newest_is_reported_set_aside_and_the_previous_one_used(
    three, abstract, damage, caplog
):
    problem = damage(three, 30)
    with caplog.at_level(logging.WARNING, logger="transformer"):
        state, meta = restored(three, abstract)
    assert bits(state) == bits(state_at(20))
    assert meta == meta_at(20)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "step 30" in warning
    assert str(three / "checkpoints") in warning
    assert problem in warning
    assert steps_in(three) == [10, 20]
    assert (three / "checkpoints" / "damaged-30").is_dir() == (damage is not remove)


def test_the_step_of_a_damaged_checkpoint_can_be_saved_again(three, abstract):
    """It may be damaged twice."""
    for _ in range(2):
        flip(three, 30)
        with Checkpoints(three, KEEP_ALL, writing=True) as checkpoints:
            state, _ = checkpoints.restore(abstract)
            assert bits(state) == bits(state_at(20))
            checkpoints.save(state_at(30), meta_at(30), {"nll": 0.5})
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(30))
    assert bits(best_params(three, abstract)) == bits(state_at(30).params)


def test_several_damaged_ones_are_all_set_aside_and_an_extra_file_is_damage(three, abstract):
    (three / "checkpoints" / "30" / "params" / "stray").write_text("?")
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(20))
    truncate(three, 20)
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(10))
    assert steps_in(three) == [10]


def test_without_digests_a_readable_checkpoint_is_used_with_a_warning(three, abstract, caplog):
    shutil.rmtree(three / "checkpoints" / "digests")
    assert bits(best_params(three, abstract)) == bits(state_at(10).params)
    assert "step 10: used although it cannot be verified" in caplog.text
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(30))
    assert "step 30: used although it cannot be verified" in caplog.text
    averaged = best_params(three, abstract, average=1)
    assert bits(averaged) == bits(state_at(30).params)


def test_damaged_digests_alone_do_not_make_a_run_unusable(three, abstract, caplog):
    path = three / "checkpoints" / "digests" / "30.json"
    for text in (b"", b'{"files": {"params/_METADATA": "ab', b"\xff\xfe{}", None):
        path.unlink()
        os.mkfifo(path) if text is None else path.write_bytes(text)
        caplog.clear()
        state, _ = restored(three, abstract)
        assert bits(state) == bits(state_at(30))
        assert "step 30: used although it cannot be verified: digests/30.json is" in caplog.text


def test_a_damaged_checkpoint_is_not_used_even_if_it_is_the_only_one(tmp_path, abstract):
    save(tmp_path, [10])
    flip(tmp_path, 10)
    with pytest.raises(InputError, match="step 10: file .* does not match its digest"):
        restored(tmp_path, abstract)


def test_swapped_digests_are_both_detected(three, abstract, caplog):
    folder = three / "checkpoints" / "digests"
    for old, new in (("20.json", "x"), ("30.json", "20.json"), ("x", "30.json")):
        (folder / old).rename(folder / new)
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(10))
    assert "step 20: file" in caplog.text
    assert "step 30: file" in caplog.text


def worse_metrics(three):
    """Make the score of the best checkpoint worse."""
    path = three / "checkpoints" / "10" / "metrics" / "metrics"
    path.write_text(path.read_text().replace("1.0", "9.0"))


def broken_metrics(three):
    """Make the score of the best checkpoint invalid JSON."""
    (three / "checkpoints" / "10" / "metrics" / "metrics").write_text("{")


def no_metrics(three):
    """Remove the score of the best checkpoint."""
    shutil.rmtree(three / "checkpoints" / "10" / "metrics")


def fifo_for_metrics(three):
    """Replace the score of the best checkpoint with a FIFO."""
    (three / "checkpoints" / "10" / "metrics" / "metrics").unlink()
    os.mkfifo(three / "checkpoints" / "10" / "metrics" / "metrics")


@pytest.mark.parametrize("harm", [worse_metrics, broken_metrics, no_metrics, fifo_for_metrics])
def test_the_best_never_changes_without_a_warning(three, abstract, caplog, harm):
    harm(three)
    with Checkpoints(three, KEEP_ALL) as checkpoints:
        assert checkpoints.best() == 30
    [warning] = [record.getMessage() for record in caplog.records]
    assert "step 10: file metrics/metrics " in warning
    assert bits(best_params(three, abstract)) == bits(state_at(30).params)


def test_damaged_metrics_do_not_make_another_checkpoint_the_best(three):
    path = three / "checkpoints" / "30" / "metrics" / "metrics"
    path.write_text(path.read_text().replace("2.0", "0.0"))
    with Checkpoints(three, KEEP_ALL) as checkpoints:
        assert checkpoints.best() == 10


def test_metrics_that_are_not_scores_rank_nothing(three, abstract):
    shutil.rmtree(three / "checkpoints" / "digests")
    for text in ("{}", "7", "[" * 100_000, '{"nll": "low"}', '{"nll": [1]}'):
        for step in (10, 20, 30):
            (three / "checkpoints" / str(step) / "metrics" / "metrics").write_text(text)
        with Checkpoints(three, KEEP_ALL) as checkpoints:
            assert checkpoints.best() == 30
        assert bits(best_params(three, abstract)) == bits(state_at(30).params)


def test_parameters_are_read_from_a_copy_without_training_progress(three, abstract, caplog):
    for step in (10, 20, 30):
        shutil.rmtree(three / "checkpoints" / str(step) / "progress")
    with caplog.at_level(logging.WARNING, logger="transformer"):
        assert bits(best_params(three, abstract)) == bits(state_at(10).params)
        best_params(three, abstract, average=2)
    assert not caplog.records
    with pytest.raises(InputError, match="step 30: file progress/.* is missing"):
        restored(three, abstract)


@pytest.mark.parametrize("moved", ["30.orbax-checkpoint-tmp", "deleted/30"])
def test_a_checkpoint_that_a_training_completes_or_deletes_is_not_reported(
    three, abstract, caplog, moved
):
    (three / "checkpoints" / "deleted").mkdir()
    (three / "checkpoints" / "30").rename(three / "checkpoints" / moved)
    assert bits(best_params(three, abstract)) == bits(state_at(10).params)
    assert "step 30" not in caplog.text
    restored(three, abstract)
    assert ("step 30: missing" in caplog.text) == (moved != "deleted/30")


# TensorStore's threads report reads that fail after the first one to a closed event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_digests_an_unreadable_checkpoint_is_not_used(three, abstract, caplog):
    shutil.rmtree(three / "checkpoints" / "digests")
    for path in (three / "checkpoints" / "30" / "params").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(20))
    assert "step 30: " in caplog.text


@damaged
def test_a_damaged_best_checkpoint_is_skipped(three, abstract, damage, caplog):
    problem = damage(three, 10)
    assert bits(best_params(three, abstract)) == bits(state_at(30).params)
    assert "step 10" in caplog.text
    assert problem in caplog.text


def test_without_an_intact_checkpoint_the_error_names_every_problem(three, abstract):
    for step, damage in ((10, flip), (20, truncate), (30, lose)):
        damage(three, step)
    before = contents(three)
    for read in (restored, best_params):
        with pytest.raises(InputError, match="no intact checkpoint left") as raised:
            read(three, abstract)
        message = str(raised.value)
        assert all(f"step {step}: file " in message for step in (10, 20, 30))
        assert str(three / "checkpoints") in message
        assert "restore the directory from a copy" in message
    assert contents(three) == before, "what may still be repaired by hand must stay"


def test_an_average_over_a_damaged_checkpoint_names_its_step(three, abstract):
    flip(three, 20)
    with pytest.raises(InputError, match="step 20"):
        best_params(three, abstract, average=2)
    best_params(three, abstract, average=1)


def test_a_reader_changes_nothing_on_disk(three, abstract):
    flip(three, 10)
    before = contents(three)
    best_params(three, abstract)
    best_params(three, abstract, average=2)
    with Checkpoints(three, KEEP_ALL) as checkpoints:
        assert checkpoints.steps() == [10, 20, 30]
        assert checkpoints.best() == 10
    assert contents(three) == before


def test_digests_name_every_file_of_a_checkpoint(three):
    folder = three / "checkpoints" / "30"
    record = json.loads((three / "checkpoints" / "digests" / "30.json").read_text())
    # Older releases of Orbax do not write the second.
    written_last = {"_CHECKPOINT_METADATA", "commit_success.txt"}
    assert contents(folder).keys() - record["files"].keys() <= written_last
    assert record["files"].items() <= contents(folder).items()
    items = {name.split("/")[0] for name in record["files"]}
    assert items == {"params", "progress", "meta", "metrics"}
