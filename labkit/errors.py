"""Every error a user can cause, drawn as one tree.

    LabkitError
    ├── MissingFileError     (FileNotFoundError)  a file or folder is not there
    ├── FileAccessError      (OSError)            a file is there but cannot be read or written
    ├── FormatError          (ValueError)         a safetensors file breaks a rule; ``code`` says which
    ├── ConfigError          (ValueError)         config.json cannot be honoured
    ├── CheckpointError      (ValueError)         tensors and parameters do not fit each other
    ├── VocabularyError      (ValueError)         vocab.json, merges.txt or tokenizer.json is wrong
    ├── TextError            (ValueError)         a text cannot be encoded, or ids cannot be decoded
    ├── UnknownNameError     (KeyError)           no tensor, tap, fault or option of that name
    ├── OutOfRangeError      (IndexError)         an id, a position or a row beyond its table
    ├── ArgumentError        (ValueError)         an argument that no call could honour
    ├── ArgumentTypeError    (TypeError)          an argument of the wrong type
    ├── NonFiniteError       (ArithmeticError)    a NaN or an infinity where none may be
    └── TraceError           (ValueError)         a trace file breaks the trace contract

Each kind is also the built-in a user would expect, so ``except KeyError`` works where a mapping was asked.
A message is one line: where, what, expected, got, and what to do next.
"""

import difflib
from collections.abc import Iterable

LISTED = 20
"""Names that are listed where one is unknown and none is near it."""


class LabkitError(Exception):
    """Root of every error that a user of labkit can cause.

    >>> print(LabkitError("the shape is wrong", where="a.safetensors, tensor 'b'", expected=[2], got=[3], fix="save it again"))
    a.safetensors, tensor 'b': the shape is wrong (expected [2], got [3]); save it again
    """

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        expected: object = None,
        got: object = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.got = got
        self.fix = fix

    def __str__(self) -> str:
        pair = [f"expected {self.expected}"] if self.expected is not None else []
        pair += [f"got {self.got}"] if self.got is not None else []
        text = f"{self.where}: {self.what}" if self.where is not None else self.what
        text += f" ({', '.join(pair)})" if pair else ""
        text += f"; {self.fix}" if self.fix else ""
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class MissingFileError(LabkitError, FileNotFoundError):
    """A file or folder is not there."""


class FileAccessError(LabkitError, OSError):
    """A file is there but cannot be read or written."""


class FormatError(LabkitError, ValueError):
    """A safetensors file breaks a rule of the format; ``code`` is the rule's stable name."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        where: object = None,
        expected: object = None,
        got: object = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what, where=where, expected=expected, got=got, fix=fix)
        self.code = code

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.code}]"


class ConfigError(LabkitError, ValueError):
    """config.json cannot be honoured."""


class CheckpointError(LabkitError, ValueError):
    """Tensors and parameters do not fit each other."""


class VocabularyError(LabkitError, ValueError):
    """vocab.json, merges.txt or tokenizer.json is wrong."""


class TextError(LabkitError, ValueError):
    """A text cannot be encoded, or ids cannot be decoded."""


class UnknownNameError(LabkitError, KeyError):
    """No tensor, tap, fault or option of that name; the message lists the near ones.

    >>> print(UnknownNameError.near("tap", "h.0.ln1", ["h.0.ln_1", "h.0.ln_2", "ln_f"]))
    no tap named 'h.0.ln1'; did you mean 'h.0.ln_1', 'h.0.ln_2'?
    """

    @classmethod
    def near(cls, kind: str, name: object, known: Iterable[str], *, where: object = None) -> "UnknownNameError":
        """The error for ``name``, with up to three near names from ``known``; with all of a short list where none is near."""
        names = list(known)
        close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
        listed = ", ".join(repr(each) for each in (close or names[:LISTED]))
        more = "" if close or len(names) <= LISTED else f" and {len(names) - LISTED} more"
        fix = f"did you mean {listed}?" if close else f"known: {listed}{more}" if names else "there are none"
        return cls(f"no {kind} named {name!r}", where=where, fix=fix)


class OutOfRangeError(LabkitError, IndexError):
    """An id, a position or a row lies beyond its table."""


class ArgumentError(LabkitError, ValueError):
    """An argument that no call could honour."""


class ArgumentTypeError(LabkitError, TypeError):
    """An argument of the wrong type."""


class NonFiniteError(LabkitError, ArithmeticError):
    """A NaN or an infinity where none may be."""


class TraceError(LabkitError, ValueError):
    """A trace file breaks the trace contract."""
