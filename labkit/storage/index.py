"""model.safetensors.index.json -> which shard holds which tensor, checked both ways against the shards.

In: the index's bytes, then the headers of the shards it names. Out: an ``Index``, or a ``FormatError`` with its code.
Source: the index that transformers' ``save_pretrained`` writes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from labkit.errors import FormatError
from labkit.outside import NotJson, RepeatedKey, parse_json, shown
from labkit.storage.header import Header
from labkit.words import counted

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
FOREIGN_FRAMEWORKS = ("tf", "flax")
"""``format`` notes whose weights lie in another layout than PyTorch's."""
_SERIES = re.compile(r"(.+)-([0-9]{1,9})-of-([0-9]{1,9})\.safetensors")


@dataclass(frozen=True)
class Index:
    """Tensor name -> shard file name, and the bytes that all tensors take together where the index says so."""

    where: str
    weight_map: Mapping[str, str]
    total_nbytes: int | None
    notes: tuple[str, ...] = ()

    @property
    def shards(self) -> list[str]:
        """The shards' file names, each once, sorted."""
        return sorted(set(self.weight_map.values()))


def parse_index(text: bytes, where: str) -> Index:
    """The index in ``text``.

    >>> parse_index(b'{"weight_map": {"a": "model-00001-of-00001.safetensors"}}', "index").shards
    ['model-00001-of-00001.safetensors']
    """
    fields = _parse_object(text, where)
    weight_map = fields.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        got = "nothing" if weight_map is None else "an empty map" if weight_map == {} else type(weight_map).__name__
        raise FormatError("index-weight-map", "weight_map is not a map of names to files", where=where, got=got)
    for name, shard in weight_map.items():
        place = f"{where}, tensor {shown(name)}"
        if type(shard) is not str or not shard:
            raise FormatError("index-weight-map", "the shard is not a file name", where=place, got=shown(shard))
        if not _stays_inside(shard):
            raise FormatError(
                "shard-path",
                "the shard lies outside the snapshot folder",
                where=place,
                expected="a file name inside the folder",
                got=shown(shard),
                fix="an index from the internet must not choose files on your disk",
            )
    index = Index(where, weight_map, *_total_size(fields.get("metadata"), where))
    _require_series(index)
    return index


def check_shards(index: Index, headers: Mapping[str, Header]) -> None:
    """Hold the index against the headers of its shards, both ways; raises the first defect."""
    for defect in index_defects(index, headers):
        raise defect


def index_defects(index: Index, headers: Mapping[str, Header]) -> Iterator[FormatError]:
    """Everything in which the index and the headers of its shards disagree."""
    holders: dict[str, str] = {}
    for shard, header in headers.items():
        yield from framework_defects(header)
        for name in header.entries:
            place = f"{header.name}, tensor {shown(name)}"
            if name in holders:
                got = f"{holders[name]} and {shard}"
                yield FormatError("shard-duplicate", "the tensor stands in two shards", where=place, got=got)
            holders[name] = shard
            if name not in index.weight_map:
                fix = "a loader that follows the index would never read it; write the index again"
                yield FormatError("shard-unlisted-tensor", "the index does not list it", where=place, fix=fix)
    for name, shard in index.weight_map.items():
        if name not in headers[shard].entries:
            held = f"it is in {holders[name]}" if name in holders else "no shard holds it"
            place = f"{index.where}, tensor {shown(name)}"
            yield FormatError("shard-absent-tensor", f"the shard {shard} does not hold it", where=place, got=held)
    total = sum(header.data_nbytes for header in headers.values())
    if index.total_nbytes is not None and index.total_nbytes != total:
        yield FormatError(
            "index-total-size",
            "metadata.total_size is not the shards' size",
            where=index.where,
            expected=f"{total} bytes in {counted(len(headers), 'shard')}",
            got=f"{index.total_nbytes} bytes",
            fix="index and shards are not of one save; fetch all of them again",
        )


def check_framework(header: Header) -> None:
    """Refuse a file whose metadata says that its weights lie in another framework's layout."""
    for defect in framework_defects(header):
        raise defect


def framework_defects(header: Header) -> Iterator[FormatError]:
    """The defect of a file that claims another framework's layout."""
    framework = header.metadata.get("format")
    if framework in FOREIGN_FRAMEWORKS:
        yield FormatError(
            "shard-framework",
            "the file's metadata claims another framework's layout",
            where=header.name,
            expected="format pt",
            got=f"format {framework}",
            fix="use the checkpoint's PyTorch files",
        )


def _parse_object(text: bytes, where: str) -> dict[str, Any]:
    try:
        fields = parse_json(text.decode())  # a byte order mark is refused, as by transformers
    except UnicodeDecodeError as error:
        raise FormatError("index-json", "the index is not UTF-8", where=where, got=f"byte {error.start}") from error
    except RepeatedKey as error:
        got = f"{shown(error.first)} and {shown(error.second)}"
        raise FormatError("index-duplicate", f"{shown(error.key)} stands twice", where=where, got=got) from error
    except NotJson as error:
        raise FormatError("index-json", f"the index is not JSON: {error}", where=where) from error
    if not isinstance(fields, dict):
        raise FormatError("index-json", "the index is not an object", where=where, got=type(fields).__name__)
    return fields


def _stays_inside(shard: str) -> bool:
    """Whether the name, on any system, leads to a file below the folder it is joined to (links are not followed)."""
    if "\0" in shard or "\\" in shard or PureWindowsPath(shard).drive or PurePosixPath(shard).is_absolute():
        return False
    return ".." not in PurePosixPath(shard).parts


def _total_size(metadata: Any, where: str) -> tuple[int | None, tuple[str, ...]]:
    if metadata is None:
        return None, ()
    if not isinstance(metadata, dict):
        raise FormatError("index-total-size", "metadata is not an object", where=where, got=type(metadata).__name__)
    total = metadata.get("total_size")
    if total is None or (type(total) is int and total >= 0):
        return total, ()
    if type(total) is float and total.is_integer() and 0 <= total < 2**63:
        return int(total), (f"{where}: metadata.total_size is written as a fraction, {total}",)
    raise FormatError(
        "index-total-size", "metadata.total_size is not a whole number", where=where, expected="bytes", got=repr(total)
    )


def _require_series(index: Index) -> None:
    """Names like model-00001-of-00003 promise three shards; an index that lost some would load as if it were whole."""
    present: dict[tuple[str, int], set[int]] = {}
    for shard in index.shards:
        if match := _SERIES.fullmatch(PurePosixPath(shard).name):
            present.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, total), numbers in present.items():
        if len(numbers) != total or max(numbers) > total:
            raise FormatError(
                "shard-missing",
                "the index does not name every shard that the file names promise",
                where=index.where,
                expected=f"{total} shards {stem}-*-of-{total:05d}",
                got=f"{len(numbers)}: {sorted(numbers)[:8]}",
                fix="fetch the snapshot again",
            )
