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


def test_digests_are_those_of_the_standard_for_any_chunk_size(folder, monkeypatch):
    for chunk in (7, 999_999, 2**20):
        monkeypatch.setattr(integrity, "_CHUNK_BYTES", chunk)
        expected = {"a/.hidden": EMPTY, "a/b/abc": ABC, "million": MILLION}
        assert integrity.directory_digests(folder) == expected
    # Files are excluded by their relative path.
    digests = integrity.directory_digests(folder, ("million", "abc"))
    assert digests.keys() == {"a/.hidden", "a/b/abc"}


def test_the_first_difference_is_named():
    for actual, difference in (
        ({"a": "1", "b": "2"}, None),
        ({"b": "2"}, "file a is missing"),
        ({"a": "1", "b": "3"}, "file b does not match its digest"),
        ({"a": "1", "b": "2", "c": "3"}, "file c does not match its digest"),
    ):
        assert integrity.first_difference({"a": "1", "b": "2"}, actual) == difference


def test_a_record_is_read_as_it_was_written_and_other_text_is_none(tmp_path):
    path = epath.Path(tmp_path) / "7.json"
    assert integrity.read_record(path) is None
    integrity.write_record(path, {"a": ABC, "b": EMPTY})
    assert integrity.read_record(path) == {"a": ABC, "b": EMPTY}
    assert [path.name for path in tmp_path.iterdir()] == ["7.json"]
    for text in ("", "[]", "{", "null", '"x"', "{}", '{"files": 7}', "[" * 10**5):
        path.write_text(text)
        assert integrity.read_record(path) is None
