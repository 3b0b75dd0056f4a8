"""Fetching from a hub on loopback: only what is needed, continued where it stopped, every hash checked."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from labkit.errors import ArgumentError, CheckpointError, FileAccessError, MissingFileError
from labkit.hub import fetch as fetch_module
from labkit.hub.fetch import choose_files, fetch
from labkit.load import load_gpt2
from tests.hub.loopback import COMMIT, Hub, serving
from tests.oracles import random_checkpoint


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("published")
    random_checkpoint.write(folder)
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    content |= {"vocab.json": b'{"a": 0}', "merges.txt": b"#version: 0.2\n", "tokenizer.json": b"{}"}
    unwanted = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "onnx/decoder_model.onnx", "README.md")
    return content | dict.fromkeys(unwanted, b"\x80not wanted")


@pytest.fixture
def hub(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what is kept of a transfer that is cut
    with serving(Hub(dict(files))) as served:
        yield served


def bring(hub: Hub, tmp_path: Path, **options: str | None) -> fetch_module.Fetched:
    return fetch(hub.repository, folder=tmp_path / "model", endpoint=hub.address, cache=tmp_path / "cache", **options)


def test_only_what_is_needed_is_fetched_and_it_loads(hub: Hub, tmp_path: Path) -> None:
    fetched = bring(hub, tmp_path)
    wanted = {
        "config.json",
        "model.safetensors",
        "vocab.json",
        "merges.txt",
        "tokenizer.json",
        "generation_config.json",
    }
    assert {path.name for path in (tmp_path / "model").iterdir()} == wanted == set(hub.sent)
    assert fetched.commit == COMMIT
    assert {each.state for each in fetched.files} == {"downloaded"}
    assert load_gpt2(tmp_path / "model").config.n_layer == 3
    assert not any("pytorch" in request or "README" in request for request in hub.requests)


def test_a_second_run_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    bring(hub, tmp_path)
    hub.sent.clear()
    fetched = bring(hub, tmp_path)
    assert not hub.sent
    assert {each.state for each in fetched.files} == {"present"}


def test_a_cut_connection_is_continued_at_once(hub: Hub, tmp_path: Path) -> None:
    size = len(hub.files["model.safetensors"])
    hub.cut_at["model.safetensors"] = [3000, 50_000]
    bring(hub, tmp_path)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert hub.sent["model.safetensors"] == size


def test_a_run_that_was_broken_off_is_continued_by_the_next(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(hub.files["model.safetensors"])
    hub.cut_at["model.safetensors"] = [40_000]
    monkeypatch.setattr(
        "time.sleep", lambda _seconds: (_ for _ in ()).throw(KeyboardInterrupt)
    )  # while it waits to retry
    with pytest.raises(KeyboardInterrupt):
        bring(hub, tmp_path)
    monkeypatch.undo()
    partial = next((tmp_path / "model").glob(".model.safetensors.*.incomplete"))
    assert partial.stat().st_size == 40_000
    bring(hub, tmp_path)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert hub.sent["model.safetensors"] == size
    assert not partial.exists()


def test_a_connection_that_is_cut_for_good_says_how_far_it_came(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cut_at["model.safetensors"] = [2000] * 20  # after the first, nothing new comes
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with pytest.raises(
        FileAccessError, match=r"the download was cut off \(expected 102,\d+ bytes, got 2,000 bytes .*again"
    ):
        bring(hub, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "merges.txt"])
def test_wrong_bytes_are_kept_aside_and_both_hashes_told(name: str, hub: Hub, tmp_path: Path) -> None:
    hub.wrong.add(name)
    with pytest.raises(
        CheckpointError, match=r"not the one that was published \(expected .*[0-9a-f]{40}, got [0-9a-f]{40}"
    ):
        bring(hub, tmp_path)
    assert not (tmp_path / "model" / name).exists()
    assert (tmp_path / "model" / f"{name}.bad").exists()
    hub.wrong.clear()
    assert {each.name for each in bring(hub, tmp_path).files if each.state == "downloaded"} >= {name}


def test_a_file_damaged_later_is_noticed(hub: Hub, tmp_path: Path) -> None:
    bring(hub, tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not the one that was published"):
        bring(hub, tmp_path)
    assert bring(hub, tmp_path).files[1].state == "downloaded"


def test_a_released_file_with_another_hash_is_refused(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Hub(dict(files), repository="openai-community/gpt2")) as hub:
        expected = (
            r"expected SHA-256 248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707, got [0-9a-f]{64}\)"
        )
        with pytest.raises(CheckpointError, match=expected):
            bring(hub, tmp_path)


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (404, MissingFileError, "no such repository, revision or file"),
        (401, FileAccessError, r"the hub refuses \(401\); it is private, gated or mistyped"),
        (403, FileAccessError, r"the hub refuses \(403\)"),
        (500, FileAccessError, r"the hub answers with an error \(500\)"),
    ],
)
def test_a_hub_that_says_no(
    status: int, error: type[Exception], said: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    hub.status = status
    with pytest.raises(error, match=said):
        bring(hub, tmp_path)
    assert not (tmp_path / "model").exists()


def test_names_and_revisions_that_are_not_there(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(
        MissingFileError, match="someone/tiny-gpt2, revision v9: the hub has no such repository, revision"
    ):
        bring(hub, tmp_path, revision="v9")
    with pytest.raises(ArgumentError, match="a/b/c: not the name of a repository"):
        fetch("a/b/c", folder=tmp_path, endpoint=hub.address)


def test_a_repository_of_pickles_alone_is_refused() -> None:
    with pytest.raises(
        MissingFileError, match=r"no safetensors weights \(expected model\.safetensors, got pytorch_model\.bin"
    ):
        choose_files(["config.json", "pytorch_model.bin"], where="a/b")
    with pytest.raises(MissingFileError, match="no safetensors weights"):
        choose_files(["config.json", "model-/../../evil.safetensors", "../model.safetensors"], where="a/b")
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert choose_files([*shards, "config.json", "rust_model.ot"], where="a/b") == [
        "config.json",
        shards[2],
        *shards[:2],
    ]


def fill_cache(hub: Hub, cache: Path) -> Path:
    """What huggingface_hub's own download leaves in its cache."""
    snapshot = cache / f"models--{hub.repository.replace('/', '--')}" / "snapshots" / COMMIT
    blobs, refs = snapshot.parent.parent / "blobs", snapshot.parent.parent / "refs"
    for folder in (snapshot, blobs, refs):
        folder.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    for name, content in hub.files.items():
        if "/" not in name:
            (blobs / hub.etag(name)).write_bytes(content)
            (snapshot / name).symlink_to(os.path.relpath(blobs / hub.etag(name), snapshot))
    return snapshot


def test_the_hubs_own_cache_is_used_without_copying(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = fill_cache(hub, tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    fetched = fetch(hub.repository, endpoint=hub.address, cache=tmp_path / "cache")
    assert fetched.folder == snapshot
    assert not hub.sent
    assert {each.state for each in fetched.files} == {"hub cache"}
    linked = bring(hub, tmp_path)
    assert all(path.is_symlink() for path in (tmp_path / "model").iterdir())
    assert not hub.sent
    assert load_gpt2(linked.folder).config.n_layer == 3


def test_a_damaged_cache_is_kept_aside(hub: Hub, tmp_path: Path) -> None:
    snapshot = fill_cache(hub, tmp_path / "cache")
    blob = (snapshot / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="not the one that was published"):
        fetch(hub.repository, endpoint=hub.address, cache=tmp_path / "cache")
    assert blob.with_name(f"{blob.name}.bad").exists()


def test_offline_says_what_is_missing_and_where_to_put_it(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(
        MissingFileError, match=r"cannot be reached .*config\.json, .* missing\); get them on a machine that is online"
    ):
        fetch(hub.repository, folder=tmp_path / "model", endpoint="http://127.0.0.1:9", cache=tmp_path / "cache")
    bring(hub, tmp_path)
    offline = fetch(hub.repository, folder=tmp_path / "model", endpoint="http://127.0.0.1:9", cache=tmp_path / "cache")
    assert offline.commit is None
    assert "there was no hash to check against" in str(offline)
    snapshot = fill_cache(hub, tmp_path / "cache")
    cached = fetch(hub.repository, folder=tmp_path / "none", endpoint="http://127.0.0.1:9", cache=tmp_path / "cache")
    assert cached.folder == snapshot


def test_the_command_asks_the_hub_that_the_environment_names(hub: Hub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", "from labkit.cli import main; main()", "fetch", hub.repository, "--json", "-"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["folder"] == "models/tiny-gpt2"
    assert (tmp_path / "models" / "tiny-gpt2" / "model.safetensors").stat().st_size == told["files"][1]["nbytes"]
    hub.status = 404
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such repository" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
