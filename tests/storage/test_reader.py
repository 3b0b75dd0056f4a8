"""Reading tensors: lazily, by parts, in both modes, from files that change, and with what torch and NumPy have."""

import ctypes
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.errors import (
    ArgumentError,
    ArgumentTypeError,
    FileAccessError,
    FormatError,
    LabkitError,
    MissingFileError,
    OutOfRangeError,
    UnknownNameError,
)
from labkit.storage import (
    DTYPES,
    RawTensor,
    SafetensorsFile,
    StorageWarning,
    load_safetensors,
    open_safetensors,
    read_header,
    save_safetensors,
)
from labkit.storage.arrays import numpy_dtype
from labkit.storage.crafted import entry, frame
from labkit.storage.file import WHOLE_NBYTES
from tests.storage.memory import MemoryFile

MODES = ("mapped", "copy")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three tensors; the data starts three bytes past a multiple of four."""
    place = tmp_path / "model.safetensors"
    entries = [
        entry("table", "F32", "[100, 6]", "[0,2400]"),
        entry("b", "BF16", "[3]", "[2400,2406]"),
        entry("s", "I64", "[]", "[2406,2414]"),
    ]
    text = "{" + ",".join(entries) + "}"
    text += " " * ((3 - len(text)) % 4)
    table = np.arange(600, dtype="<f4").tobytes()
    place.write_bytes(frame(text, table + bytes.fromhex("803f00c0c07f") + (7).to_bytes(8, "little")))
    return place


def test_tensors_by_name(path: Path, mode: str) -> None:
    with open_safetensors(path, mode=mode) as file:
        assert list(file) == ["table", "b", "s"]
        assert file.names(order="name") == ["b", "s", "table"]
        assert file.names(order="file") == ["table", "b", "s"]
        assert len(file) == 3
        assert "b" in file
        assert "c" not in file
        assert file.metadata == {}
        assert file["table"].equal(torch.arange(600.0).reshape(100, 6))
        assert file["b"].tolist()[:2] == [1.0, -2.0]
        assert file["s"].item() == 7
        assert file["s"].shape == ()
        assert mode in repr(file)


def test_mapped_tensors_share_the_file_and_copies_do_not(path: Path) -> None:
    with open_safetensors(path) as file:
        assert file["table"].data_ptr() == file["table"].data_ptr()
        assert file["table"].data_ptr() % 4 == 3
        assert file["b"].data_ptr() - file["table"].data_ptr() == 2400
    with open_safetensors(path, mode="copy") as file:
        assert file["table"].data_ptr() != file["table"].data_ptr()


def test_writing_to_a_tensor_never_reaches_the_file(path: Path, mode: str) -> None:
    before = path.read_bytes()
    with open_safetensors(path, mode=mode) as file:
        file["table"].fill_(9.0)
    assert path.read_bytes() == before


def test_tensors_outlive_the_reader_and_the_file(path: Path, mode: str) -> None:
    with open_safetensors(path, mode=mode) as file:
        table = file["table"]
    path.unlink()
    assert float(table.sum()) == 600 * 599 / 2


def test_a_closed_reader_says_so(path: Path, mode: str) -> None:
    file = open_safetensors(path, mode=mode)
    file.close()
    file.close()
    with pytest.raises(FileAccessError, match="the reader is closed"):
        file["table"]
    assert "closed" in repr(file)


def test_slices_and_rows(path: Path, mode: str) -> None:
    whole = torch.arange(600.0)
    with open_safetensors(path, mode=mode) as file:
        assert file.slice("table", 7, 5).equal(whole[7:12])
        assert file.slice("table", 600, 0).equal(whole[600:])
        assert file.slice("s", 0, 1).tolist() == [7]
        assert file.rows("table", 98, 100).equal(whole.reshape(100, 6)[98:])
        assert file.rows("table", 5, 5).shape == (0, 6)
        for first, count in ((-1, 1), (0, 601), (600, 1), (0, -1)):
            with pytest.raises(OutOfRangeError, match=r"tensor 'table': the slice leaves the tensor .*600"):
                file.slice("table", first, count)
        for start, stop in ((-1, 1), (99, 101), (3, 2)):
            with pytest.raises(OutOfRangeError, match=r"tensor 'table': the rows leave the tensor .*100"):
                file.rows("table", start, stop)
        with pytest.raises(ArgumentError, match="a scalar has no rows"):
            file.rows("s", 0, 1)


def test_a_slice_reads_only_its_own_bytes() -> None:
    text = "{" + entry("table", "F32", "[100, 6]", "[0,2400]") + "}"
    source = MemoryFile(frame(text, bytes(2400)))
    file = SafetensorsFile(source, mode="copy")
    data_start = file.header.data_start
    source.reads.clear()
    file.rows("table", 3, 5)
    file.slice("table", 7, 2)
    assert source.reads == [(data_start + 72, 48), (data_start + 28, 8)]


def test_opening_reads_the_header_only() -> None:
    text = "{" + entry("table", "F32", "[100, 6]", "[0,2400]") + "}"
    source = MemoryFile(frame(text, bytes(2400)))
    SafetensorsFile(source, mode="copy")
    assert sum(nbytes for _, nbytes in source.reads) == 8 + len(text)


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident pages with Linux's mincore")
def test_one_row_of_a_tall_table_touches_a_page_or_two(tmp_path: Path) -> None:
    rows, width = 262_144, 64
    place = tmp_path / "tall.safetensors"
    save_safetensors({"table": torch.zeros(rows, width)}, place)
    with open_safetensors(place) as file:
        before = resident_pages(file)
        row = file.rows("table", 200_000, 200_001)
        assert resident_pages(file) == before, "taking a view touches nothing"
        row.add_(1.0)  # a private page is copied: counted below by what this process holds of its own
        assert private_nbytes(file) <= 2 * mmap.PAGESIZE


def resident_pages(file: SafetensorsFile) -> int:
    """Pages of the map that this process has touched."""
    return sum(int(line.split()[1]) * 1024 for line in smaps_of(file) if line.startswith("Rss:")) // mmap.PAGESIZE


def private_nbytes(file: SafetensorsFile) -> int:
    return sum(int(line.split()[1]) * 1024 for line in smaps_of(file) if line.startswith("Private_Dirty:"))


def smaps_of(file: SafetensorsFile) -> Iterator[str]:
    address = ctypes.addressof(ctypes.c_char.from_buffer(file._map))
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= address < end
        elif inside:
            yield line


def test_unknown_names_list_the_near_ones(path: Path) -> None:
    with (
        open_safetensors(path) as file,
        pytest.raises(UnknownNameError, match="no tensor named 'tabel'; did you mean 'table'"),
    ):
        file["tabel"]
    with open_safetensors(path) as file:
        assert file.get("tabel") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: os.truncate(p, 300), "shrank since it was opened .expected 2[0-9]+ bytes, got 300 bytes"),
        (lambda p: p.write_bytes(p.read_bytes() + b"x"), "grew since it was opened"),
        (lambda p: os.utime(p, ns=(1, 1)), "was written to since it was opened"),
    ],
)
def test_a_file_that_changed_is_told_before_it_is_touched(path: Path, mode: str, change: object, message: str) -> None:
    with open_safetensors(path, mode=mode) as file:
        file["b"]
        change(path)  # type: ignore[operator]
        with pytest.raises(FileAccessError, match=message):
            file["table"]


def test_copy_mode_survives_a_truncation_during_the_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check has passed when the file is cut: the read ends early and says so."""
    with open_safetensors(path, mode="copy") as file:
        source = file._source
        monkeypatch.setattr(source, "require_unchanged", lambda: os.truncate(path, 300))
        with pytest.raises(
            FileAccessError, match=r"the file ends inside the range .*expected 2400 bytes, got \d+ bytes"
        ):
            file["table"]


LARGE = torch.arange(12_000_011).to(torch.uint8)  # a length that 2, 3 and 4 parts do not divide


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tensor that several threads read at once, of a length that none of them divides."""
    path = tmp_path / "large.safetensors"
    save_safetensors({"a": LARGE, "b": torch.arange(5)}, path)
    return path


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
@pytest.mark.parametrize("huge", [True, False])
def test_a_large_tensor_is_copied_whole(
    large: Path, *, readers: int, huge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.storage.sources._READERS", readers)
    if not huge:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    with open_safetensors(large, mode="copy") as file:
        tensor = file["a"]
        tensor.add_(1)  # its own memory
        assert torch.equal(file["a"], LARGE)
    assert torch.equal(tensor, LARGE + 1)


def test_a_large_tensor_cut_during_its_read_is_an_error(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.storage.sources._READERS", 2)
    with open_safetensors(large, mode="copy") as file:
        monkeypatch.setattr(file._source, "require_unchanged", lambda: os.truncate(large, 9_000_000))
        with pytest.raises(FileAccessError, match=r"the file ends inside the range"):
            file["a"]


def test_a_replaced_file_keeps_its_old_tensors(path: Path) -> None:
    with open_safetensors(path) as file:
        save_safetensors({"table": torch.zeros(2)}, path)
        assert float(file["table"][1, 0]) == 6.0


def test_where_the_system_refuses_to_map_the_copy_is_used_and_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with open_safetensors(path) as file:
        assert file.mode == "copy"
        assert file["table"].numel() == 600
        assert "refused to map the file" in file.notes[0]


def test_big_endian_machines_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(FileAccessError, match="big-endian"):
        open_safetensors(path)
    with pytest.raises(FileAccessError, match="big-endian"):
        save_safetensors({}, path)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda p: None, MissingFileError, "no such file"),
        (lambda p: p.mkdir(), FileAccessError, "it is a folder"),
        (lambda p: os.mkfifo(p), FileAccessError, "not a regular file"),
        (lambda p: p.symlink_to("nowhere"), MissingFileError, "the link leads nowhere .got nowhere"),
        (lambda p: p.write_bytes(b""), FormatError, "too short .expected at least 8 bytes, got 0 bytes"),
    ],
)
def test_what_is_no_file_is_told(tmp_path: Path, make: object, kind: type[LabkitError], message: str) -> None:
    place = tmp_path / "model.safetensors"
    make(place)  # type: ignore[operator]
    with pytest.raises(kind, match=message):
        open_safetensors(place)
    with pytest.raises(kind, match=message):
        read_header(place)


def test_an_unknown_mode_is_refused(path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected 'mapped' or 'copy', got 'fast'"):
        open_safetensors(path, mode="fast")


def test_load_some_names_onto_a_device(path: Path) -> None:
    assert list(load_safetensors(path, names=["s"], device="cpu")) == ["s"]
    assert len(load_safetensors(path)) == 3
    assert load_safetensors(path, device="meta")["table"].device.type == "meta"


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_every_dtype_in_both_libraries(tmp_path: Path, mode: str, code: str) -> None:
    place = tmp_path / "model.safetensors"
    nbytes = DTYPES[code].bits
    data = bytes(i % 2 for i in range(nbytes)) if code == "BOOL" else bytes(range(nbytes))
    save_safetensors({"a": RawTensor(code, (2, 4), data)}, place)
    with open_safetensors(place, mode=mode) as file:
        assert file.bytes("a") == data
        array = file.numpy("a")
        assert array.shape == (2, 4)
        assert array.dtype == numpy_dtype(code, "")
        if code == "C64":
            with pytest.raises(ArgumentTypeError, match="tensor 'a': complex values cannot be widened"):
                file.float32("a")
        else:
            np.testing.assert_array_equal(file.float32("a").values.numpy(), array.astype(np.float32))
        if DTYPES[code].torch is None:
            with pytest.raises(ArgumentTypeError, match=f"torch has no such type .got {code}"):
                file["a"]
        else:
            tensor = file["a"]
            assert tensor.dtype == getattr(torch, DTYPES[code].torch)
            assert tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() == data
            assert tensor.shape == ((2, 2) if code == "F4" else (2, 4))


def test_packed_parts_must_lie_on_whole_bytes(tmp_path: Path) -> None:
    place = tmp_path / "model.safetensors"
    save_safetensors(
        {
            "f6": RawTensor("F6_E2M3", (4, 4), bytes(12)),
            "f4": RawTensor("F4", (2, 3), bytes(3)),
            "odd": RawTensor("F4", (2, 1), b"x"),
        },
        place,
    )
    with open_safetensors(place) as file:
        assert file.slice("f4", 2, 4).shape == (2,)
        with pytest.raises(ArgumentError, match=r"elements \[1, 2\) of 4 bits.*multiples of 2 elements"):
            file.slice("f4", 1, 1)
        with pytest.raises(ArgumentError, match="multiples of 4 elements"):
            list(file.chunks("f6", first=2))
        with pytest.raises(ArgumentTypeError, match=r"torch holds F4 in pairs along the last axis .got shape \[2, 1\]"):
            file["odd"]
        assert file.float32("odd").values.shape == (2, 1)


def test_numpy_without_ml_dtypes_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with open_safetensors(path) as file:
        assert file.numpy("table").shape == (100, 6)
        with pytest.raises(
            ArgumentTypeError, match=r"tensor 'b': NumPy has no such type .got BF16.*pip install ml_dtypes"
        ):
            file.numpy("b")


def test_bool_bytes_other_than_0_and_1_warn_and_read_as_true(tmp_path: Path, mode: str) -> None:
    place = tmp_path / "model.safetensors"
    place.write_bytes(frame("{" + entry("a", "BOOL", "[3]", "[0,3]") + "}", bytes([0, 1, 2])))
    with open_safetensors(place, mode=mode) as file:
        with pytest.warns(
            StorageWarning, match=r"tensor 'a': 1 BOOL bytes are neither 0 nor 1 \(first: 2 at element 2\)"
        ):
            tensor = file["a"]
        assert tensor.tolist() == [False, True, True]
        assert bool((tensor == torch.tensor([False, True, True])).all())


@pytest.mark.parametrize("max_nbytes", [1, 24, 100, 1 << 24])
def test_chunks_join_to_the_whole(path: Path, max_nbytes: int) -> None:
    with open_safetensors(path) as file:
        parts = list(file.chunks("table", max_nbytes=max_nbytes))
        assert torch.cat(parts).numpy().tobytes() == file.bytes("table")
        assert all(part.numel() % WHOLE_NBYTES == 0 for part in parts)
        assert all(part.numel() <= max(max_nbytes, WHOLE_NBYTES) for part in parts)


def test_headers_and_info_need_no_torch(path: Path) -> None:
    program = f"""
        import sys
        import labkit.storage
        labkit.storage.read_header({str(path)!r})
        from labkit.cli.main import run
        assert run(["info", {str(path)!r}]) == 0
        assert run(["tensors", {str(path)!r}]) == 0
        assert run(["check", {str(path)!r}]) == 0
        heavy = {{"torch", "matplotlib", "transformers", "numpy"}} & set(sys.modules)
        assert not heavy, heavy
        assert run(["bytes", {str(path)!r}]) == 0
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True)
