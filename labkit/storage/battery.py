"""Crafted files: every rule broken at least once, and every oddity that is allowed, each with the code it must get.

In: nothing. Out: small files as bytes. `labkit selftest` writes them and shows each verdict; the tests hold the reader to
them. Everything is built from one sound file, ``a`` F32 [1] in four bytes of data, with one thing changed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.storage.dtypes import DTYPES
from labkit.storage.rules import HEADER_CAP_NBYTES

_DATA = bytes(range(64))


@dataclass(frozen=True)
class Crafted:
    """One file: its name, the code it must be refused with (None: it must be accepted), what is odd, and its bytes."""

    name: str
    code: str | None
    oddity: str
    data: bytes


def crafted_files() -> list[Crafted]:
    """The whole battery.

    >>> files = crafted_files(); len(files) >= 150, len({file.name for file in files}) == len(files)
    (True, True)
    """
    return [
        *_prefixes(),
        *_disguises(),
        *_texts(),
        *_json(),
        *_duplicates(),
        *_metadata(),
        *_entries(),
        *_numbers(),
        *_sizes(),
        *_layouts(),
        *_allowed(),
    ]


def frame(header: bytes | str, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file of a header and data; ``length`` lies about the header's length.

    >>> frame("{}")
    b'\\x02\\x00\\x00\\x00\\x00\\x00\\x00\\x00{}'
    """
    text = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(name: str = "a", dtype: Any = "F32", shape: str = "[1]", offsets: str = "[0,4]") -> str:
    """One entry as JSON text; ``name`` goes in as it is, the rest as JSON text."""
    return f'"{name}":{{"dtype":{json.dumps(dtype)},"shape":{shape},"data_offsets":{offsets}}}'


def _sound(*entries: str, data: bytes = _DATA[:4]) -> bytes:
    return frame("{" + ",".join(entries or (entry(),)) + "}", data)


def _prefixes() -> Iterator[Crafted]:
    for nbytes in (0, 1, 4, 7):
        yield Crafted(f"prefix-{nbytes}-bytes", "prefix-short", f"{nbytes} bytes in all", b"\x02" * nbytes)
    text = "{" + entry() + "}"
    nbytes = len(text)
    lies = {
        "zero": (0, "header-empty"),
        "one-too-many": (nbytes + 5, "header-length"),
        "cap": (HEADER_CAP_NBYTES, "header-length"),
        "over-the-cap": (HEADER_CAP_NBYTES + 1, "header-cap"),
        "plus-2-to-32": (nbytes + 2**32, "header-cap"),
        "2-to-63": (2**63, "header-cap"),
        "minus-8": (2**64 - 8, "header-cap"),
        "all-ones": (2**64 - 1, "header-cap"),
        "big-endian": (int.from_bytes(nbytes.to_bytes(8, "big"), "little"), "header-cap"),
        "one-short": (nbytes - 1, "header-json"),
        "seven": (7, "header-json"),
        "one": (1, "header-json"),
    }
    for name, (length, code) in lies.items():
        yield Crafted(f"length-{name}", code, f"length {length}", frame(text, _DATA[:4], length=length))
    yield Crafted("length-zero-alone", "header-empty", "eight zero bytes", bytes(8))
    yield Crafted(
        "length-counts-itself", "header-utf8", "length 8 too long", frame(text, b"\xff" * 8, length=nbytes + 8)
    )


def _disguises() -> Iterator[Crafted]:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 548105171\n"
    heads = {
        "lfs-pointer": pointer,
        "html": b"<!DOCTYPE html><html><title>401</title></html>",
        "pickle": b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s.",
        "zip": b"PK\x03\x04\x14\x00\x08\x08\x08\x00" + bytes(20),
        "gzip": b"\x1f\x8b\x08\x00\x01\x02\x03\x04\x00\x03",
        "zstd": b"\x28\xb5\x2f\xfd\x24\x01\x02\x03\x04",
        "gguf": b"GGUF\x03\x00\x00\x00" + bytes(16),
        "npy": b"\x93NUMPY\x01\x00v\x00",
        "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(8),
        "json": b'{"weight_map": {}}',
    }
    for kind, head in heads.items():
        yield Crafted(f"is-{kind}", f"is-{kind}", "another kind of file", head)


def _texts() -> Iterator[Crafted]:
    sound = ("{" + entry() + "}").encode()
    firsts = {
        "space": b" ",
        "newline": b"\n",
        "tab-cr": b"\t\r",
        "nul": b"\0",
        "bom": b"\xef\xbb\xbf",
        "bracket": b"[",
        "quote": b'"',
    }
    for kind, first in firsts.items():
        yield Crafted(f"first-{kind}", "header-first-byte", f"{first!r} in front", frame(first + sound, _DATA[:4]))
    for top in ("null", "true", "1", '"x"', "[]", "   "):
        yield Crafted(
            f"top-{top.strip() or 'spaces'}".replace('"', ""), "header-first-byte", f"top is {top}", frame(top)
        )
    broken = {
        "latin-1": b"\xe9",
        "cut-sequence": b"\xe4\xb8",
        "overlong": b"\xc0\xaf",
        "surrogate": b"\xed\xa0\x80",
        "too-high": b"\xf4\x90\x80\x80",
        "lone-continuation": b"\x80",
    }
    for kind, raw in broken.items():
        text = sound.replace(b'"a"', b'"' + raw + b'"')
        yield Crafted(f"utf8-{kind}", "header-utf8", f"{raw.hex(' ')} in a name", frame(text, _DATA[:4]))
    yield Crafted("utf8-padding", "header-utf8", "0xa0 as padding", frame(sound + b"\xa0", _DATA[:4]))
    utf16 = sound.decode().encode("utf-16-le")
    yield Crafted("utf16", "header-json", "header in UTF-16", frame(utf16, _DATA[:4]))
    for levels in (5, 100, 90_000):
        text_ = '{"a":' + "[" * levels + "]" * levels + "}"
        yield Crafted(f"depth-{levels}", "header-depth", f"{levels} brackets", frame(text_))
    yield Crafted("depth-unclosed", "header-depth", "90,000 open brackets", frame('{"a":' + "[" * 90_000))
    for half in ("\\ud800", "\\udc00", "\\ud800x", "\\udc00\\ud800"):
        name = half.replace("\\", "")
        yield Crafted(f"surrogate-{name}", "text-surrogate", f"name {half}", _sound(entry(half)))
    yield Crafted(
        "surrogate-metadata", "text-surrogate", "metadata value", _sound('"__metadata__":{"k":"\\ud800"}', entry())
    )


def _json() -> Iterator[Crafted]:
    sound = "{" + entry() + "}"
    changed = {
        "single-quotes": sound.replace('"', "'"),
        "bare-key": sound.replace('"a"', "a"),
        "number-key": sound.replace('"a"', "1"),
        "no-comma": sound.replace(',"shape"', '"shape"'),
        "comma-at-end": sound[:-1] + ",}",
        "comma-in-list": sound.replace("[1]", "[1,]"),
        "comma-first": sound.replace("{", "{,", 1),
        "no-colon": sound.replace('"a":', '"a"'),
        "comment": sound.replace("{", "{/* */", 1),
        "line-comment": sound + "//",
        "two-objects": sound + sound,
        "text-after": sound + "x",
        "nul-after": sound + "\0",
        "nul-between": sound.replace(":", ":\0", 1),
        "form-feed": sound + "\f",
        "no-break-space": sound.replace(":", ":\u00a0", 1),
        "escape-x": sound.replace('"a"', '"\\x61"'),
        "escape-u-short": sound.replace('"a"', '"\\u61"'),
        "escape-at-end": sound.replace('"a"', '"a\\"'),
        "newline-in-name": sound.replace('"a"', '"a\n"'),
        "control-in-name": sound.replace('"a"', '"\x01"'),
        "open-string": '{"a',
        "open-object": sound[:-1],
        "only-brace": "{",
        "leading-zero": sound.replace("[1]", "[01]"),
        "plus": sound.replace("[1]", "[+1]"),
        "hex": sound.replace("[1]", "[0x1]"),
        "dot-first": sound.replace("[1]", "[.5]"),
        "dot-last": sound.replace("[1]", "[1.]"),
        "python-true": sound.replace("[1]", "[True]"),
    }
    for name, text in changed.items():
        yield Crafted(f"json-{name}", "header-json", "not JSON", frame(text, _DATA[:4]))


def _duplicates() -> Iterator[Crafted]:
    other = entry(dtype="I32")
    wild = entry(offsets="[4000,4004]")
    names = {
        "same": (entry(), entry()),
        "two-dtypes": (entry(), other),
        "first-wild": (wild, entry()),
        "last-wild": (entry(), wild),
        "escaped": (entry(), entry("\\u0061")),
        "apart": (entry(), entry("b", offsets="[4,8]"), entry()),
        "metadata": ('"__metadata__":{}', '"__metadata__":{}', entry()),
        "metadata-escaped": ('"__metadata__":{}', '"__metadat\\u0061__":{}', entry()),
    }
    for kind, entries in names.items():
        data = _DATA[:8] if kind == "apart" else _DATA[:4]
        yield Crafted(f"duplicate-{kind}", "duplicate-name", "a name twice", _sound(*entries, data=data))
    fields = {
        "same": '"dtype":"F32",',
        "other": '"dtype":"I32",',
        "escaped": '"d\\u0074ype":"F32",',
        "shape": '"shape":[2],',
        "offsets": '"data_offsets":[0,4],',
    }
    for kind, field in fields.items():
        text = entry().replace("{", "{" + field)
        yield Crafted(f"duplicate-field-{kind}", "duplicate-field", "a field twice", _sound(text))
    for kind, pair in (
        ("same", '"k":"v","k":"v"'),
        ("other", '"format":"pt","format":"tf"'),
        ("escaped", '"k":"v","\\u006b":"v"'),
    ):
        text = f'"__metadata__":{{{pair}}}'
        yield Crafted(f"duplicate-key-{kind}", "duplicate-metadata-key", "a key twice", _sound(text, entry()))


def _metadata() -> Iterator[Crafted]:
    for value in ("null", "1", "true", '"x"', "[]", '["k","v"]'):
        text = f'"__metadata__":{value}'
        name = f"metadata-{value}".replace('"', "").replace(",", "-")
        yield Crafted(name, "metadata-type", f"__metadata__ is {value}", _sound(text, entry()))
    for value in ("null", "1", "1.5", "true", "[]", '{"x":"y"}', "-0"):
        text = f'"__metadata__":{{"k":{value}}}'
        name = f"metadata-value-{value}".replace('"', "").replace(":", "-")
        yield Crafted(name, "metadata-value", f"a metadata value is {value}", _sound(text, entry()))


def _entries() -> Iterator[Crafted]:
    for value in ("null", "4", "true", '"F32"', "[]", '["F32",[1],[0,4]]', "1.5"):
        name = f"entry-{value}".replace('"', "").replace(",", "-")
        yield Crafted(name, "entry-type", f"an entry is {value}", _sound(f'"a":{value}'))
    fields = {"dtype": '"dtype":"F32"', "shape": '"shape":[1]', "data_offsets": '"data_offsets":[0,4]'}
    for missing in fields:
        text = '"a":{' + ",".join(part for field, part in fields.items() if field != missing) + "}"
        yield Crafted(f"entry-no-{missing}", "entry-field-missing", f"no {missing}", _sound(text))
    yield Crafted("entry-empty", "entry-field-missing", "an entry is {}", _sound('"a":{}'))
    for extra in ('"x":1', '"strides":[1]', '"Dtype":"F32"', '"dtype ":"F32"', '"":null', '"x":[[]]'):
        text = entry().replace("{", "{" + extra + ",")
        name = "entry-field-" + "".join(c for c in extra.split(":")[0] if c.isalpha() or c == " ").replace(" ", "_")
        yield Crafted(name + str(len(extra)), "entry-field-unknown", f"a field {extra}", _sound(text))
    yield Crafted(
        "metadata-wrong-case", "entry-field-unknown", "__Metadata__", _sound('"__Metadata__":{"format":"pt"}', entry())
    )
    for code in (
        "f32",
        "float32",
        "F32 ",
        "F32\0",
        "<f4",
        "C128",
        "Q4_0",
        "F8",
        "",
        "BFLOAT16",
        17,
        True,
        None,
        ["F32"],
        {"F32": None},
    ):
        name = "".join(c if c.isalnum() or c in "_." else f"-{ord(c):x}" for c in str(code))
        yield Crafted(f"dtype-{name}", "dtype-unknown", f"dtype {code!r}", _sound(entry(dtype=code)))


def _numbers() -> Iterator[Crafted]:
    odd = (
        "-1",
        "-0",
        "1.0",
        "0.5",
        "1e0",
        "1E+0",
        "true",
        "null",
        '"1"',
        "[1]",
        "{}",
        "NaN",
        "Infinity",
        "-Infinity",
        "1" * 400,
        str(2**64),
    )
    for value in odd:
        name = "".join(c for c in value if c.isalnum() or c in "-.+[{")[:24]
        yield Crafted(f"dimension-{name}", "dimension", f"dimension {value[:24]}", _sound(entry(shape=f"[{value}]")))
        yield Crafted(f"offset-{name}", "offset", f"end {value[:24]}", _sound(entry(offsets=f"[0,{value}]")))
    yield Crafted(
        "offset-both", "offset", "U8 at [false, true]", _sound(entry(dtype="U8", offsets="[false,true]"), data=b"x")
    )
    yield Crafted("offset-begin-2-to-64", "offset", "begin 2^64", _sound(entry(offsets=f"[{2**64},{2**64 + 4}]")))
    for value in ("1", "null", "true", '"1"', "{}"):
        name = value.replace('"', "q")
        yield Crafted(f"shape-{name}", "shape-type", f"shape {value}", _sound(entry(shape=value)))
        yield Crafted(f"offsets-{name}", "offsets-type", f"data_offsets {value}", _sound(entry(offsets=value)))
    for value in ("[]", "[0]", "[0,4,4]", "[[0,4]]"):
        yield Crafted(f"offsets-{value}", "offsets-type", f"data_offsets {value}", _sound(entry(offsets=value)))


def _sizes() -> Iterator[Crafted]:
    big = 2**40
    for dims in (
        [big, big],
        [0, big, big],
        [big, 0, big],
        [big, big, 0],
        [2**32, 2**32],
        [2**63],
        [2**64 - 1],
        [2**31, 2**31, 4],
    ):
        name = "x".join(f"{size:x}" for size in dims)
        text = entry(shape=json.dumps(dims), offsets="[0,0]")
        yield Crafted(f"overflow-{name}", "shape-overflow", f"shape {dims}", _sound(text, data=b""))
    sizes: dict[str, tuple[str, str, str]] = {
        "shape-too-big": ("F32", "[2]", "[0,4]"),
        "shape-too-small": ("F32", "[1]", "[0,8]"),
        "scalar-empty": ("F32", "[]", "[0,0]"),
        "scalar-two": ("F32", "[]", "[0,8]"),
        "zero-with-bytes": ("F32", "[0]", "[0,4]"),
        "one-without": ("F32", "[1]", "[0,0]"),
        "one-byte-short": ("F32", "[1]", "[0,3]"),
        "wider-dtype": ("F64", "[1]", "[0,4]"),
        "f4-in-bytes": ("F4", "[2]", "[0,2]"),
        "f6-in-bytes": ("F6_E2M3", "[4]", "[0,4]"),
        "huge": ("U8", f"[{2**62}]", "[0,4]"),
    }
    for name, (dtype, shape, offsets) in sizes.items():
        data = _DATA[: json.loads(offsets)[1]]
        yield Crafted(
            f"size-{name}",
            "size-mismatch",
            f"{dtype} {shape} at {offsets}",
            _sound(entry("a", dtype, shape, offsets), data=data),
        )
    for dtype, shape in (
        ("F4", "[1]"),
        ("F4", "[3]"),
        ("F4", "[]"),
        ("F6_E2M3", "[1]"),
        ("F6_E3M2", "[2]"),
        ("F6_E3M2", "[3]"),
    ):
        text = entry("a", dtype, shape, "[0,1]")
        name = shape.strip("[]") or "scalar"
        yield Crafted(f"partial-{dtype}-{name}", "size-partial-byte", f"{dtype} {shape}", _sound(text, data=b"x"))
    for name, offsets in (("", "[4,0]"), ("-max", f"[{2**64 - 1},0]")):
        text = entry(shape="[0]", offsets=offsets)
        yield Crafted(f"reversed{name}", "offsets-reversed", f"data_offsets {offsets}", _sound(text))


def _layouts() -> Iterator[Crafted]:
    def two(first: tuple[int, int], second: tuple[int, int], nbytes: int) -> bytes:
        entries = [
            entry(name, "U8", f"[{end - begin}]", f"[{begin},{end}]")
            for name, (begin, end) in (("a", first), ("b", second))
        ]
        return _sound(*entries, data=_DATA[:nbytes])

    yield Crafted("hole-first", "layout-hole", "bytes in front", two((1, 2), (2, 4), 4))
    yield Crafted("hole-between", "layout-hole", "bytes between", two((0, 2), (3, 4), 4))
    yield Crafted("hole-zero-past", "layout-hole", "an empty tensor beyond", two((0, 4), (9, 9), 9))
    yield Crafted("overlap-same", "layout-overlap", "one range twice", two((0, 4), (0, 4), 4))
    yield Crafted("overlap-inside", "layout-overlap", "one inside the other", two((0, 8), (4, 8), 8))
    yield Crafted("overlap-one-byte", "layout-overlap", "one byte shared", two((0, 4), (3, 8), 8))
    yield Crafted("overlap-zero-inside", "layout-overlap", "an empty tensor inside", two((0, 4), (2, 2), 4))
    yield Crafted("short-one-byte", "data-short", "the last byte missing", two((0, 4), (4, 8), 7))
    yield Crafted("short-all", "data-short", "no data", two((0, 4), (4, 8), 0))
    yield Crafted("short-far", "data-short", "a range far beyond", _sound(entry("a", "U8", "[400]", "[0,400]")))
    many = [entry(f"t{i}", "U8", "[1]", "[0,1]") for i in range(200)]
    yield Crafted("overlap-many", "layout-overlap", "200 tensors on one byte", _sound(*many, data=b"x"))
    for tail in (b"x", b"\n", b"PK\x05\x06" + bytes(18), bytes(4096)):
        yield Crafted(f"trailing-{len(tail)}-{tail[:1].hex()}", "data-trailing", "bytes at the end", _sound() + tail)
    yield Crafted("trailing-no-tensors", "data-trailing", "no tensor, four bytes", frame("{}", _DATA[:4]))


def _allowed() -> Iterator[Crafted]:
    for code, dtype in DTYPES.items():
        text = entry("a", code, "[8]", f"[0,{dtype.bits}]")
        data = bytes(i % 2 for i in range(dtype.bits)) if code == "BOOL" else _DATA[: dtype.bits]
        yield Crafted(f"dtype-{code}", None, f"8 elements of {code}", _sound(text, data=data))
    sound = "{" + entry() + "}"
    texts = {
        "empty": ("{}", 0),
        "padded": (sound + " " * 7, 4),
        "padded-page": (sound.ljust(4088), 4),
        "pretty": (json.dumps(json.loads(sound), indent=2).replace("\n", "\r\n"), 4),
        "fields-reordered": ('{"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}', 4),
        "scalar": ("{" + entry(shape="[]") + "}", 4),
        "zero": ("{" + entry(shape="[0]", offsets="[0,0]") + "}", 0),
        "zero-with-big": ("{" + entry(shape=f"[0,{2**62}]", offsets="[0,0]") + "}", 0),
        "zero-between": (
            "{" + ",".join((entry(), entry("z", "F32", "[0]", "[4,4]"), entry("b", offsets="[4,8]"))) + "}",
            8,
        ),
        "rank-32": ("{" + entry(shape=str([1] * 32)) + "}", 4),
        "unsorted": ("{" + entry("b", offsets="[4,8]") + "," + entry() + "}", 8),
        "metadata-last": ("{" + entry() + ',"__metadata__":{"format":"pt"}}', 4),
        "metadata-escaped-name": ('{"__metadat\\u0061__":{"k":"v"},' + entry() + "}", 4),
        "metadata-empty": ('{"__metadata__":{},' + entry() + "}", 4),
        "dtype-escaped": (sound.replace('"F32"', '"\\u0046\\u0033\\u0032"'), 4),
        "f4-odd-axis": ("{" + entry("a", "F4", "[2,1]", "[0,1]") + "}", 1),
    }
    for name, (text, nbytes) in texts.items():
        yield Crafted(f"fine-{name}", None, "allowed", frame(text, _DATA[:nbytes]))
    names = {
        "empty": "",
        "spaces": "   ",
        "newline": "a\\nb",
        "nul": "a\\u0000b",
        "html": "<img src=x onerror=alert(1)>",
        "path": "../../etc/passwd",
        "dunder": "__class__",
        "percent": "%s%n{0}",
        "cjk": "日本語",
        "emoji": "🙂",
        "emoji-escaped": "\\ud83d\\ude42",
        "ansi": "\\u001b[31m",
        "bidi": "\u202eabc",
        "long": "x" * 3000,
        "metadata-space": "__metadata__ ",
    }
    for kind, name in names.items():
        yield Crafted(f"name-{kind}", None, "an odd name", _sound(entry(name)))
