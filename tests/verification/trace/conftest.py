"""A small random checkpoint and traces of it, made once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.verification.trace import TraceMetadata, write_trace
from labkit.verification.trace_record import Recorded, record_trace
from tests.oracles import random_checkpoint

IDS = [[5, 17, 3, 96, 42, 7], [11, 2, 8, 60, 33, 21]]


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 of three blocks, every parameter drawn anew; 5 heads, so that no axis has the size of another."""
    folder = tmp_path_factory.mktemp("checkpoint")
    random_checkpoint.write(folder, seed=3, n_head=5, n_embd=20)
    return folder


@pytest.fixture(scope="package")
def clean(checkpoint: Path) -> Recorded:
    """A full trace of two rows with two decode steps, from labkit."""
    return record_trace(checkpoint, engine="labkit", ids=IDS, steps=2)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write tensors and metadata as a trace; its path."""

    def write(tensors: dict[str, Tensor], metadata: TraceMetadata, name: str = "trace.safetensors") -> Path:
        write_trace(tmp_path / name, tensors, metadata)
        return tmp_path / name

    return write


@pytest.fixture
def record(checkpoint: Path, save: Callable[..., Path]) -> Callable[..., Path]:
    """Record the checkpoint with ``record_trace``'s options and write the trace; its path."""

    def run(name: str = "trace.safetensors", **options: object) -> Path:
        recorded = record_trace(checkpoint, **{"engine": "labkit", "ids": IDS, **options})
        return save(recorded.tensors, recorded.metadata, name)

    return run


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """Nothing here may depend on the global generator."""
    torch.manual_seed(0)
