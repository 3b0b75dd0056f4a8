"""A snapshot folder -> the files that make it up, and their headers, without torch.

In: a folder. Out: its index, or None where one file is the whole checkpoint; or the checked headers of every file.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from labkit.errors import FileAccessError, FormatError, MissingFileError
from labkit.storage.header import Header, read_header
from labkit.storage.index import INDEX_NAME, SINGLE_NAME, Index, check_framework, check_shards, parse_index

INDEX_CAP_NBYTES = 100_000_000
"""Longest index that is read, in bytes; as for a header."""
Prefer = Literal["index", "single"]


def read_snapshot_headers(folder: Path, *, prefer: Prefer | None = None) -> tuple[list[Header], tuple[str, ...]]:
    """The headers of every file of a snapshot, checked against its index both ways, and what was odd about it."""
    index = choose_index(folder, prefer=prefer)
    if index is None:
        header = read_header(folder / SINGLE_NAME)
        check_framework(header)
        return [header], ()
    headers: dict[str, Header] = {}
    for shard in index.shards:
        with shard_missing(folder / shard, index):
            headers[shard] = read_header(folder / shard)
    check_shards(index, headers)
    return list(headers.values()), index.notes


def choose_index(folder: Path, *, prefer: Prefer | None = None) -> Index | None:
    """The folder's index, or None where its single file is to be read."""
    index_path, single_path = folder / INDEX_NAME, folder / SINGLE_NAME
    has_single = os.path.lexists(single_path)
    if not os.path.lexists(index_path):
        if not has_single:
            raise MissingFileError(
                "no checkpoint here", where=folder, expected=f"{SINGLE_NAME} or {INDEX_NAME}", fix=_hint(folder)
            )
        return None
    if has_single and prefer == "single":
        return None
    index = read_index(index_path)
    if has_single and prefer is None and SINGLE_NAME not in index.shards:
        raise FormatError(
            "index-and-single",
            f"{SINGLE_NAME} stands beside an index that does not name it",
            where=folder,
            got=f"an index of {len(index.shards)} shards, and a single file",
            fix="transformers would load the single file; remove the stale one, or pass prefer='index' or 'single'",
        )
    return index


def read_index(path: Path) -> Index:
    """The index file at ``path``, parsed and checked by itself."""
    try:
        nbytes = path.stat().st_size
        if nbytes > INDEX_CAP_NBYTES:
            raise FormatError(
                "index-json",
                "the index is over the cap",
                where=path,
                expected=f"at most {INDEX_CAP_NBYTES} bytes",
                got=f"{nbytes} bytes",
            )
        return parse_index(path.read_bytes(), str(path))
    except OSError as error:
        raise FileAccessError(f"cannot read the index: {error.strerror}", where=path) from error


@contextmanager
def shard_missing(path: Path, index: Index) -> Iterator[None]:
    """Tell a missing file as what it is here: a shard that the index promises."""
    try:
        yield
    except MissingFileError as error:
        count = sum(1 for shard in index.weight_map.values() if shard == path.name or path.match(shard))
        raise FormatError(
            "shard-missing",
            "the index names a file that is not there",
            where=path,
            got=f"{count} of {len(index.weight_map)} tensors would be lost",
            fix="fetch the snapshot again",
        ) from error


def _hint(folder: Path) -> str:
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        return f"{pickles[0]} is a pickle, which can run code when loaded; convert it to safetensors first"
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    return f"give one of its files instead: {', '.join(others[:4])}" if others else "check the path"
