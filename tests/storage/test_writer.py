"""Writing: by value whatever the memory order, the same bytes for the same input, and nothing quietly lost."""

import json
import os
import stat
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from labkit.errors import ArgumentError, ArgumentTypeError, FileAccessError, LabkitError, MissingFileError
from labkit.storage import DTYPES, RawTensor, load_safetensors, open_safetensors, read_header, save_safetensors
from labkit.storage.arrays import numpy_dtype
from labkit.storage.rules import HEADER_CAP_NBYTES

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
TENSOR = torch.arange(12.0).reshape(3, 4)
BASE = torch.arange(20.0)

ORDERS = {
    "np_c": MATRIX,
    "np_fortran": np.asfortranarray(MATRIX),
    "np_transpose": MATRIX.T,
    "np_strided": np.arange(24.0).reshape(3, 8)[:, ::2],
    "np_reversed": MATRIX[::-1, ::-1],
    "np_broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    "np_big_endian": MATRIX.astype(">f4"),
    "np_big_endian_int": np.arange(5, dtype=">i8"),
    "np_unaligned": np.frombuffer(b"x" + MATRIX.tobytes(), dtype=np.uint8)[1:].view(np.float32),
    "np_read_only": np.frombuffer(MATRIX.tobytes(), dtype=np.float32),
    "np_empty": np.zeros((0, 4), np.float32),
    "np_scalar": np.array(2.5, np.float32),
    "np_bool": np.array([[True, False]]),
    "np_bfloat16": MATRIX.astype(ml_dtypes.bfloat16).T,
    "pt_c": TENSOR.clone(),
    "pt_transpose": TENSOR.T,
    "pt_expand": torch.tensor(3.0).expand(2, 3),
    "pt_view": BASE[4:16].reshape(3, 4),
    "pt_channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "pt_bf16": TENSOR.bfloat16(),
    "pt_scalar": torch.tensor(1.5),
    "pt_empty": torch.zeros(4, 0),
    "pt_conj": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj(),
    "pt_neg": torch.tensor([1 + 2j], dtype=torch.complex64).conj().imag,
    "pt_parameter": torch.nn.Parameter(TENSOR.clone()),
    "pt_uint64": torch.tensor([2**64 - 1], dtype=torch.uint64),
}


def in_c_order(value: np.ndarray | torch.Tensor) -> torch.Tensor:
    """The value as a torch tensor of its own, by way of plain lists where NumPy's memory order could mislead."""
    if isinstance(value, torch.Tensor):
        return value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    if value.dtype == ml_dtypes.bfloat16:
        return torch.tensor(value.astype(np.float32).tolist(), dtype=torch.bfloat16).reshape(value.shape)
    dtype = torch.from_numpy(np.zeros(1, dtype=value.dtype.newbyteorder("="))).dtype
    return torch.tensor(value.tolist(), dtype=dtype).reshape(value.shape)


@pytest.mark.parametrize("name", ORDERS)
def test_any_memory_order_is_written_by_value(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors({"x": ORDERS[name]}, path)
    expected = in_c_order(ORDERS[name])
    found = load_safetensors(path, mode="copy")["x"]
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(found, expected)


@pytest.mark.parametrize("code", [code for code in DTYPES if DTYPES[code].numpy or DTYPES[code].ml_dtypes])
def test_numpy_arrays_of_every_dtype_survive(tmp_path: Path, code: str) -> None:
    path = tmp_path / "model.safetensors"
    bits = DTYPES[code].bits
    octets = np.arange(bits, dtype=np.uint8) & (1 if code == "BOOL" else 255)
    save_safetensors({"x": RawTensor(code, (8,), octets.tobytes())}, path)
    with open_safetensors(path) as file:
        array = file.numpy("x")
    again = tmp_path / "again.safetensors"
    save_safetensors({"x": array}, again)
    assert again.read_bytes() == path.read_bytes()
    assert array.dtype == numpy_dtype(code, "")


@pytest.mark.parametrize("code", [code for code in DTYPES if DTYPES[code].torch])
def test_torch_tensors_of_every_dtype_survive(tmp_path: Path, code: str) -> None:
    path = tmp_path / "model.safetensors"
    octets = bytes(i % 2 for i in range(DTYPES[code].bits)) if code == "BOOL" else bytes(range(DTYPES[code].bits))
    save_safetensors({"x": RawTensor(code, (2, 4), octets)}, path)
    again = tmp_path / "again.safetensors"
    save_safetensors(load_safetensors(path), again)
    assert again.read_bytes() == path.read_bytes()


def test_same_input_same_bytes(tmp_path: Path) -> None:
    forward = {"b": TENSOR.clone(), "a": BASE.bfloat16(), "c": torch.arange(3)}
    backward = dict(reversed(forward.items()))
    metadata = {f"key {i}": str(i) for i in range(20)}
    save_safetensors(forward, tmp_path / "1", metadata=metadata)
    save_safetensors(backward, tmp_path / "2", metadata=dict(reversed(metadata.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    header = read_header(tmp_path / "1")
    assert header.data_start % 8 == 0
    assert header.names() == ["c", "b", "a"], "widest dtype first, so that each tensor is aligned to its size"
    assert list(header.metadata) == sorted(metadata)


def test_writes_nothing_but_what_was_asked(tmp_path: Path) -> None:
    save_safetensors({}, tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == (8).to_bytes(8, "little") + b"{}      "
    save_safetensors({"a": TENSOR}, tmp_path / "bare")
    assert read_header(tmp_path / "bare").metadata == {}


@pytest.mark.parametrize(
    "name", ["", " ", "a\nb", "a\0b", "日本語", "🙂", '"\\', "<img src=x>", "../a", "x" * 3000, "__metadata__ "]
)
def test_odd_names_survive(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors({name: TENSOR}, path, metadata={name or "k": name})
    with open_safetensors(path) as file:
        assert list(file) == [name]
        assert file[name].equal(TENSOR)
        assert file.metadata == {name or "k": name}


@pytest.mark.parametrize(
    ("tensors", "metadata", "kind", "message"),
    [
        ({"__metadata__": TENSOR}, None, ArgumentError, "tensor '__metadata__': this name is the format's own"),
        ({"\ud800": TENSOR}, None, ArgumentError, "half a surrogate pair"),
        ({1: TENSOR}, None, ArgumentTypeError, "a tensor's name must be a string .got 1"),
        ({"a": [1.0]}, None, ArgumentTypeError, "tensor 'a': not a tensor .*got list"),
        ({"a": 1.5}, None, ArgumentTypeError, "tensor 'a': not a tensor .*got float"),
        ({"a": np.float32(1)}, None, ArgumentTypeError, "tensor 'a': not a tensor .*got float32"),
        (
            {"a": torch.zeros(1, dtype=torch.complex128)},
            None,
            ArgumentTypeError,
            "tensor 'a': the format has no such dtype .got torch.complex128",
        ),
        (
            {"a": np.zeros(1, dtype=np.complex128)},
            None,
            ArgumentTypeError,
            "tensor 'a': the format has no such dtype .got complex128",
        ),
        ({"a": np.array(["x"])}, None, ArgumentTypeError, "tensor 'a': the format has no such dtype"),
        ({"a": np.array([None])}, None, ArgumentTypeError, "tensor 'a': the format has no such dtype .got object"),
        ({"a": torch.eye(2).to_sparse()}, None, ArgumentTypeError, "tensor 'a': only dense tensors"),
        ({"a": torch.zeros(2, device="meta")}, None, ArgumentTypeError, "tensor 'a': only dense tensors .*meta"),
        (
            {"a": RawTensor("F33", (1,), b"x")},
            None,
            ArgumentError,
            "tensor 'a': the format has no such dtype .got 'F33'",
        ),
        (
            {"a": RawTensor("F32", (2,), b"x")},
            None,
            ArgumentError,
            "the bytes are not dtype times shape .expected 8 bytes, got 1 bytes",
        ),
        (
            {"a": np.zeros(3, dtype=ml_dtypes.float4_e2m1fn)},
            None,
            ArgumentError,
            "3 elements of 4 bits do not fill whole bytes",
        ),
        ({}, {"k": 1}, ArgumentTypeError, "__metadata__ key 'k': metadata maps strings to strings .got int"),
        ({}, {1: "v"}, ArgumentTypeError, "metadata maps strings to strings"),
        ({}, {"k": "\ud800"}, ArgumentError, "half a surrogate pair"),
    ],
)
def test_what_cannot_be_written_is_refused_and_the_old_file_stays(
    tmp_path: Path, tensors: dict[str, object], metadata: dict[str, str] | None, kind: type[LabkitError], message: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(kind, match=message):
        save_safetensors(tensors, path, metadata=metadata)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TENSOR, TENSOR),
        (BASE[:10], BASE[9:]),
        (TENSOR, TENSOR.T),
        (MATRIX, MATRIX[1:]),
        (TENSOR, TENSOR.view(torch.int32)),
        (BASE.numpy(), BASE),
    ],
)
def test_shared_memory_is_refused_unless_it_is_asked_for(tmp_path: Path, first: object, second: object) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(
        ArgumentError, match=r"tensors 'one' and 'two' share memory; drop one, or pass shared='copy'|'two' and 'one'"
    ):
        save_safetensors({"one": first, "two": second}, path)
    save_safetensors({"one": first, "two": second}, path, shared="copy")
    assert len(load_safetensors(path)) == 2


def test_views_that_only_interleave_are_not_shared(tmp_path: Path) -> None:
    packed = torch.arange(24.0).reshape(4, 6)
    parts = {"q": packed[:, :2], "k": packed[:, 2:4], "v": packed[:, 4:], "rows": torch.arange(4.0)[:2]}
    save_safetensors(parts, tmp_path / "model.safetensors")
    assert load_safetensors(tmp_path / "model.safetensors")["k"].equal(packed[:, 2:4])


def test_too_long_a_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"the header would be over the cap .expected at most 100000000 bytes"):
        save_safetensors({}, tmp_path / "model.safetensors", metadata={"k": "x" * HEADER_CAP_NBYTES})


def test_a_new_file_gets_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    mask = os.umask(0o027)
    try:
        save_safetensors({"a": TENSOR}, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(mask)
    path.chmod(0o604)
    save_safetensors({"a": TENSOR}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_link_is_followed_and_its_target_written(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    blob = tmp_path / "blobs" / "0123"
    blob.write_bytes(b"old")
    link = tmp_path / "model.safetensors"
    link.symlink_to(blob)
    save_safetensors({"a": TENSOR}, link)
    assert link.is_symlink()
    assert load_safetensors(blob)["a"].equal(TENSOR)
    assert list((tmp_path / "blobs").iterdir()) == [blob]


def test_no_folder_and_a_folder_in_its_place_are_told(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such folder"):
        save_safetensors({}, tmp_path / "none" / "model.safetensors")
    with pytest.raises(FileAccessError, match="it is a folder"):
        save_safetensors({}, tmp_path)


def test_at_most_one_tensor_is_copied_at_a_time(tmp_path: Path) -> None:
    arrays = {f"a{i}": np.zeros((1000, 1000), dtype=np.float32).T for i in range(8)}  # 4 MB each, all to be reordered
    tracemalloc.start()
    try:
        save_safetensors(arrays, tmp_path / "model.safetensors")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 4_000_000 <= peak < 6_000_000


def test_a_file_saved_over_the_one_its_tensors_are_mapped_from(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors({"a": TENSOR, "b": BASE}, path)
    with open_safetensors(path) as file:
        save_safetensors({"a": file["b"], "b": file["a"]}, path)
        assert file["b"].equal(BASE)
    assert load_safetensors(path)["a"].equal(BASE)


def test_the_header_is_what_official_writers_write(tmp_path: Path) -> None:
    save_safetensors({"a": TENSOR}, tmp_path / "x", metadata={"format": "pt"})
    data = (tmp_path / "x").read_bytes()
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].rstrip(b" ").decode()
    assert text == json.dumps(json.loads(text), separators=(",", ":"))
