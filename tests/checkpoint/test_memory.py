"""Memory: a mapped model has none of its own until it is touched; an owned one never stands there twice."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit.config import GPT2Config, parameter_shapes
from labkit.load import load_gpt2
from labkit.storage import save_safetensors
from tests.checkpoint.test_inventory import write_empty

CONFIG = GPT2Config(n_layer=6, n_head=8, n_embd=512, vocab_size=20_000, n_positions=128)
LINUX = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc to measure memory")

_CHILD = """
import re, sys, torch
from pathlib import Path
from labkit.load import load_gpt2

def kilobytes(file, field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/" + file).read_text())[1])

def private():
    return kilobytes("smaps_rollup", "Private_Dirty")

load_gpt2(sys.argv[2], mode=sys.argv[3])  # a small one first: code and buffers of the loader itself
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = private(), kilobytes("status", "RssAnon")
model = load_gpt2(sys.argv[1], mode=sys.argv[3])
print(private() - before[0], kilobytes("status", "VmHWM") - kilobytes("status", "RssFile") - before[1])
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("sizes")
    large = write_empty(root / "large", CONFIG)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in parameter_shapes(CONFIG).items()}
    save_safetensors(tensors, large / "model.safetensors")
    return large, write_empty(root / "small", GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=8, n_positions=8))


def measure(folders: tuple[Path, Path], mode: str) -> tuple[int, int]:
    """Private bytes after loading, and anonymous bytes at the peak, in a process of its own."""
    command = [sys.executable, "-c", _CHILD, *map(str, folders), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    private, peak = done.stdout.split()
    return 1024 * int(private), 1024 * int(peak)


@LINUX
def test_a_mapped_model_has_no_memory_of_its_own(folders: tuple[Path, Path]) -> None:
    private, _ = measure(folders, "mapped")
    assert private < 10_000_000


@LINUX
def test_an_owned_model_never_stands_in_memory_twice(folders: tuple[Path, Path]) -> None:
    sizes = [4 * torch.Size(shape).numel() for shape in parameter_shapes(CONFIG).values()]
    private, peak = measure(folders, "owned")
    assert private > 0.95 * sum(sizes)
    assert peak <= 1.05 * sum(sizes) + max(sizes)


def test_mapped_parameters_are_views_and_writing_to_one_leaves_the_file(folders: tuple[Path, Path]) -> None:
    path = folders[0] / "model.safetensors"
    before = path.read_bytes()
    model = load_gpt2(folders[0])
    addresses = sorted(each.data_ptr() for each in model.parameters_by_name.values())
    assert addresses[-1] - addresses[0] < path.stat().st_size
    model.parameters_by_name["ln_f.bias"].zero_()
    assert path.read_bytes() == before
    owned = load_gpt2(folders[0], mode="owned")
    path.write_bytes(b"\0" * len(before))
    assert owned.parameters_by_name["wte.weight"].any()
