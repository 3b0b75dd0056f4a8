"""A snapshot folder -> the files that make it up, and their headers, without torch.

In: a folder, here or at an address. Out: its index, or None where one file is the whole checkpoint; or the checked headers
of every file.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal, TypeVar

from labkit.errors import FormatError, MissingFileError
from labkit.storage.header import Header, read_header
from labkit.storage.index import INDEX_NAME, SINGLE_NAME, Index, check_framework, check_shards, parse_index
from labkit.storage.places import Folder, open_folder
from labkit.words import counted

INDEX_CAP_NBYTES = 100_000_000
"""Longest index that is read, in bytes; as for a header."""
PARALLEL_SHARDS = 8
"""Shards whose headers are read at the same time."""
Prefer = Literal["index", "single"]
_Opened = TypeVar("_Opened")


def read_snapshot_headers(
    path: str | os.PathLike[str], *, prefer: Prefer | None = None
) -> tuple[list[Header], tuple[str, ...]]:
    """The headers of every file of a snapshot, checked against its index both ways, and what was odd about it."""
    folder = open_folder(path)
    index = choose_index(folder, prefer=prefer)
    if index is None:
        header = read_header(folder.child(SINGLE_NAME))
        check_framework(header)
        return [header], ()
    headers = for_each_shard(folder, index, read_header)
    check_shards(index, headers)
    return list(headers.values()), index.notes


def for_each_shard(folder: Folder, index: Index, read: Callable[[str], _Opened]) -> dict[str, _Opened]:
    """What ``read`` makes of every shard's path, several at a time; shard name -> result."""

    def read_shard(shard: str) -> _Opened:
        with shard_missing(folder.child(shard), shard, index):
            return read(folder.child(shard))

    with ThreadPoolExecutor(PARALLEL_SHARDS) as pool:
        return dict(zip(index.shards, pool.map(read_shard, index.shards), strict=True))


def choose_index(folder: Folder, *, prefer: Prefer | None = None) -> Index | None:
    """The folder's index, or None where its single file is to be read."""
    has_single = folder.has(SINGLE_NAME)
    if not folder.has(INDEX_NAME):
        if not has_single:
            expected = f"{SINGLE_NAME} or {INDEX_NAME}"
            raise MissingFileError("no checkpoint here", where=folder.name, expected=expected, fix=folder.hint())
        return None
    if has_single and prefer == "single":
        return None
    text = folder.read_small(INDEX_NAME, cap_nbytes=INDEX_CAP_NBYTES)
    index = parse_index(text, folder.child(INDEX_NAME))
    if has_single and prefer is None and SINGLE_NAME not in index.shards:
        raise FormatError(
            "index-and-single",
            f"{SINGLE_NAME} stands beside an index that does not name it",
            where=folder.name,
            got=f"an index of {counted(len(index.shards), 'shard')}, and a single file",
            fix="transformers would load the single file; remove the stale one, or pass prefer='index' or 'single'",
        )
    return index


@contextmanager
def shard_missing(path: str, shard: str, index: Index) -> Iterator[None]:
    """Tell a missing file as what it is here: a shard that the index promises."""
    try:
        yield
    except MissingFileError as error:
        count = sum(1 for each in index.weight_map.values() if each == shard)
        raise FormatError(
            "shard-missing",
            "the index names a file that is not there",
            where=path,
            got=f"{count} of {len(index.weight_map)} tensors would be lost",
            fix="fetch the snapshot again",
        ) from error
