"""What a command reads and what it writes, looked at before its work: no output is an input, and each can be written.

In: a command's arguments. Parameters that are written to are listed here by name; every other path is read.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from typing import Any

from labkit.atomic import is_stream, require_file_place, require_folder_place, require_new_folder
from labkit.errors import ArgumentError, LabkitError

REPORTS = ("json", "json_to")
"""Parameters that take a file's name, or - for standard output."""
FILES = (*REPORTS, "output", "out", "certificate", "html", "junit")
"""Parameters that name a file to write."""
FOLDERS: Mapping[str, Callable[[Path], None]] = {
    "target": require_new_folder,
    "keep": require_folder_place,
    "dir": require_folder_place,
}
"""Parameters that name a folder to write."""
READ_TEXTS = ("path", "a", "b", "names")
"""Parameters that are text and may name a file or folder to read."""

_EMBEDDED = Path(__file__).resolve().parent.parent / "data" / "tiny"  # what is read where no folder is given
_READ_NAMES = (
    *("model.safetensors", "model-*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "*.pt", "*.ckpt"),
    *("config.json", "generation_config.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "*.ipynb"),
)
"""What a folder that is read holds; a report or a trace that was put beside it may be replaced."""


def placed(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with its places checked before it runs."""

    @wraps(command)
    def checked(**values: Any) -> Any:
        check_places(values)
        return command(**values)

    return checked


def check_places(values: Mapping[str, Any]) -> None:
    """Raise where a place to write at cannot be written, is what the command reads, or is given twice.

    Raises ``ArgumentError``, ``MissingFileError``, ``FileAccessError``.
    """
    files = {name: Path(values[name]) for name in FILES if values.get(name) is not None}
    for name, path in files.items():
        if str(path) != "-":
            require_file_place(path)
        elif name not in REPORTS:
            raise ArgumentError("only --json goes to standard output", where=f"--{name}", fix="name a file")
    for name, check in FOLDERS.items():
        if values.get(name) is not None:
            check(values[name])
    _check_apart([path for path in files.values() if str(path) != "-" and not is_stream(path)], _read_places(values))


def _check_apart(outputs: list[Path], inputs: Iterator[Path]) -> None:
    if not outputs:
        return
    read = {identity for place in inputs for identity in _identities(place)}
    for number, path in enumerate(outputs):
        if read.intersection(_identities(path)):
            raise ArgumentError("the output is the input", where=path, fix="name another file")
        if os.path.realpath(path) in map(os.path.realpath, outputs[:number]):
            raise ArgumentError("two outputs have this name", where=path, fix="name another file")


def _read_places(values: Mapping[str, Any]) -> Iterator[Path]:
    """Every path that is read, and the files of a checkpoint or tokenizer in every folder."""
    yield from _with_files(_EMBEDDED)
    for name, value in values.items():
        if name in FILES or name in FOLDERS:
            continue
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, Path) or (name in READ_TEXTS and isinstance(value, str)):
                yield from _with_files(Path(each))


def _with_files(place: Path) -> Iterator[Path]:
    yield place
    with suppress(OSError):  # whatever is wrong with an input is told where it is read
        for each in place.iterdir():
            if any(fnmatch(each.name, pattern) for pattern in _READ_NAMES):
                yield each
            if each.name == "model.safetensors.index.json":
                yield from _shards(each)


def _shards(index: Path) -> Iterator[Path]:
    """The shards that an index names, as it may name them otherwise than transformers does."""
    from labkit.outside import read_regular
    from labkit.storage.index import parse_index

    with suppress(LabkitError):
        yield from (index.parent / shard for shard in parse_index(read_regular(index), str(index)).shards)


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    """Device and number of the file, the same by whatever name; none where there is no file."""
    with suppress(OSError):
        found = path.stat()
        yield found.st_dev, found.st_ino
