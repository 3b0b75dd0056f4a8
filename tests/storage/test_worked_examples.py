"""The worked examples of the documents: a 160-byte file, byte for byte, and the released GPT-2 file's layout."""

import json
from pathlib import Path

import pytest
import torch

from labkit.storage import open_safetensors, read_header, save_safetensors

TENSORS = {"a": torch.arange(3), "b": torch.ones(2, 2)}
TEXT = (
    b'{"a":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[24,40]}}'
)


def test_the_160_byte_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors(TENSORS, path)
    data = path.read_bytes()
    assert len(data) == 160
    assert data[:8] == (112).to_bytes(8, "little")
    assert data[8:120].rstrip() == TEXT
    assert data[120:144] == b"".join(i.to_bytes(8, "little") for i in range(3))
    assert data[144:160] == b"\x00\x00\x80\x3f" * 4


@pytest.mark.parametrize("mode", ["mapped", "copy"])
def test_the_160_byte_file_is_read_back(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(TEXT).to_bytes(8, "little") + TEXT + bytes(24) + b"\x00\x00\x80\x3f" * 4)
    with open_safetensors(path, mode=mode) as file:
        assert list(file) == ["a", "b"]
        assert file["b"].equal(TENSORS["b"])
        assert file["b"].dtype == torch.float32
        assert file.header.span("b") == (8 + len(TEXT) + 24, 8 + len(TEXT) + 40)


def test_a_file_with_the_released_layout_maps_without_a_copy(tmp_path: Path) -> None:
    """A header of 14,283 bytes puts the data at byte 14,291, three more than a multiple of four."""
    path = tmp_path / "model.safetensors"
    fields = {"__metadata__": {"format": "pt"}} | {
        f"h.{i}.attn.c_proj.bias": {"dtype": "F32", "shape": [4], "data_offsets": [16 * i, 16 * i + 16]}
        for i in range(160)
    }
    text = json.dumps(fields, separators=(",", ":")).encode().ljust(14_283)
    values = torch.arange(640, dtype=torch.float32)
    path.write_bytes((14_283).to_bytes(8, "little") + text + values.numpy().tobytes())
    header = read_header(path)
    assert (header.header_nbytes, header.data_start, len(header.entries)) == (14_283, 14_291, 160)
    with open_safetensors(path) as file:
        first, second = file["h.0.attn.c_proj.bias"], file["h.1.attn.c_proj.bias"]
        assert first.data_ptr() % 4 == 3
        assert second.data_ptr() - first.data_ptr() == 16
        assert second.tolist() == [4.0, 5.0, 6.0, 7.0]
        assert float((second @ second).item()) == 16 + 25 + 36 + 49
