# SPDX-License-Identifier: Apache-2.0
"""Digests name the file that differs, and their record is read or refused."""

import pytest
from etils import epath

from transformer.checkpoints import integrity

# FIPS 180-2, appendices B.1 and B.3, and the digest of the empty string.
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
MILLION = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def folder(tmp_path):
    """Three files, one of them two directories deep."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "abc").write_text("abc")
    (tmp_path / "a" / ".hidden").write_bytes(b"")
    (tmp_path / "million").write_text("a" * 1_000_000)
    return epath.Path(tmp_path)


@pytest.mark.parametrize("chunk", [7, 999_999, 2**20])
def test_digests_are_those_of_the_standard_for_any_chunk_size(folder, chunk, monkeypatch):
    monkeypatch.setattr(integrity, "_CHUNK_BYTES", chunk)
    expected = {"a/.hidden": EMPTY, "a/b/abc": ABC, "million": MILLION}
    assert integrity.directory_digests(folder) == expected


def test_files_are_excluded_by_their_relative_path(folder):
    digests = integrity.directory_digests(folder, ("million", "abc"))
    assert digests.keys() == {"a/.hidden", "a/b/abc"}


@pytest.mark.parametrize(
    ("actual", "difference"),
    [
        ({"a": "1", "b": "2"}, None),
        ({"b": "2"}, "file a is missing"),
        ({"a": "1", "b": "3"}, "file b does not match its digest"),
        ({"a": "1", "b": "2", "c": "3"}, "file c does not match its digest"),
    ],
)
def test_the_first_difference_is_named(actual, difference):
    assert integrity.first_difference({"a": "1", "b": "2"}, actual) == difference


def test_a_record_is_read_as_it_was_written(tmp_path):
    path = epath.Path(tmp_path) / "7.json"
    integrity.write_record(path, {"a": ABC, "b": EMPTY})
    assert integrity.read_record(path) == {"a": ABC, "b": EMPTY}
    assert [path.name for path in tmp_path.iterdir()] == ["7.json"]


def test_a_missing_record_has_no_digests(tmp_path):
    assert integrity.read_record(epath.Path(tmp_path) / "8.json") is None


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"x"', "{}", '{"files": 7}', "[" * 10**5])
def test_other_text_is_no_record(tmp_path, text):
    path = epath.Path(tmp_path) / "7.json"
    path.write_text(text)
    assert integrity.read_record(path) is None
