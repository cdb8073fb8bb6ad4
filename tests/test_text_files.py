# SPDX-License-Identifier: Apache-2.0
"""Only ``\\n`` ends a line, and whatever is wrong with a file is named by file and line."""

import pytest

from experiments import datasets
from experiments.datasets.text_files import read_lines, read_pairs, split_lines
from transformer.config import DataConfig
from transformer.errors import InputError

LATIN_1 = "schön".encode("latin-1")


@pytest.fixture
def write(tmp_path):
    """Writes bytes to a file of that name and returns its path."""

    def to(name, data):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return to


@pytest.mark.parametrize(
    "separator",
    ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"],
    ids=lambda separator: f"U+{ord(separator):04X}",
)
def test_other_separators_stay_inside_the_sentence(write, separator):
    line = f"left{separator}right"
    assert len(line.splitlines()) == 2, "otherwise this shows nothing"
    assert read_lines(write("a", f"{line}\nnext\n".encode())) == [line, "next"]


def test_windows_line_ends_are_read_as_new_lines(write):
    assert read_lines(write("a", b"one\r\ntwo\r\n\r\nfour")) == ["one", "two", "", "four"]


def test_only_the_carriage_return_before_the_line_end_is_dropped(write):
    assert read_lines(write("a", b"one\r\r\n\rtwo\n")) == ["one\r", "\rtwo"]


def test_a_leading_byte_order_mark_is_dropped_and_a_later_one_kept(write):
    data = "\ufeffone\n\ufefftwo\n".encode()
    assert read_lines(write("a", data)) == ["one", "\ufefftwo"]


def test_the_last_line_counts_with_and_without_its_end(write):
    with_end, without = write("a", b"one\ntwo\n"), write("b", b"one\ntwo")
    assert read_lines(with_end) == read_lines(without) == ["one", "two"]


def test_empty_lines_count(write):
    assert read_lines(write("a", b"\n\none\n\n")) == ["", "", "one", ""]


def test_spaces_are_kept(write):
    assert read_lines(write("a", b"  one \t\n")) == ["  one \t"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_byte_that_is_not_utf8_is_named_with_its_place_and_a_remedy(write, end):
    path = write("latin", b"gut" + end + "weiß".encode() + end + b"ganz " + LATIN_1 + end)
    with pytest.raises(InputError) as raised:
        read_lines(path)
    message = str(raised.value)
    assert message.startswith(f"{path}:3: ")
    assert "byte 0xf6 at column 9" in message
    assert "UTF-8" in message
    assert "iconv" in message


@pytest.mark.parametrize(
    "data", [b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xff\xfea\x00"], ids=lambda data: data.hex()
)
def test_cut_surrogate_overlong_and_utf16_bytes_are_refused(data):
    with pytest.raises(InputError, match=r"^name:1: byte 0x[0-9a-f]{2} at column 1 "):
        split_lines(data, "name")


def test_a_character_cut_by_the_end_of_a_line_is_refused_there():
    cut = "aé".encode()[:-1]
    with pytest.raises(InputError, match=r"^name:2: byte 0xc3 at column 2 "):
        split_lines(b"one\n" + cut + b"\nthree\n", "name")


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"], ids=["nothing", "byte-order-mark"])
def test_an_empty_file_is_refused_by_name(write, data):
    path = write("nothing", data)
    with pytest.raises(InputError, match="is empty") as raised:
        read_lines(path)
    assert str(path) in str(raised.value)


def test_empty_standard_input_has_no_lines():
    assert split_lines(b"", "standard input") == []


def test_a_missing_file_is_named_with_a_remedy(tmp_path):
    path = tmp_path / "missing"
    with pytest.raises(InputError, match="No such file or directory; check the path") as raised:
        read_lines(path)
    assert str(path) in str(raised.value)


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read") as raised:
        read_lines(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_pairs_are_the_lines_side_by_side(write):
    source, target = write("s", b"one\ntwo"), write("t", b"eins\r\nzwei\r\n")
    assert read_pairs(source, target) == (["one", "two"], ["eins", "zwei"])


def test_unequal_numbers_of_lines_are_both_named(write):
    source, target = write("s", b"one\ntwo\nthree\n"), write("t", b"eins\nzwei\n")
    with pytest.raises(InputError) as raised:
        read_pairs(source, target)
    assert f"{source} has 3 lines" in str(raised.value)
    assert f"{target} has 2" in str(raised.value)


def test_a_separator_of_unicode_does_not_shift_the_pairs(write):
    source, target = write("s", "a\u2028b\nc\n".encode()), write("t", b"A B\nC\n")
    assert read_pairs(source, target) == (["a\u2028b", "c"], ["A B", "C"])


def test_a_split_of_text_files_holds_the_pairs_and_measures_nothing_of_its_own(write):
    source, target = str(write("s", b"one\ntwo\n")), str(write("t", b"eins\nzwei\n"))
    data = DataConfig(dataset="text_files", test_source=source, test_target=target)
    split = datasets.load(data, "test")
    assert (split.sources, split.targets) == (["one", "two"], ["eins", "zwei"])
    assert len(split) == 2
    assert split.first(1).sources == ["one"]
    assert split.own_metrics(["eins", "zwei"]) == {}


@pytest.mark.parametrize("missing", ["source", "target"])
def test_a_file_of_a_split_that_is_not_given_is_named_as_a_flag(write, missing):
    given = {"source", "target"} - {missing}
    data = DataConfig(dataset="text_files").replace(
        **{f"validation_{side}": str(write(side, b"one\n")) for side in given}
    )
    with pytest.raises(InputError, match=f"--config.data.validation_{missing}=FILE"):
        datasets.load(data, "validation")
