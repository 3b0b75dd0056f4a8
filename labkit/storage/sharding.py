"""Tensors -> a snapshot folder: one file, or shards and an index, such that the folder is at any moment a whole snapshot.

In: a mapping from name to tensor and the most bytes a shard may have. Out: the files. Over an older snapshot the new shards
get names of their own; the switch is the rename of the index, and only then do the older shards go.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.atomic import replacing, sync_folder
from labkit.errors import ArgumentError, LabkitError, MissingFileError
from labkit.outside import path_of
from labkit.storage.index import INDEX_NAME, SINGLE_NAME
from labkit.storage.places import LocalFolder
from labkit.storage.shards import choose_index
from labkit.storage.writer import Planned, Shared, encode_header, lay_out, write_planned

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.storage.arrays import Array
    from labkit.storage.writer import RawTensor

MAX_SHARD_NBYTES = 5_000_000_000
"""Most bytes of tensors in one shard, unless given; as huggingface_hub's."""
_METADATA = {"format": "pt"}  # transformers refuses a file without


def save_snapshot(
    tensors: "Mapping[str, Tensor | Array | RawTensor]",
    folder: str | os.PathLike[str],
    *,
    max_shard_nbytes: int = MAX_SHARD_NBYTES,
    metadata: Mapping[str, str] | None = None,
    shared: Shared = "refuse",
) -> tuple[Path, ...]:
    """Write a snapshot that transformers loads: model.safetensors, or shards and an index; the paths written, index last.

    A tensor larger than ``max_shard_nbytes`` gets a shard of its own. ``metadata`` is ``{"format": "pt"}`` unless given.

    >>> import tempfile, torch; folder = Path(tempfile.mkdtemp())
    >>> paths = save_snapshot({"a": torch.zeros(4), "b": torch.ones(4)}, folder, max_shard_nbytes=16)
    >>> [path.name for path in paths]
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors', 'model.safetensors.index.json']

    Raises as ``save_safetensors``, and ``ArgumentError`` where the folder holds a snapshot of the other kind.
    """
    place = path_of(folder, "folder")
    if not place.is_dir():
        raise MissingFileError("no such folder", where=place, fix="make it first")
    plan, _ = lay_out(tensors, metadata=metadata or _METADATA, shared=shared, where=str(place))
    groups = list(_grouped(plan, max_shard_nbytes))
    if len(groups) <= 1:
        _refuse_other(place, INDEX_NAME)
        return (_write(place / SINGLE_NAME, plan, metadata or _METADATA),)
    _refuse_other(place, SINGLE_NAME)
    former = _former_shards(place)
    names = _free_names(place, len(groups))
    written: list[Path] = []
    try:
        for name, group in zip(names, groups, strict=True):
            written.append(_write(place / name, group, metadata or _METADATA))
        index = _index_text(names, groups)
        with replacing(place / INDEX_NAME) as file:
            file.write(index)
    except BaseException:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise
    for shard in former:
        with suppress(OSError):
            (place / shard).unlink()
    sync_folder(place)
    return (*written, place / INDEX_NAME)


def _grouped(plan: list[Planned], max_nbytes: int) -> Iterator[list[Planned]]:
    """The tensors in groups of at most ``max_nbytes`` bytes, each group's places counted from its own start."""
    group: list[Planned] = []
    position = 0
    for item in plan:
        nbytes = item.end - item.begin
        if group and position + nbytes > max_nbytes:
            yield group
            group, position = [], 0
        group.append(Planned(item.name, item.dtype, item.shape, position, position + nbytes, item.value))
        position += nbytes
    if group:
        yield group


def _write(path: Path, group: list[Planned], metadata: Mapping[str, str]) -> Path:
    header = encode_header(group, metadata, where=str(path))
    with replacing(path) as file:
        write_planned(file, group, header)
    return path


def _index_text(names: list[str], groups: list[list[Planned]]) -> bytes:
    total = sum(group[-1].end for group in groups)
    weight_map = {item.name: name for name, group in zip(names, groups, strict=True) for item in group}
    fields = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()


def _free_names(folder: Path, count: int) -> list[str]:
    """Shard names that no file in the folder has yet: model-00001-of-00002, or model-r2-00001-of-00002, and so on."""
    for attempt in range(1, 1000):
        stem = "model" if attempt == 1 else f"model-r{attempt}"
        names = [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        if not any(os.path.lexists(folder / name) for name in names):
            return names
    raise ArgumentError("the folder holds a thousand older saves", where=folder, fix="clear it")


def _former_shards(folder: Path) -> list[str]:
    """The shards of the snapshot that is to be replaced; none where there is none, or its index cannot be read."""
    try:
        index = choose_index(LocalFolder(folder))
    except LabkitError:
        return []
    return index.shards if index is not None else []


def _refuse_other(folder: Path, name: str) -> None:
    if os.path.lexists(folder / name):
        raise ArgumentError(
            f"the folder already holds {name}, which other loaders would take for the checkpoint",
            where=folder,
            fix="remove it, or save to an empty folder",
        )
