"""A file in memory, as the reader sees it, so that a test can try thousands of them."""

from labkit.errors import FormatError
from labkit.storage.header import Header, header_of


class MemoryFile:
    """Bytes that can be read by range; counts what was asked for."""

    def __init__(self, data: bytes, name: str = "memory.safetensors") -> None:
        self.data = data
        self.name = name
        self.reads: list[tuple[int, int]] = []

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def read_into(self, begin: int, buffer: memoryview) -> None:
        self.reads.append((begin, len(buffer)))
        assert begin >= 0
        assert begin + len(buffer) <= len(self.data), "the reader asked for bytes beyond the file"
        buffer[:] = self.data[begin : begin + len(buffer)]

    def close(self) -> None:
        pass


def verdict(data: bytes) -> Header | FormatError:
    """The header of a file of these bytes, or the error it is refused with."""
    try:
        return header_of(MemoryFile(data))
    except FormatError as error:
        return error
