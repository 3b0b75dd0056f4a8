"""Crafted files whose header is JSON and whose entries are wrong, or odd and allowed: a part of the ``battery``."""

import json
from collections.abc import Iterator

from labkit.storage.crafted import DATA, Crafted, entry, file_of, frame
from labkit.storage.dtypes import DTYPES


def duplicates() -> Iterator[Crafted]:
    """Names, fields and metadata keys that stand twice."""
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
        data = DATA[:8] if kind == "apart" else DATA[:4]
        yield Crafted(f"duplicate-{kind}", "duplicate-name", "a name twice", file_of(*entries, data=data))
    fields = {
        "same": '"dtype":"F32",',
        "other": '"dtype":"I32",',
        "escaped": '"d\\u0074ype":"F32",',
        "shape": '"shape":[2],',
        "offsets": '"data_offsets":[0,4],',
    }
    for kind, field in fields.items():
        text = entry().replace("{", "{" + field)
        yield Crafted(f"duplicate-field-{kind}", "duplicate-field", "a field twice", file_of(text))
    for kind, pair in (
        ("same", '"k":"v","k":"v"'),
        ("other", '"format":"pt","format":"tf"'),
        ("escaped", '"k":"v","\\u006b":"v"'),
    ):
        text = f'"__metadata__":{{{pair}}}'
        yield Crafted(f"duplicate-key-{kind}", "duplicate-metadata-key", "a key twice", file_of(text, entry()))


def metadata() -> Iterator[Crafted]:
    """Metadata of the wrong type."""
    for value in ("null", "1", "true", '"x"', "[]", '["k","v"]'):
        text = f'"__metadata__":{value}'
        name = f"metadata-{value}".replace('"', "").replace(",", "-")
        yield Crafted(name, "metadata-type", f"__metadata__ is {value}", file_of(text, entry()))
    for value in ("null", "1", "1.5", "true", "[]", '{"x":"y"}', "-0"):
        text = f'"__metadata__":{{"k":{value}}}'
        name = f"metadata-value-{value}".replace('"', "").replace(":", "-")
        yield Crafted(name, "metadata-value", f"a metadata value is {value}", file_of(text, entry()))


def entries() -> Iterator[Crafted]:
    """Entries and dtypes of the wrong type, with missing and unknown fields."""
    for value in ("null", "4", "true", '"F32"', "[]", '["F32",[1],[0,4]]', "1.5"):
        name = f"entry-{value}".replace('"', "").replace(",", "-")
        yield Crafted(name, "entry-type", f"an entry is {value}", file_of(f'"a":{value}'))
    fields = {"dtype": '"dtype":"F32"', "shape": '"shape":[1]', "data_offsets": '"data_offsets":[0,4]'}
    for missing in fields:
        text = '"a":{' + ",".join(part for field, part in fields.items() if field != missing) + "}"
        yield Crafted(f"entry-no-{missing}", "entry-field-missing", f"no {missing}", file_of(text))
    yield Crafted("entry-empty", "entry-field-missing", "an entry is {}", file_of('"a":{}'))
    for extra in ('"x":1', '"strides":[1]', '"Dtype":"F32"', '"dtype ":"F32"', '"":null', '"x":[[]]'):
        text = entry().replace("{", "{" + extra + ",")
        name = "entry-field-" + "".join(c for c in extra.split(":")[0] if c.isalpha() or c == " ").replace(" ", "_")
        yield Crafted(name + str(len(extra)), "entry-field-unknown", f"a field {extra}", file_of(text))
    yield Crafted(
        "metadata-wrong-case", "entry-field-unknown", "__Metadata__", file_of('"__Metadata__":{"format":"pt"}', entry())
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
        yield Crafted(f"dtype-{name}", "dtype-unknown", f"dtype {code!r}", file_of(entry(dtype=code)))


def numbers() -> Iterator[Crafted]:
    """Dimensions and offsets that are not plain whole numbers."""
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
        yield Crafted(f"dimension-{name}", "dimension", f"dimension {value[:24]}", file_of(entry(shape=f"[{value}]")))
        yield Crafted(f"offset-{name}", "offset", f"end {value[:24]}", file_of(entry(offsets=f"[0,{value}]")))
    yield Crafted(
        "offset-both", "offset", "U8 at [false, true]", file_of(entry(dtype="U8", offsets="[false,true]"), data=b"x")
    )
    yield Crafted("offset-begin-2-to-64", "offset", "begin 2^64", file_of(entry(offsets=f"[{2**64},{2**64 + 4}]")))
    for value in ("1", "null", "true", '"1"', "{}"):
        name = value.replace('"', "q")
        yield Crafted(f"shape-{name}", "shape-type", f"shape {value}", file_of(entry(shape=value)))
        yield Crafted(f"offsets-{name}", "offsets-type", f"data_offsets {value}", file_of(entry(offsets=value)))
    for value in ("[]", "[0]", "[0,4,4]", "[[0,4]]"):
        yield Crafted(f"offsets-{value}", "offsets-type", f"data_offsets {value}", file_of(entry(offsets=value)))


def sizes() -> Iterator[Crafted]:
    """Byte ranges that are not dtype times shape."""
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
        yield Crafted(f"overflow-{name}", "shape-overflow", f"shape {dims}", file_of(text, data=b""))
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
        data = DATA[: json.loads(offsets)[1]]
        yield Crafted(
            f"size-{name}",
            "size-mismatch",
            f"{dtype} {shape} at {offsets}",
            file_of(entry("a", dtype, shape, offsets), data=data),
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
        yield Crafted(f"partial-{dtype}-{name}", "size-partial-byte", f"{dtype} {shape}", file_of(text, data=b"x"))
    for name, offsets in (("", "[4,0]"), ("-max", f"[{2**64 - 1},0]")):
        text = entry(shape="[0]", offsets=offsets)
        yield Crafted(f"reversed{name}", "offsets-reversed", f"data_offsets {offsets}", file_of(text))


def layouts() -> Iterator[Crafted]:
    """Ranges that leave holes, overlap, or do not fit the file."""

    def two(first: tuple[int, int], second: tuple[int, int], nbytes: int) -> bytes:
        entries = [
            entry(name, "U8", f"[{end - begin}]", f"[{begin},{end}]")
            for name, (begin, end) in (("a", first), ("b", second))
        ]
        return file_of(*entries, data=DATA[:nbytes])

    yield Crafted("hole-first", "layout-hole", "bytes in front", two((1, 2), (2, 4), 4))
    yield Crafted("hole-between", "layout-hole", "bytes between", two((0, 2), (3, 4), 4))
    yield Crafted("hole-zero-past", "layout-hole", "an empty tensor beyond", two((0, 4), (9, 9), 9))
    yield Crafted("overlap-same", "layout-overlap", "one range twice", two((0, 4), (0, 4), 4))
    yield Crafted("overlap-inside", "layout-overlap", "one inside the other", two((0, 8), (4, 8), 8))
    yield Crafted("overlap-one-byte", "layout-overlap", "one byte shared", two((0, 4), (3, 8), 8))
    yield Crafted("overlap-zero-inside", "layout-overlap", "an empty tensor inside", two((0, 4), (2, 2), 4))
    yield Crafted("short-one-byte", "data-short", "the last byte missing", two((0, 4), (4, 8), 7))
    yield Crafted("short-all", "data-short", "no data", two((0, 4), (4, 8), 0))
    yield Crafted("short-far", "data-short", "a range far beyond", file_of(entry("a", "U8", "[400]", "[0,400]")))
    many = [entry(f"t{i}", "U8", "[1]", "[0,1]") for i in range(200)]
    yield Crafted("overlap-many", "layout-overlap", "200 tensors on one byte", file_of(*many, data=b"x"))
    for tail in (b"x", b"\n", b"PK\x05\x06" + bytes(18), bytes(4096)):
        yield Crafted(f"trailing-{len(tail)}-{tail[:1].hex()}", "data-trailing", "bytes at the end", file_of() + tail)
    yield Crafted("trailing-no-tensors", "data-trailing", "no tensor, four bytes", frame("{}", DATA[:4]))


def allowed() -> Iterator[Crafted]:
    """Everything that is odd and allowed."""
    for code, dtype in DTYPES.items():
        text = entry("a", code, "[8]", f"[0,{dtype.bits}]")
        data = bytes(i % 2 for i in range(dtype.bits)) if code == "BOOL" else DATA[: dtype.bits]
        yield Crafted(f"dtype-{code}", None, f"8 elements of {code}", file_of(text, data=data))
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
        yield Crafted(f"fine-{name}", None, "allowed", frame(text, DATA[:nbytes]))
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
        yield Crafted(f"name-{kind}", None, "an odd name", file_of(entry(name)))
