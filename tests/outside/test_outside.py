"""What anybody may have written is read within bounds: files that never end, numbers and nestings of any length."""

import os
from pathlib import Path

import pytest

from labkit.errors import FileAccessError, LabkitError, MissingFileError
from labkit.outside import NotJson, RepeatedKey, parse_json, read_regular, safe, shown, whole_number


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nests too deep"),
        ('{"a":' * 100_000, "nests too deep"),
        ("9" * 5000, "the number 99999999… has 5000 characters"),
        ("[-" + "9" * 19 + "]", "the number -9999999… has 20 characters"),
        (b"\xff", "byte 0 is not UTF-8"),
        ("", "Expecting value"),
        ("{", "line 1 column 2"),
        ('{"a": {"b": 1, "b": 2}}', "the key 'b' stands twice"),
    ],
)
def test_a_text_that_is_no_json_says_why(text: str | bytes, told: str) -> None:
    with pytest.raises(NotJson, match=told):
        parse_json(text)


def test_json_is_read_as_it_stands() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": [1, -2.5, null, "\\u00e9"], "b": 999999999999999999}') == {
        "a": [1, -2.5, None, "é"],
        "b": 10**18 - 1,
    }
    assert parse_json('{"digits in a string": "' + "9" * 5000 + '", "n": 3}')["n"] == 3


def test_a_repeated_key_holds_both_values() -> None:
    with pytest.raises(RepeatedKey) as caught:
        parse_json('{"a": 1, "b": 2, "a": [3]}')
    assert (caught.value.key, caught.value.first, caught.value.second) == ("a", 1, [3])


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "1_0", "٣", "²", "9" * 19, "9" * 5000, "0x1"])
def test_what_is_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


def test_whole_numbers() -> None:
    assert [whole_number(text) for text in ("0", "007", "9" * 18, "0" * 5000 + "1")] == [0, 7, 10**18 - 1, 1]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cases: tuple[tuple[str | Path, type[LabkitError], str], ...] = (
        ("/dev/zero", FileAccessError, "not a regular file .got a device"),
        ("/dev/full", FileAccessError, "not a regular file .got a device"),
        (tmp_path / "pipe", FileAccessError, "not a regular file .got a pipe"),
        (tmp_path, FileAccessError, "it is a folder"),
        (tmp_path / "none", MissingFileError, "there is no such map"),
        ("a" * 300, FileAccessError, r"'... 300 characters\): the map cannot be read: File name too long"),
        ("a\0b", FileAccessError, r"'a\\x00b': the map cannot be read: embedded null"),
    )
    for path, kind, told in cases:
        with pytest.raises(kind, match=told):
            read_regular(path, what="map")


def test_a_file_over_the_cap_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", cap_nbytes=5) == read_regular(tmp_path / "a", cap_nbytes=None) == b"12345"
    with pytest.raises(FileAccessError, match=r"too large for a file .expected at most 4 bytes"):
        read_regular(tmp_path / "a", cap_nbytes=4)
    with (tmp_path / "a").open("r+b") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(FileAccessError, match="too large"):
        read_regular(tmp_path / "a")


def test_nothing_printed_drives_a_terminal() -> None:
    assert safe("é 日 \x1b]0;x\x07\r\n\u202e\ud800\x9b") == "é 日 \\x1b]0;x\\x07\\r\\n\\u202e\\ud800\\x9b"
    assert shown("a" * 81) == f"('{'a' * 80}'... 81 characters)"
