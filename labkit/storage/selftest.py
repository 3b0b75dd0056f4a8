"""The battery written to disk and read back: shows that each broken rule is refused with its code.

In: a folder to write in. Out: a ``SelftestResult`` for each crafted file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import FileAccessError, FormatError
from labkit.storage.battery import crafted_files
from labkit.storage.crafted import Crafted
from labkit.storage.header import read_header


@dataclass(frozen=True)
class SelftestResult:
    """One crafted file, the code it was refused with (None: accepted), and the message."""

    crafted: Crafted
    code: str | None
    message: str

    @property
    def passed(self) -> bool:
        """Whether the verdict is the one that was expected."""
        return self.code == self.crafted.code


def run_selftest(folder: Path) -> Iterator[SelftestResult]:
    """Write every crafted file into ``folder`` and read its header.

    >>> import tempfile
    >>> results = list(run_selftest(Path(tempfile.mkdtemp())))
    >>> all(result.passed for result in results), sum(result.code is not None for result in results) > 200
    (True, True)

    Raises ``FileAccessError`` where writing fails.
    """
    for crafted in crafted_files():
        path = folder / f"{crafted.name}.safetensors"
        _write(path, crafted.data)
        try:
            read_header(path)
        except FormatError as error:
            yield SelftestResult(crafted, error.code, str(error))
        else:
            yield SelftestResult(crafted, None, "accepted")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise FileAccessError(f"cannot write: {error.strerror}", where=path) from error
