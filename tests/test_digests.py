# SPDX-License-Identifier: Apache-2.0
"""Digests name what differs, and a record notices its own damage."""

import json
import shutil

import pytest
from etils import epath

from transformer.checkpoints import integrity

# FIPS 180-2, appendix B.1, and the digest of nothing.
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
# FIPS 180-2, appendix B.3.
MILLION = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"


@pytest.fixture
def folder(tmp_path):
    """Three files, one of them two folders deep."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "abc").write_text("abc")
    (tmp_path / "a" / ".hidden").write_bytes(b"")
    (tmp_path / "million").write_text("a" * 1_000_000)
    return epath.Path(tmp_path)


@pytest.mark.parametrize("part", [7, 999_999, 2**20])
def test_the_standard_s_own_examples_in_parts_of_any_size(folder, part, monkeypatch):
    monkeypatch.setattr(integrity, "_CHUNK_BYTES", part)
    expected = {"a/.hidden": NOTHING, "a/b/abc": ABC, "million": MILLION}
    assert integrity.directory_digests(folder) == expected


def test_some_files_may_be_left_out_by_their_path(folder):
    assert integrity.directory_digests(folder, ("million", "abc")).keys() == {"a/.hidden", "a/b/abc"}


def test_the_first_difference_is_named():
    same = {"a": "1", "b": "2"}
    assert integrity.first_difference(same, dict(same)) is None
    assert integrity.first_difference(same, {"b": "2"}) == "file a is missing"
    assert integrity.first_difference(same, {"a": "1", "b": "3"}) == "file b does not match its digest"
    assert integrity.first_difference(same, {**same, "c": "3"}) == "file c does not match its digest"


@pytest.fixture
def record(tmp_path):
    """The record of step 7."""
    path = epath.Path(tmp_path) / "7.json"
    integrity.write_record(path, 7, {"a": ABC, "b": NOTHING})
    return path


def test_a_record_is_read_as_it_was_written(record):
    assert integrity.read_record(record, 7) == {"a": ABC, "b": NOTHING}
    assert [path.name for path in record.parent.iterdir()] == ["7.json"]


def test_a_missing_record_is_told_from_a_damaged_one(record):
    with pytest.raises(integrity.RecordError, match="8.json is missing"):
        integrity.read_record(record.with_name("8.json"), 8)
    record.write_text("")
    with pytest.raises(integrity.RecordError, match="7.json is damaged"):
        integrity.read_record(record, 7)


def test_a_record_of_another_step_is_not_this_one_s(record):
    with pytest.raises(integrity.RecordError):
        integrity.read_record(record, 8)
    shutil.copy(record, record.with_name("8.json"))
    with pytest.raises(integrity.RecordError):
        integrity.read_record(record.with_name("8.json"), 8)


@pytest.mark.parametrize(
    "text", ["[]", "{", "null", '"x"', "{}", '{"step": 7, "files": {}, "sha256": "0"}', "7"]
)
def test_no_record_at_all(record, text):
    record.write_text(text)
    with pytest.raises(integrity.RecordError):
        integrity.read_record(record, 7)


def test_a_flipped_bit_is_noticed_or_changes_nothing(record):
    """Every seventh, and so each of the eight of a byte."""
    data = record.read_bytes()
    for place in range(0, 8 * len(data), 7):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        record.write_bytes(bytes(changed))
        try:
            assert integrity.read_record(record, 7) == {"a": ABC, "b": NOTHING}
        except integrity.RecordError:
            continue
        assert json.loads(changed) == json.loads(data), "white space alone may differ"
