# SPDX-License-Identifier: Apache-2.0
"""Only ``\\n`` ends a line, and errors in a file name file and line."""

import gzip
import io

import pytest

from experiments.data.text_files import TwoFiles, count_lines, lines, stream_lines
from transformer.errors import InputError

LATIN_1 = "schön".encode("latin-1")


def read_lines(path):
    return list(lines(path))


def split_lines(data, name):
    return list(stream_lines(io.BufferedReader(io.BytesIO(data)), name))


@pytest.fixture
def write(tmp_path):
    """A function that writes bytes to a named file and returns its path."""

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


def test_windows_line_ends_are_read_as_newlines(write):
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
def test_a_byte_that_is_not_utf8_is_named_with_its_position_and_a_remedy(write, end):
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
def test_truncated_surrogate_overlong_and_utf16_bytes_are_refused(data):
    with pytest.raises(InputError, match=r"^name:1: byte 0x[0-9a-f]{2} at column 1 "):
        split_lines(data, "name")


def test_a_character_truncated_at_the_end_of_a_line_is_refused_there():
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
    with pytest.raises(InputError, match="cannot be read: it is a directory") as raised:
        read_lines(tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("name", ["a.gz", "a"])
def test_gzip_is_detected_by_its_magic_bytes_whatever_the_name(write, name):
    assert read_lines(write(name, gzip.compress("\ufeffeins\r\nzwei\n".encode()))) == [
        "eins",
        "zwei",
    ]
    assert read_lines(write(name, b"eins\nzwei\n")) == ["eins", "zwei"]


def test_gzip_in_several_members_is_one_file(write):
    path = write("a.gz", gzip.compress(b"one\ntw") + gzip.compress(b"o\nthree\n"))
    assert read_lines(path) == ["one", "two", "three"]
    assert count_lines(path) == 3


def test_truncated_gzip_is_refused_by_name(write):
    complete = gzip.compress("".join(f"{n * n}\n" for n in range(9999)).encode())
    for end in (3, 11, len(complete) // 2, len(complete) - 1):
        path = write("truncated.gz", complete[:end])
        for reading in (read_lines, count_lines):
            with pytest.raises(InputError, match="is truncated") as raised:
                reading(path)
            assert str(path) in str(raised.value)


def test_damaged_gzip_is_refused_by_name(write):
    data = bytearray(gzip.compress("".join(f"{n * n}\n" for n in range(9999)).encode()))
    for position in (2, len(data) // 2, len(data) - 6):
        damaged = data.copy()
        damaged[position] ^= 0xFF
        path = write("damaged.gz", bytes(damaged))
        with pytest.raises(InputError, match="is damaged gzip") as raised:
            read_lines(path)
        assert str(path) in str(raised.value)


def test_a_byte_that_is_not_utf8_is_named_with_its_line_in_gzip_too(write):
    path = write("latin.gz", gzip.compress(b"a\nb\n" + LATIN_1 + b"\n"))
    with pytest.raises(InputError, match=r"latin.gz:3: byte 0xf6 at column 4 "):
        read_lines(path)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_lines_across_the_buffers_of_a_large_file_are_read_correctly(write, compress):
    expected = [f"{'zwölf' * (n % 97)}\u2028\r{n}" for n in range(5000)]
    data = "\r\n".join(expected).encode()
    path = write("large", compress(data))
    assert read_lines(path) == split_lines(data, "large") == expected
    assert count_lines(path) == 5000
    path = write("bad", compress(data + b"\n" + LATIN_1 + b"\nend"))
    with pytest.raises(InputError, match=r":5001: byte 0xf6 at column 4 "):
        read_lines(path)


def test_lines_are_read_lazily(write):
    reading = lines(write("a", b"one\ntwo\nthree\n" + LATIN_1))
    assert [next(reading), next(reading)] == ["one", "two"]
    with pytest.raises(InputError, match=r":4: byte"):
        list(reading)


@pytest.mark.parametrize("data", [b"one", b"one\n", b"\n", b"one\n\n", b"one\ntwo", b"\n\n\nfour"])
def test_counting_lines_agrees_with_reading_them(write, data):
    path = write("a", data)
    assert count_lines(path) == len(read_lines(path))


def test_an_empty_file_has_no_lines_to_count(write):
    with pytest.raises(InputError, match="is empty"):
        count_lines(write("nothing", b""))


def test_pairs_are_the_lines_side_by_side(write):
    source, target = write("s", b"one\ntwo"), write("t", b"eins\r\nzwei\r\n")
    assert TwoFiles(source, target).read() == (["one", "two"], ["eins", "zwei"])


def test_unequal_numbers_of_lines_are_both_named(write):
    source, target = write("s", b"one\ntwo\nthree\n"), write("t", b"eins\nzwei\n")
    with pytest.raises(InputError) as raised:
        TwoFiles(source, target).read()
    assert f"{source} has 3 lines" in str(raised.value)
    assert f"{target} has 2" in str(raised.value)


def test_a_unicode_separator_does_not_shift_the_pairs(write):
    source, target = write("s", "a\u2028b\nc\n".encode()), write("t", b"A B\nC\n")
    assert TwoFiles(source, target).read() == (["a\u2028b", "c"], ["A B", "C"])
