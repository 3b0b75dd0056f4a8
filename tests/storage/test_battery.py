"""Every crafted file gets its code, by every road; and what the tables say of the rules and of other readers is true."""

import functools
import re
import warnings
from pathlib import Path

import pytest
import safetensors

from labkit.errors import FormatError
from labkit.storage import RULES, StorageWarning, open_safetensors, read_header
from labkit.storage.battery import crafted_files
from labkit.storage.checking import check_path
from labkit.storage.crafted import Crafted, entry, frame
from labkit.storage.exact import read_exactly
from labkit.storage.header import PREFIX_NBYTES, _read_fast, header_of
from labkit.storage.loaders import LOADERS, behaviours_of
from labkit.storage.rules import HEADER_CAP_NBYTES
from tests.storage.memory import MemoryFile, verdict

BATTERY = crafted_files()
SNAPSHOT_CODES = {code for code in RULES if code.startswith(("index-", "shard-"))}
WHOLE_FILE = re.compile(r"prefix|header|is-|data-trailing|metadata")


def test_the_battery_is_large_and_breaks_every_rule() -> None:
    assert len(BATTERY) >= 250
    assert {file.code for file in BATTERY} - {None} == set(RULES) - SNAPSHOT_CODES


@pytest.mark.parametrize("file", BATTERY, ids=lambda file: file.name)
def test_verdict(file: Crafted) -> None:
    found = verdict(file.data)
    assert (found.code if isinstance(found, FormatError) else None) == file.code


@pytest.mark.parametrize("file", [file for file in BATTERY if file.code], ids=lambda file: file.name)
def test_message_names_file_tensor_and_numbers(file: Crafted) -> None:
    message = str(verdict(file.data))
    assert message.startswith("memory.safetensors")
    assert message.endswith(f"[{file.code}]")
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 600
    if not WHOLE_FILE.match(file.code or "") and "surrogate-metadata" not in file.name and "duplicate" not in file.name:
        assert ", tensor " in message


def test_both_modes_and_the_header_alone_refuse_the_same_files(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for file in BATTERY:
        path.write_bytes(file.data)
        codes = [code_of(lambda: read_header(path))]
        for mode in ("mapped", "copy"):
            codes.append(code_of(lambda mode=mode: open_safetensors(path, mode=mode).close()))
        assert codes == [file.code] * 3, file.name


def test_accepted_files_give_every_tensor_in_both_modes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for file in BATTERY:
        if file.code is not None:
            continue
        path.write_bytes(file.data)
        with warnings.catch_warnings():
            warnings.simplefilter("error", StorageWarning)
            with open_safetensors(path) as mapped, open_safetensors(path, mode="copy") as copied:
                for name in mapped:
                    assert mapped.bytes(name) == copied.bytes(name)
                    assert len(mapped.bytes(name)) == mapped.header.entries[name].nbytes


@pytest.mark.parametrize("file", BATTERY, ids=lambda file: file.name)
def test_fast_and_exact_road_agree(file: Crafted) -> None:
    """Whatever the fast road accepts, the exact one accepts, with the same metadata and entries."""
    text = file.data[PREFIX_NBYTES:][: int.from_bytes(file.data[:PREFIX_NBYTES], "little")]
    data_nbytes = len(file.data) - PREFIX_NBYTES - len(text)
    fast = _read_fast(text, data_nbytes)
    exact = read_exactly(text, data_nbytes, "x")
    if fast is None:
        return
    assert exact.defects == []
    assert fast[0] == exact.metadata
    assert {name: tuple(vars_of(raw)) for name, raw in fast[1]._raw.items()} == {
        name: tuple(raw) for name, raw in exact.entries.items()
    }


def test_the_fast_road_takes_what_official_writers_write() -> None:
    text = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  '
    assert _read_fast(text, 4) is not None
    assert _read_fast(text.replace(b'"a":', b'"a": '), 4) is None


@pytest.mark.parametrize("file", [file for file in BATTERY if file.code], ids=lambda file: file.name)
def test_the_official_reader_does_what_the_table_says(file: Crafted) -> None:
    behaviour = behaviours_of(file.code or "")[LOADERS.index(f"safetensors {safetensors.__version__}")]
    accepted = officially_accepted(file.data)
    if behaviour.accepted in (0, behaviour.tried):
        assert accepted == bool(behaviour.accepted)
    same = [each for each in BATTERY if each.code == file.code]
    assert len(same) == behaviour.tried, "measure the readers again: tests/storage/measure_loaders.py"


def test_the_table_counts_what_the_official_reader_accepts() -> None:
    for code in {file.code for file in BATTERY if file.code}:
        accepted = sum(officially_accepted(file.data) for file in BATTERY if file.code == code)
        assert behaviours_of(code)[0].accepted == accepted, code


def test_check_finds_the_same_verdict(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for file in BATTERY:
        path.write_bytes(file.data)
        found = check_path(path)
        assert found.return_code == (0 if file.code is None else 1), file.name
        assert file.code is None or found.defects[0].code == file.code


def test_check_finds_every_defect(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    entries = [entry("a", "F33"), entry("b", "F32", "[-1]"), entry("c", "F32", "[2]"), entry("d"), entry("d")]
    path.write_bytes(frame("{" + ",".join(entries) + "}", bytes(4)))
    codes = [defect.code for defect in check_path(path).defects]
    assert codes == ["dtype-unknown", "dimension", "size-mismatch", "duplicate-name"]


def test_nothing_is_read_on_the_strength_of_a_number() -> None:
    """A header length that lies makes the reader ask for 8 bytes, and for the first ones to tell what the file is."""
    for length in (HEADER_CAP_NBYTES, HEADER_CAP_NBYTES + 1, 2**63, 2**64 - 1):
        source = MemoryFile(length.to_bytes(8, "little") + b"{}")
        assert isinstance(verdict(source.data), FormatError)
        code_of(lambda source=source: header_of(source))
        assert all(nbytes <= 512 for _, nbytes in source.reads)


def test_the_cap_is_inclusive() -> None:
    text = b"{}".ljust(HEADER_CAP_NBYTES)
    assert not isinstance(verdict(frame(text)), FormatError)
    over = verdict(frame(text + b" "))
    assert isinstance(over, FormatError)
    assert over.code == "header-cap"


@pytest.mark.parametrize(
    "text",
    [
        '{"a":"' + '\\"' * 200_000,
        '{"' + "\\" * 200_001,
        '{"__metadata__":{"' + '\\"' * 200_000,
        '{"__metadata__":{' + '"a":"b",' * 50_000,
        "{" + '"a":' * 100_000,
        "{" + "[" * 300_000,
        "{" + '"a":{},' * 100_000 + "}",
    ],
    ids=["open-string", "backslashes", "open-key", "open-metadata", "colons", "brackets", "empty-entries"],
)
@pytest.mark.timeout(120)  # quadratic time would take hours
def test_hostile_headers_take_linear_time(text: str) -> None:
    assert isinstance(verdict(frame(text)), FormatError)


@functools.cache
def officially_accepted(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


def code_of(action: object) -> str | None:
    try:
        action()  # type: ignore[operator]
    except FormatError as error:
        return error.code
    return None


def vars_of(raw: object) -> list[object]:
    return [raw.dtype, raw.shape, raw.data_offsets]  # type: ignore[attr-defined]
