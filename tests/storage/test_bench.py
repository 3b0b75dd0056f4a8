"""The bench's files are what they are said to be, and its answer has a line for each limit."""

from pathlib import Path

import pytest

from labkit.bench.load import Measure
from labkit.bench.storage import StorageBench, gpt2_shapes, write_gpt2_layout, write_header_file
from labkit.storage import open_safetensors, read_header


@pytest.mark.slow
def test_the_large_file_has_the_released_layout(tmp_path: Path) -> None:
    path = tmp_path / "gpt2.safetensors"
    write_gpt2_layout(path)
    header = read_header(path)
    assert (header.file_nbytes, header.header_nbytes, header.data_start) == (548_105_171, 14_283, 14_291)
    with open_safetensors(path) as file:
        assert all(file[name].data_ptr() % 4 == 3 for name in file), "no tensor is aligned, none was copied"


def test_gpt2_small_has_its_parameters() -> None:
    count = 0
    for name, shape in gpt2_shapes().items():
        numel = 1
        for size in shape:
            numel *= size
        count += 0 if name.endswith(".attn.bias") else numel
    assert count == 124_439_808


def test_header_files(tmp_path: Path) -> None:
    write_header_file(tmp_path / "x", 148)
    assert len(read_header(tmp_path / "x").entries) == 148


def test_over_a_limit_is_told() -> None:
    slow = Measure(name="slow", seconds=2.0, peer_seconds=1.0, limit=1.5)
    fine = Measure(name="fine", seconds=1.0, peer_seconds=1.0, limit=1.5)
    bench = StorageBench(repeats=1, version="0", file_nbytes=1, measures=(fine, slow))
    assert bench.return_code == 1
    assert "over" in str(bench).splitlines()[2]
    assert StorageBench(repeats=1, version="0", file_nbytes=1, measures=(fine,)).return_code == 0
