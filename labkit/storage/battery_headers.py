"""Crafted files whose prefix or header text is wrong: a part of the ``battery``."""

from collections.abc import Iterator

from labkit.storage.crafted import DATA, Crafted, entry, file_of, frame
from labkit.storage.rules import HEADER_CAP_NBYTES


def prefixes() -> Iterator[Crafted]:
    """The first eight bytes: too few, zero, lies of every size."""
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
        yield Crafted(f"length-{name}", code, f"length {length}", frame(text, DATA[:4], length=length))
    yield Crafted("length-zero-alone", "header-empty", "eight zero bytes", bytes(8))
    yield Crafted(
        "length-counts-itself", "header-utf8", "length 8 too long", frame(text, b"\xff" * 8, length=nbytes + 8)
    )


def disguises() -> Iterator[Crafted]:
    """Other kinds of file under the name."""
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


def header_texts() -> Iterator[Crafted]:
    """Headers that are no text, or that nest, or whose first byte is wrong."""
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
        yield Crafted(f"first-{kind}", "header-first-byte", f"{first!r} in front", frame(first + sound, DATA[:4]))
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
        yield Crafted(f"utf8-{kind}", "header-utf8", f"{raw.hex(' ')} in a name", frame(text, DATA[:4]))
    yield Crafted("utf8-padding", "header-utf8", "0xa0 as padding", frame(sound + b"\xa0", DATA[:4]))
    utf16 = sound.decode().encode("utf-16-le")
    yield Crafted("utf16", "header-json", "header in UTF-16", frame(utf16, DATA[:4]))
    for levels in (5, 100, 90_000):
        text_ = '{"a":' + "[" * levels + "]" * levels + "}"
        yield Crafted(f"depth-{levels}", "header-depth", f"{levels} brackets", frame(text_))
    yield Crafted("depth-unclosed", "header-depth", "90,000 open brackets", frame('{"a":' + "[" * 90_000))
    for half in ("\\ud800", "\\udc00", "\\ud800x", "\\udc00\\ud800"):
        name = half.replace("\\", "")
        yield Crafted(f"surrogate-{name}", "text-surrogate", f"name {half}", file_of(entry(half)))
    yield Crafted(
        "surrogate-metadata", "text-surrogate", "metadata value", file_of('"__metadata__":{"k":"\\ud800"}', entry())
    )


def json_errors() -> Iterator[Crafted]:
    """Headers that are text and not JSON."""
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
        yield Crafted(f"json-{name}", "header-json", "not JSON", frame(text, DATA[:4]))
