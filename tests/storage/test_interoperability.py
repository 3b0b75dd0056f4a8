"""Both ways with the official library for every dtype it can hold, and with shards that transformers writes and reads."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from labkit.storage import (
    DTYPES,
    RawTensor,
    load_safetensors,
    open_safetensors,
    open_snapshot,
    save_safetensors,
    save_snapshot,
)

TORCH_CODES = [code for code, dtype in DTYPES.items() if dtype.torch]
NUMPY_CODES = [code for code, dtype in DTYPES.items() if dtype.numpy and code != "C64"]


def sample(code: str, seed: int = 0) -> RawTensor:
    """A [3, 4, 2] tensor of random bits of the dtype."""
    octets = np.random.default_rng(seed).integers(
        0, 2 if code == "BOOL" else 256, 3 * DTYPES[code].bits, dtype=np.uint8
    )
    return RawTensor(code, (3, 4, 2), octets.tobytes())


@pytest.mark.parametrize("code", TORCH_CODES)
def test_ours_is_read_by_their_torch_reader(tmp_path: Path, code: str) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors({"x": sample(code), "y": sample(code, 1)}, path, metadata={"format": "pt"})
    theirs = safetensors.torch.load_file(path)
    with open_safetensors(path) as file:
        for name in ("x", "y"):
            assert theirs[name].dtype == file[name].dtype
            assert theirs[name].shape == file[name].shape
            assert octets_of(theirs[name]) == file.bytes(name)
    with safetensors.safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


@pytest.mark.parametrize("code", TORCH_CODES)
def test_theirs_is_read_by_ours(tmp_path: Path, code: str) -> None:
    path, theirs = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_safetensors({"x": sample(code)}, path)
    tensor = load_safetensors(path, mode="copy")["x"]
    safetensors.torch.save_file({"x": tensor}, theirs, metadata={"k": "v"})
    with open_safetensors(theirs) as file:
        assert file.metadata == {"k": "v"}
        assert file.bytes("x") == sample(code).data
        assert file.header.entries["x"].dtype == code
        assert file.header.entries["x"].shape == (3, 4, 2)


@pytest.mark.parametrize("code", NUMPY_CODES)
def test_numpy_both_ways(tmp_path: Path, code: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    save_safetensors({"x": sample(code)}, ours)
    array = safetensors.numpy.load_file(ours)["x"]
    assert array.tobytes() == sample(code).data
    safetensors.numpy.save_file({"x": np.ascontiguousarray(array)}, theirs)
    with open_safetensors(theirs) as file:
        assert file.bytes("x") == sample(code).data
        assert file.numpy("x").dtype == array.dtype


def test_bfloat16_of_numpy(tmp_path: Path) -> None:
    save_safetensors({"x": np.arange(4).astype(ml_dtypes.bfloat16)}, tmp_path / "x")
    assert safetensors.numpy.load_file(tmp_path / "x")["x"].astype(np.float32).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_their_low_level_reader_takes_every_dtype(tmp_path: Path, code: str) -> None:
    path = tmp_path / "x"
    save_safetensors({"x": sample(code)}, path)
    [(name, spec)] = safetensors.deserialize(path.read_bytes())
    assert (name, spec["dtype"], list(spec["shape"]), bytes(spec["data"])) == ("x", code, [3, 4, 2], sample(code).data)


def test_same_bytes_as_their_writer_where_it_is_deterministic(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(4), "a": torch.ones(3).bfloat16(), "c": torch.zeros(2, 2)}
    save_safetensors(tensors, tmp_path / "ours", metadata={"format": "pt"})
    safetensors.torch.save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_their_numpy_writer_spoils_what_ours_keeps(tmp_path: Path) -> None:
    """safetensors 0.8.0 writes an array in Fortran order by its memory, not by its values."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    safetensors.numpy.save_file({"x": np.asfortranarray(array)}, tmp_path / "theirs")
    save_safetensors({"x": np.asfortranarray(array)}, tmp_path / "ours")
    assert not np.array_equal(safetensors.numpy.load_file(tmp_path / "theirs")["x"], array)
    assert np.array_equal(safetensors.numpy.load_file(tmp_path / "ours")["x"], array)


def test_shards_both_ways_with_transformers(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    model.save_pretrained(theirs, max_shard_size="8KB")
    ours.mkdir()
    state = model.state_dict()
    with open_snapshot(theirs) as snapshot:
        assert len(snapshot.files) > 2
        assert all(snapshot[name].equal(state[name]) for name in snapshot)
        save_snapshot(dict(snapshot), ours, max_shard_nbytes=8_000)
    config.save_pretrained(ours)
    again = GPT2LMHeadModel.from_pretrained(ours).eval()
    assert all(again.state_dict()[name].equal(tensor) for name, tensor in state.items())


def octets_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
