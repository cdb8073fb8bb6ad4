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


def test_other_separators_stay_inside_the_sentence(write):
    for separator in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r":
        line = f"left{separator}right"
        assert len(line.splitlines()) == 2, "otherwise this shows nothing"
        assert read_lines(write("a", f"{line}\nnext\n".encode())) == [line, "next"]
    source, target = write("s", "a\u2028b\nc\n".encode()), write("t", b"A B\nC\n")
    assert TwoFiles(source, target).read() == (["a\u2028b", "c"], ["A B", "C"])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\r\ntwo\r\n\r\nfour", ["one", "two", "", "four"]),  # line ends of Windows
        (b"one\r\r\n\rtwo\n", ["one\r", "\rtwo"]),  # only the last \r before \n is dropped
        ("\ufeffone\n\ufefftwo\n".encode(), ["one", "\ufefftwo"]),  # byte-order marks
        (b"one\ntwo", ["one", "two"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"\n\none\n\n", ["", "", "one", ""]),
        (b"  one \t\n", ["  one \t"]),
        (b"\n", [""]),
    ],
)
def test_lines_are_read_and_counted(write, data, expected):
    for name, written in (("a", data), ("a.gz", gzip.compress(data)), ("b", gzip.compress(data))):
        path = write(name, written)
        assert read_lines(path) == expected
        assert count_lines(path) == len(expected)
    assert split_lines(data, "standard input") == expected


def test_a_byte_that_is_not_utf8_is_named_with_its_position_and_a_remedy(write):
    for end in (b"\n", b"\r\n"):
        path = write("latin", b"gut" + end + "weiß".encode() + end + b"ganz " + LATIN_1 + end)
        with pytest.raises(InputError) as raised:
            read_lines(path)
        message = str(raised.value)
        assert message.startswith(f"{path}:3: ")
        assert all(word in message for word in ("byte 0xf6 at column 9", "UTF-8", "iconv"))
    path = write("latin.gz", gzip.compress(b"a\nb\n" + LATIN_1 + b"\n"))
    with pytest.raises(InputError, match=r"latin.gz:3: byte 0xf6 at column 4 "):
        read_lines(path)
    # Truncated, a surrogate, overlong, UTF-16.
    for data in (b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xff\xfea\x00"):
        with pytest.raises(InputError, match=r"^name:1: byte 0x[0-9a-f]{2} at column 1 "):
            split_lines(data, "name")
    with pytest.raises(InputError, match=r"^name:2: byte 0xc3 at column 2 "):
        split_lines(b"one\n" + "aé".encode()[:-1] + b"\nthree\n", "name")


def test_a_file_without_text_is_refused_by_name(write, tmp_path):
    for path, words in (
        (write("nothing", b""), "is empty"),
        (write("mark", b"\xef\xbb\xbf"), "is empty"),
        (tmp_path / "missing", "No such file or directory; check the path"),
        (tmp_path, "cannot be read: it is a directory"),
    ):
        with pytest.raises(InputError, match=words) as raised:
            read_lines(path)
        assert str(path) in str(raised.value)
    with pytest.raises(InputError, match="is empty"):
        count_lines(tmp_path / "nothing")
    assert split_lines(b"", "standard input") == []


def test_gzip_in_several_members_is_one_file(write):
    path = write("a.gz", gzip.compress(b"one\ntw") + gzip.compress(b"o\nthree\n"))
    assert read_lines(path) == ["one", "two", "three"]
    assert count_lines(path) == 3


def test_truncated_and_damaged_gzip_is_refused_by_name(write):
    complete = gzip.compress("".join(f"{n * n}\n" for n in range(9999)).encode())
    for end in (3, 11, len(complete) // 2, len(complete) - 1):
        path = write("truncated.gz", complete[:end])
        for reading in (read_lines, count_lines):
            with pytest.raises(InputError, match=f"{path}.*is truncated"):
                reading(path)
    for position in (2, len(complete) // 2, len(complete) - 6):
        damaged = bytearray(complete)
        damaged[position] ^= 0xFF
        path = write("damaged.gz", bytes(damaged))
        with pytest.raises(InputError, match=f"{path}.*is damaged gzip"):
            read_lines(path)


def test_lines_across_the_buffers_of_a_large_file_are_read_correctly(write):
    expected = [f"{'zwölf' * (n % 97)}\u2028\r{n}" for n in range(5000)]
    data = "\r\n".join(expected).encode()
    for compress in (bytes, gzip.compress):
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


def test_pairs_are_the_lines_side_by_side_and_unequal_numbers_are_both_named(write):
    source, target = write("s", b"one\ntwo"), write("t", b"eins\r\nzwei\r\n")
    assert TwoFiles(source, target).read() == (["one", "two"], ["eins", "zwei"])
    source = write("s", b"one\ntwo\nthree\n")
    with pytest.raises(InputError, match=f"{source} has 3 lines.*{target} has 2"):
        TwoFiles(source, target).read()
