"""Snapshots: one file or an index and shards, every way in which they can disagree, links, and sharded writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.errors import ArgumentError, FormatError, LabkitError, MissingFileError, UnknownNameError
from labkit.storage import RawTensor, load_safetensors, open_snapshot, save_safetensors, save_snapshot
from labkit.storage.checking import check_path
from labkit.storage.index import INDEX_NAME, parse_index
from labkit.storage.shards import read_snapshot_headers

TENSORS = {"a": torch.arange(6.0), "b": torch.ones(2, 2), "c": torch.arange(3), "d": torch.zeros(1, 8)}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound snapshot of two shards: a and c, then b and d."""
    place = tmp_path / "snapshot"
    place.mkdir()
    save_safetensors({"a": TENSORS["a"], "c": TENSORS["c"]}, place / ONE, metadata={"format": "pt"})
    save_safetensors({"b": TENSORS["b"], "d": TENSORS["d"]}, place / TWO, metadata={"format": "pt"})
    write_index(place, {"a": ONE, "b": TWO, "c": ONE, "d": TWO}, {"total_size": 96})
    return place


def write_index(place: Path, weight_map: Any, metadata: Any = None) -> None:
    fields = {"weight_map": weight_map} | ({} if metadata is None else {"metadata": metadata})
    (place / INDEX_NAME).write_text(json.dumps(fields))


def edit_index(place: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    fields = json.loads((place / INDEX_NAME).read_text())
    edit(fields)
    (place / INDEX_NAME).write_text(json.dumps(fields))


@pytest.mark.parametrize("mode", ["mapped", "copy"])
def test_a_sound_snapshot(folder: Path, mode: str) -> None:
    with open_snapshot(folder, mode=mode) as snapshot:
        assert sorted(snapshot) == ["a", "b", "c", "d"]
        assert all(snapshot[name].equal(TENSORS[name]) for name in snapshot)
        path, entry = snapshot.entries["d"]
        assert path == folder / TWO
        assert (entry.dtype, entry.shape) == ("F32", (1, 8))
        assert list(snapshot.headers) == [folder / ONE, folder / TWO]
        assert snapshot.nbytes == 96
        assert snapshot.notes == ()
        assert "a" in snapshot
        assert "e" not in snapshot
        assert "4 tensors in 2 files" in repr(snapshot)
        with pytest.raises(UnknownNameError, match=r"no tensor named 'bb'"):
            snapshot["bb"]
    assert check_path(folder).return_code == 0


def drop(name: str) -> Callable[[Path], None]:
    return lambda place: edit_index(place, lambda fields: fields["weight_map"].pop(name))


def put(name: str, shard: Any) -> Callable[[Path], None]:
    return lambda place: edit_index(place, lambda fields: fields["weight_map"].update({name: shard}))


def total(value: Any) -> Callable[[Path], None]:
    return lambda place: edit_index(place, lambda fields: fields["metadata"].update(total_size=value))


def text(content: bytes) -> Callable[[Path], None]:
    return lambda place: (place / INDEX_NAME).write_bytes(content) and None  # type: ignore[func-returns-value]


def single(place: Path) -> None:
    save_safetensors(TENSORS, place / "model.safetensors")


def same_tensor_twice(place: Path) -> None:
    save_safetensors({"a": TENSORS["a"], "c": TENSORS["c"], "b": TENSORS["b"]}, place / ONE)


def tensorflow(place: Path) -> None:
    save_safetensors({"a": TENSORS["a"], "c": TENSORS["c"]}, place / ONE, metadata={"format": "tf"})


def dangling(place: Path) -> None:
    (place / TWO).unlink()
    (place / TWO).symlink_to("gone")


def truncated(place: Path) -> None:
    (place / TWO).write_bytes((place / TWO).read_bytes()[:-1])


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "missing shard": (lambda p: (p / TWO).unlink(), "shard-missing", f"{TWO}: .*2 of 4 tensors would be lost"),
    "shard a dangling link": (
        dangling,
        "shard-missing",
        "2 of 4 tensors",
    ),
    "shard and its entries missing": (
        lambda p: write_index(p, {"a": ONE, "c": ONE}),
        "shard-missing",
        r"expected 2 shards model-\*-of-00002, got 1: \[1\]",
    ),
    "truncated shard": (truncated, "data-short", f"{TWO}, tensor 'd'.*expected 48 bytes.*got 47 bytes"),
    "tensor the index omits": (drop("d"), "shard-unlisted-tensor", f"{TWO}, tensor 'd': the index does not list it"),
    "tensor no shard holds": (put("ghost", ONE), "shard-absent-tensor", "tensor 'ghost': .*no shard holds it"),
    "tensor in the other shard": (
        put("d", ONE),
        "shard-absent-tensor",
        f"tensor 'd': the shard {ONE} does not hold it .got it is in {TWO}",
    ),
    "tensor in two shards": (same_tensor_twice, "shard-duplicate", f"tensor 'b': .*{ONE} and {TWO}"),
    "total_size off by one": (total(97), "index-total-size", "expected 96 bytes in 2 shards, got 97 bytes"),
    "total_size a string": (total("96"), "index-total-size", "got '96'"),
    "total_size negative": (total(-1), "index-total-size", "got -1"),
    "total_size a list": (total([]), "index-total-size", r"got \[\]"),
    "total_size a fraction": (total(96.5), "index-total-size", "got 96.5"),
    "metadata a list": (
        lambda p: edit_index(p, lambda f: f.update(metadata=[])),
        "index-total-size",
        "metadata is not an object",
    ),
    "parent path": (put("a", f"../x/{ONE}"), "shard-path", "tensor 'a': .*inside the folder, got '../x/"),
    "parent inside": (put("a", f"sub/../../{ONE}"), "shard-path", "outside the snapshot folder"),
    "absolute path": (put("a", f"/tmp/{ONE}"), "shard-path", "got '/tmp/"),
    "windows path": (put("a", f"C:\\{ONE}"), "shard-path", "outside the snapshot folder"),
    "backslashes": (put("a", f"..\\{ONE}"), "shard-path", "outside the snapshot folder"),
    "nul in a path": (put("a", "a\0b"), "shard-path", "outside the snapshot folder"),
    "shard a number": (put("a", 1), "index-weight-map", "tensor 'a': the shard is not a file name"),
    "shard empty": (put("a", ""), "index-weight-map", "tensor 'a': the shard is not a file name"),
    "no weight_map": (text(b"{}"), "index-weight-map", "got nothing"),
    "empty weight_map": (text(b'{"weight_map":{}}'), "index-weight-map", "got an empty map"),
    "weight_map a list": (text(b'{"weight_map":[1]}'), "index-weight-map", "got list"),
    "index a list": (text(b"[]"), "index-json", "not an object .got list"),
    "index with BOM": (text(b"\xef\xbb\xbf{}"), "index-json", "not JSON: .*BOM"),
    "index not UTF-8": (text(b'{"\xff":1}'), "index-json", "not UTF-8 .got byte 2"),
    "index not JSON": (text(b'{"a":'), "index-json", "not JSON"),
    "index with a long number": (
        text(b'{"metadata":{"total_size":' + b"9" * 5000 + b"}}"),
        "index-json",
        "5000 characters",
    ),
    "index nests": (text(b"[" * 100_000), "index-json", "nests too deep"),
    "key twice": (text(b'{"weight_map":{"a":"x","a":"y"}}'), "index-duplicate", "'a' stands twice .got 'x' and 'y'"),
    "key twice outside": (
        text(b'{"weight_map":{"a":"x"},"weight_map":{}}'),
        "index-duplicate",
        "'weight_map' stands twice",
    ),
    "stale single file": (single, "index-and-single", "transformers would load the single file"),
    "another framework": (tensorflow, "shard-framework", "expected format pt, got format tf"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_snapshot_is_refused(folder: Path, name: str) -> None:
    breaks, code, message = BROKEN[name]
    breaks(folder)
    for read in (open_snapshot, read_snapshot_headers):
        with pytest.raises(FormatError, match=message) as caught:
            read(folder)
        assert caught.value.code == code
        assert str(folder) in str(caught.value)
    assert code in [defect.code for defect in check_path(folder).defects]


def test_check_goes_on_after_the_first_defect(folder: Path) -> None:
    edit_index(folder, lambda fields: fields["weight_map"].pop("d"))
    edit_index(folder, lambda fields: fields["weight_map"].update(ghost=ONE))
    edit_index(folder, lambda fields: fields["metadata"].update(total_size=1))
    codes = [defect.code for defect in check_path(folder).defects]
    assert codes == ["shard-unlisted-tensor", "shard-absent-tensor", "index-total-size"]


@pytest.mark.parametrize(
    ("change", "notes"),
    [
        (lambda p: edit_index(p, lambda fields: fields.pop("metadata")), 0),
        (lambda p: edit_index(p, lambda fields: fields.update(metadata={})), 0),
        (total(96.0), 1),
    ],
)
def test_what_is_allowed(folder: Path, change: Callable[[Path], None], notes: int) -> None:
    change(folder)
    with open_snapshot(folder) as snapshot:
        assert len(snapshot) == 4
        assert len(snapshot.notes) == notes


def test_shards_in_a_subfolder(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / TWO).rename(folder / "sub" / TWO)
    write_index(folder, {"a": ONE, "b": f"sub/{TWO}", "c": ONE, "d": f"sub/{TWO}"})
    with open_snapshot(folder) as snapshot:
        assert snapshot["d"].equal(TENSORS["d"])


def test_links_of_the_hub_cache(folder: Path, tmp_path: Path) -> None:
    """snapshots/REVISION/NAME leads to ../../blobs/HASH."""
    blobs, revision = tmp_path / "repo" / "blobs", tmp_path / "repo" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    revision.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / f"hash{number}")
        (revision / path.name).symlink_to(f"../../blobs/hash{number}")
    with open_snapshot(revision) as snapshot:
        assert all(snapshot[name].equal(TENSORS[name]) for name in TENSORS)


def test_prefer_settles_which_of_two_is_read(folder: Path) -> None:
    save_safetensors({"z": TENSORS["a"]}, folder / "model.safetensors")
    assert list(open_snapshot(folder, prefer="single")) == ["z"]
    assert len(open_snapshot(folder, prefer="index")) == 4


def test_a_single_file_and_a_file_given_by_itself(tmp_path: Path) -> None:
    save_safetensors(TENSORS, tmp_path / "model.safetensors")
    assert len(open_snapshot(tmp_path)) == 4
    assert len(open_snapshot(tmp_path / "model.safetensors")) == 4
    assert check_path(tmp_path).return_code == 0
    save_safetensors(TENSORS, tmp_path / "model.safetensors", metadata={"format": "tf"})
    with pytest.raises(FormatError, match="another framework"):
        open_snapshot(tmp_path)
    assert check_path(tmp_path).return_code == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no checkpoint here .expected model.safetensors or"),
        (lambda p: (p / "pytorch_model.bin").write_bytes(b"x"), "pytorch_model.bin is a pickle"),
        (lambda p: save_safetensors({}, p / "other.safetensors"), "give one of its files instead: other.safetensors"),
    ],
)
def test_a_folder_without_a_checkpoint(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path)
    with pytest.raises(MissingFileError, match=message):
        open_snapshot(tmp_path)
    with pytest.raises(MissingFileError, match="no such folder"):
        open_snapshot(tmp_path / "none")


def test_an_index_over_the_cap_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.storage.shards.INDEX_CAP_NBYTES", 10)
    with pytest.raises(FormatError, match=r"the index is over the cap .expected at most 10 bytes"):
        open_snapshot(folder)


def test_index_names_survive_a_round_trip() -> None:
    index = parse_index(json.dumps({"weight_map": {"é": "x.safetensors"}}).encode(), "index")
    assert index.weight_map == {"é": "x.safetensors"}


@pytest.mark.parametrize(("limit", "shards"), [(1, 4), (24, 4), (47, 3), (80, 2), (96, 1), (10**9, 1)])
def test_sharded_write(tmp_path: Path, limit: int, shards: int) -> None:
    written = save_snapshot(TENSORS, tmp_path, max_shard_nbytes=limit)
    assert len(written) == (shards + 1 if shards > 1 else 1)
    with open_snapshot(tmp_path) as snapshot:
        assert len(snapshot.files) == shards
        assert all(snapshot[name].equal(TENSORS[name]) for name in TENSORS)
        assert all(header.metadata == {"format": "pt"} for header in snapshot.headers.values())
        assert all(header.data_nbytes <= limit or len(header.entries) == 1 for header in snapshot.headers.values())


def test_sharded_write_over_an_older_one(tmp_path: Path) -> None:
    save_snapshot(TENSORS, tmp_path, max_shard_nbytes=48)
    changed = {name: tensor + 1 for name, tensor in TENSORS.items()}
    with open_snapshot(tmp_path) as old:
        save_snapshot(changed, tmp_path, max_shard_nbytes=80)
        assert old["a"].equal(TENSORS["a"]), "who reads the old snapshot keeps it"
    with open_snapshot(tmp_path) as snapshot:
        assert all(snapshot[name].equal(changed[name]) for name in TENSORS)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"model-r2-{number}-of-00002.safetensors" for number in ("00001", "00002")] + [INDEX_NAME]
    save_snapshot(TENSORS, tmp_path, max_shard_nbytes=80)
    with open_snapshot(tmp_path) as snapshot:
        assert snapshot["a"].equal(TENSORS["a"])
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("stop_at", range(3))
def test_a_sharded_write_that_fails_leaves_the_old_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    """Two shards of the same names as before, then the index: whatever fails, the old tensors are all there."""
    from labkit.storage import sharding

    save_snapshot(TENSORS, tmp_path, max_shard_nbytes=48)
    before = sorted(path.name for path in tmp_path.iterdir())
    calls = 0
    replacing = sharding.replacing

    def failing(path: Path) -> Any:
        nonlocal calls
        if calls == stop_at:
            raise OSError(28, "No space left on device")
        calls += 1
        return replacing(path)

    monkeypatch.setattr(sharding, "replacing", failing)
    with pytest.raises(OSError, match="No space left"):
        save_snapshot({name: tensor + 1 for name, tensor in TENSORS.items()}, tmp_path, max_shard_nbytes=48)
    with open_snapshot(tmp_path) as snapshot:
        assert all(snapshot[name].equal(TENSORS[name]) for name in TENSORS)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_with_the_other_kind_of_snapshot_is_refused(tmp_path: Path) -> None:
    save_snapshot(TENSORS, tmp_path)
    with pytest.raises(ArgumentError, match=r"already holds model\.safetensors, which other loaders"):
        save_snapshot(TENSORS, tmp_path, max_shard_nbytes=48)
    (tmp_path / "model.safetensors").unlink()
    save_snapshot(TENSORS, tmp_path, max_shard_nbytes=48)
    with pytest.raises(ArgumentError, match=r"already holds model.safetensors.index.json"):
        save_snapshot(TENSORS, tmp_path)
    with pytest.raises(MissingFileError, match="no such folder"):
        save_snapshot(TENSORS, tmp_path / "none")


def test_every_error_is_ours() -> None:
    assert issubclass(FormatError, LabkitError)
    with pytest.raises(ArgumentError, match="format's own"):
        save_snapshot({"__metadata__": RawTensor("U8", (1,), b"x")}, Path(__file__).parent)


def test_loading_one_shard_by_itself(folder: Path) -> None:
    assert sorted(load_safetensors(folder / TWO)) == ["b", "d"]
