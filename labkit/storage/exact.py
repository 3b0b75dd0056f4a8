"""The exact road through a header: every rule, one at a time, with every defect found rather than only the first.

In: the header's bytes. Out: its metadata and entries, and a list of ``FormatError``, empty for a sound header. The fast
road (``header``) comes here whenever it is in any doubt, so this module alone decides what is refused.
Source: the format text of safetensors, and RFC 8259 for JSON.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import FormatError
from labkit.outside import SHOWN_CHARACTERS, shown
from labkit.storage.dtypes import BITS
from labkit.storage.layout import layout_defects
from labkit.storage.raw import FIELDS, METADATA, RawEntry
from labkit.storage.rules import MAX_DEPTH, MAX_INTEGER, MAX_NUMEL

_TOKENS = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL
)  # linear even where a string never ends


@dataclass(frozen=True)
class Reading:
    """What the exact road found; ``metadata`` and ``entries`` hold the sound parts."""

    metadata: dict[str, str] = field(default_factory=dict)
    entries: dict[str, RawEntry] = field(default_factory=dict)
    defects: list[FormatError] = field(default_factory=list)


class _Odd(str):
    """A number that is not plain digits, kept as it was written."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, duplicates included."""

    __slots__ = ()


def read_exactly(text: bytes, data_nbytes: int, where: str) -> Reading:
    """Check ``text``, the header's bytes, against every rule; ``data_nbytes`` is the size of the data section.

    >>> read_exactly(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4, "a.safetensors").defects
    []
    >>> print(read_exactly(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', 4, "a.safetensors").defects[0])
    a.safetensors, tensor 'a': the byte range is not dtype times shape (expected 8 bytes for F32 [2],
    got 4 bytes at [0, 4)); the shape or the offsets were written wrongly [size-mismatch]
    """
    reading = Reading()
    if text[:1] != b"{":
        reading.defects.append(_first_byte(text, where))
        text = text.lstrip(b" \t\r\n")
        if text[:1] != b"{":
            return reading
    defect = _not_text(text, where) or _too_deep(text, where)
    if defect is None:
        try:
            pairs = _decode(text)
        except json.JSONDecodeError as error:
            at = 8 + len(error.doc[: error.pos].encode())
            defect = FormatError("header-json", f"the header is not JSON: {error.msg}", where=where, got=f"byte {at}")
        else:
            _read_object(pairs, where, reading)
            _read_layout(reading, data_nbytes, where)
    if defect is not None:
        reading.defects.append(defect)
    return reading


def _first_byte(text: bytes, where: str) -> FormatError:
    stripped = text.lstrip(b" \t\r\n")
    if stripped[:1] == b"{":
        blank = len(text) - len(stripped)
        fix = "save it again; safetensors 0.8.0 accepts this, tools that look at byte 8 do not"
        return FormatError(
            "header-first-byte",
            f"{blank} white-space bytes before the '{{'",
            where=where,
            expected="'{' at byte 8",
            fix=fix,
        )
    got = f"byte 0x{text[0]:02x}" if text else "nothing"
    return FormatError(
        "header-first-byte", "the header is not a JSON object", where=where, expected="'{' at byte 8", got=got
    )


def _not_text(text: bytes, where: str) -> FormatError | None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        got = f"byte 0x{text[error.start]:02x} at {8 + error.start}: {error.reason}"
        return FormatError("header-utf8", "the header is not UTF-8", where=where, got=got)
    return None


def _too_deep(text: bytes, where: str) -> FormatError | None:
    depth = 0
    for token in _TOKENS.finditer(text):
        byte = token[0]
        if byte in (b"{", b"["):
            depth += 1
            if depth > MAX_DEPTH:
                at = 8 + token.start()
                expected = f"at most {MAX_DEPTH} levels"
                return FormatError(
                    "header-depth", "brackets nest too deep", where=where, expected=expected, got=f"byte {at}"
                )
        elif byte in (b"}", b"]"):
            depth -= 1
    return None


def _decode(text: bytes) -> _Object:
    """The header as pairs, with numbers that are not plain digits left as text."""
    result = json.loads(
        text.decode(), object_pairs_hook=_Object, parse_int=_integer, parse_float=_Odd, parse_constant=_Odd
    )
    assert isinstance(result, _Object)  # the first byte is '{'
    return result


def _integer(digits: str) -> int | _Odd:
    return _Odd(digits) if digits.startswith("-") or len(digits) > 20 else int(digits)


def _read_object(pairs: _Object, where: str, reading: Reading) -> None:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        place = where if name == METADATA else f"{where}, tensor {shown(name)}"
        if name in seen:
            what = f"{METADATA} stands twice" if name == METADATA else "the name stands twice"
            fix = "a first-wins and a last-wins reader would see different tensors; save it again"
            got = f"{_summary(seen[name])}, then {_summary(value)}"
            reading.defects.append(FormatError("duplicate-name", what, where=place, got=got, fix=fix))
        seen[name] = value
        if not _is_text(name):
            reading.defects.append(FormatError("text-surrogate", "the name is not Unicode text", where=place))
        elif name == METADATA:
            reading.defects.extend(_read_metadata(value, where, reading.metadata))
        else:
            defects = list(_entry_defects(value, place))
            reading.defects.extend(defects)
            if not defects and name not in reading.entries:
                fields = dict(value)
                reading.entries[name] = RawEntry(
                    fields["dtype"], tuple(fields["shape"]), (fields["data_offsets"][0], fields["data_offsets"][1])
                )


def _summary(value: Any) -> str:
    """An entry in a few words: dtype, shape and offsets where it has them."""
    if not isinstance(value, _Object):
        return _kind(value)
    fields = dict(value)
    return " ".join(str(fields[key])[:SHOWN_CHARACTERS] for key in FIELDS if key in fields) or "an object"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_metadata(value: Any, where: str, metadata: dict[str, str]) -> Iterator[FormatError]:
    if not isinstance(value, _Object):
        fix = (
            "safetensors 0.8.0 accepts null here; leave it out" if value is None else "metadata maps strings to strings"
        )
        yield FormatError(
            "metadata-type",
            f"{METADATA} is not an object",
            where=where,
            expected="an object",
            got=_kind(value),
            fix=fix,
        )
        return
    for key, item in value:
        place = f"{where}, {METADATA} key {shown(key)}"
        if key in metadata:
            yield FormatError("duplicate-metadata-key", "the key stands twice", where=place, fix="save it again")
        if type(item) is not str:
            yield FormatError(
                "metadata-value", "the value is not a string", where=place, expected="a string", got=_kind(item)
            )
        elif not (_is_text(key) and _is_text(item)):
            yield FormatError("text-surrogate", "the key or value is not Unicode text", where=place)
        else:
            metadata.setdefault(key, item)


def _entry_defects(value: Any, where: str) -> Iterator[FormatError]:
    if not isinstance(value, _Object):
        yield FormatError(
            "entry-type",
            "the entry is not an object",
            where=where,
            expected=f"an object of {', '.join(FIELDS)}",
            got=_kind(value),
        )
        return
    fields: dict[str, Any] = {}
    for key, item in value:
        if key in fields:
            yield FormatError(
                "duplicate-field", f"the field {shown(key)} stands twice", where=where, fix="save it again"
            )
        elif key not in FIELDS:
            yield FormatError(
                "entry-field-unknown",
                f"the field {shown(key)} is not the format's",
                where=where,
                expected=", ".join(FIELDS),
                fix="safetensors 0.8.0 skips such fields unread; save it again without",
            )
        fields.setdefault(key, item)
    missing = [key for key in FIELDS if key not in fields]
    if missing:
        yield FormatError("entry-field-missing", f"the entry lacks {', '.join(missing)}", where=where)
        return
    dtype, shape, offsets = (fields[key] for key in FIELDS)
    defects = [*_dtype_defects(dtype, where), *_shape_defects(shape, where), *_offset_defects(offsets, where)]
    yield from defects or _size_defects(dtype, shape, offsets, where)


def _dtype_defects(dtype: Any, where: str) -> Iterator[FormatError]:
    if type(dtype) is not str or dtype not in BITS:
        got = shown(dtype) if type(dtype) is str else _kind(dtype)
        yield FormatError(
            "dtype-unknown", "the dtype is unknown", where=where, expected="a code such as F32 or BF16", got=got
        )


def _shape_defects(shape: Any, where: str) -> Iterator[FormatError]:
    if type(shape) is not list:
        yield FormatError("shape-type", "the shape is not a list", where=where, expected="a list", got=_kind(shape))
        return
    bad = [(axis, size) for axis, size in enumerate(shape) if not _is_size(size)]
    for axis, size in bad:
        yield FormatError(
            "dimension",
            f"dimension {axis} is not a plain whole number",
            where=where,
            expected="0 to 2^64 - 1 in digits",
            got=_kind(size),
        )
    if not bad:
        numel = 1
        for size in shape:
            numel *= size or 1
        if numel > MAX_NUMEL:
            yield FormatError(
                "shape-overflow",
                "the dimensions multiply beyond 2^63 - 1",
                where=where,
                got=str(shape),
                fix="the shape is a lie",
            )


def _offset_defects(offsets: Any, where: str) -> Iterator[FormatError]:
    if type(offsets) is not list or len(offsets) != 2:
        yield FormatError(
            "offsets-type", "data_offsets is not a pair", where=where, expected="[begin, end]", got=_kind(offsets)
        )
        return
    bad = [(side, offset) for side, offset in zip(("begin", "end"), offsets, strict=True) if not _is_size(offset)]
    for side, offset in bad:
        yield FormatError(
            "offset",
            f"the {side} offset is not a plain whole number",
            where=where,
            expected="0 to 2^64 - 1 in digits",
            got=_kind(offset),
        )
    if not bad and offsets[0] > offsets[1]:
        yield FormatError(
            "offsets-reversed", "the end is before the begin", where=where, got=f"[{offsets[0]}, {offsets[1]})"
        )


def _size_defects(dtype: str, shape: list[int], offsets: list[int], where: str) -> Iterator[FormatError]:
    numel = 1
    for size in shape:
        numel *= size
    bits = numel * BITS[dtype]
    stored = offsets[1] - offsets[0]
    if bits % 8:
        yield FormatError(
            "size-partial-byte",
            f"{numel} elements of {BITS[dtype]} bits do not fill whole bytes",
            where=where,
            got=f"{bits} bits for {dtype} {shape}",
        )
    elif bits // 8 != stored:
        yield FormatError(
            "size-mismatch",
            "the byte range is not dtype times shape",
            where=where,
            expected=f"{bits // 8} bytes for {dtype} {shape}",
            got=f"{stored} bytes at [{offsets[0]}, {offsets[1]})",
            fix="the shape or the offsets were written wrongly",
        )


def _is_size(value: Any) -> bool:
    return type(value) is int and value <= MAX_INTEGER


def _kind(value: Any) -> str:
    """A value of the wrong kind, in a few words."""
    if isinstance(value, _Object):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, _Odd):
        why = "no JSON number" if value.lstrip("-") in ("NaN", "Infinity") else "not plain digits, or too long"
        return f"{value[:40]} ({why})"
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def _read_layout(reading: Reading, data_nbytes: int, where: str) -> None:
    """The layout's defects; where a name stands twice nothing is said, for there is no telling which of the two counts."""
    if not any(defect.code == "duplicate-name" for defect in reading.defects):
        partial = bool(reading.defects)
        reading.defects.extend(layout_defects(reading.entries, data_nbytes, where, partial=partial))
