"""Exercises of notebooks 01 and 02: the file's layout, and numbers in few bits."""

import struct
import tempfile
import warnings
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError
from labkit.exercises.answers import WrongAnswerError, as_flag, as_function, as_number, shown
from labkit.exercises.task import Task, number_task

DATA_START = 14_291
WTE_BEGIN = 287_209_472
"""Both of the released GPT-2 file."""


def judge_file(answer: Any) -> None:
    """The bytes of a file that holds one F32 tensor named x of shape [2] with the values 1.0 and -2.0."""
    if not isinstance(answer, bytes | bytearray | memoryview):
        raise WrongAnswerError(f"the bytes of a file are asked for, not {type(answer).__name__}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.safetensors"
        path.write_bytes(answer)
        values = _values_of_x(path)
    if values != [1.0, -2.0]:
        raise WrongAnswerError(f"the file is sound, but x reads as {shown(values)}")


def _values_of_x(path: Path) -> Any:
    """The values of x, which must be the file's one tensor and F32."""
    from labkit.storage import StorageWarning, open_safetensors

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StorageWarning)
            with open_safetensors(path, mode="copy") as file:
                if list(file) != ["x"]:
                    raise WrongAnswerError(
                        f"one tensor named x is asked for; the header names {', '.join(file) or 'none'}"
                    )
                if (dtype := file.header.entries["x"].dtype) != "F32":
                    raise WrongAnswerError(f"the tensor's dtype is {dtype}")
                return file["x"].tolist()
    except LabkitError as error:
        code = getattr(error, "code", None)
        raise WrongAnswerError(f"no reader takes it: {error.what}" + (f" [{code}]" if code else "")) from None


def judge_bounds(answer: Any) -> None:
    """A function of (header length, file length) that refuses every header that cannot fit, without overflow."""
    fits = as_function(answer)

    def says(header: int, file: int) -> bool:
        return as_flag(fits(header, file), f"fits({header}, {file})")

    wide = (2**64 - 4, 2**63)
    cases = [((10, 18), True), ((11, 18), False), ((0, 8), True), ((2**64 - 8, 100), False), ((0, 7), False)]
    for (header, file), wanted in [*cases, (wide, False)]:
        if says(header, file) is not wanted:
            raise WrongAnswerError(
                f"a header of {header} bytes in a file of {file} bytes {'fits' if wanted else 'does not fit'}"
            )
    if says(_Wrapping(wide[0]), wide[1]):
        raise WrongAnswerError(
            "in 64-bit arithmetic the sum of prefix and header wraps around: compare without adding to the header"
        )


class _Wrapping(int):
    """A whole number whose sums wrap at 64 bits, as they do in C or Rust."""

    def __add__(self, other: int) -> "_Wrapping":
        return _Wrapping((int(self) + int(other)) % 2**64)

    __radd__ = __add__


def judge_bfloat16(answer: Any) -> None:
    """A function from the 16 bits of a bfloat16 to its value."""
    value_of = as_function(answer)
    for bits in (0x3F80, 0xC000, 0x0000, 0x4049, 0x7F80, 0x0001):
        right = struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]
        got = as_number(value_of(bits), f"the value of the bits {bits:#06x}")
        if got != right:
            raise WrongAnswerError(f"the bits {bits:#06x} do not stand for {shown(got)}")


TASKS: dict[str, Task] = {
    "01.1": Task(question="Write, by hand, a file with one F32 tensor x = [1.0, -2.0].", judge=judge_file),
    "01.2": number_task(
        "At which byte of the released GPT-2 file does wte.weight begin?",
        DATA_START + WTE_BEGIN,
        {
            WTE_BEGIN: "that counts from the start of the data section, not of the file",
            WTE_BEGIN + DATA_START - 8: "the eight bytes of the length come before the header",
            WTE_BEGIN + 8: "the header lies between the length and the data",
        },
    ),
    "01.3": number_task(
        "How many spaces would have aligned the data section of the released file (header 14,283 bytes) to 8?",
        (8 - DATA_START % 8) % 8,
        {DATA_START % 8: "that is how far the data lies past a multiple of 8"},
    ),
    "01.4": Task(
        question="Write fits(header, file): may a header of that length stand in that file?", judge=judge_bounds
    ),
    "02.1": Task(question="Write a function from the 16 bits of a bfloat16 to its value.", judge=judge_bfloat16),
}
