"""labkit's reader against the official one, on valid headers with anything done to them: no disagreement but the listed."""

import json
import os
from pathlib import Path

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import FormatError
from labkit.storage.dtypes import DTYPES
from labkit.storage.exact import read_exactly
from labkit.storage.header import PREFIX_NBYTES
from tests.storage.disagreements import WITNESSES, is_listed
from tests.storage.memory import verdict

OVERWRITTEN = {"size-mismatch", "size-partial-byte", "offsets-reversed", "shape-overflow"}
"""What the official reader does not mind in the first of two entries of one name, because it keeps the last."""
EXAMPLES = 5 * int(os.environ.get("LABKIT_EXAMPLES", "100"))
PIECES = [
    *(bytes([octet]) for octet in b'{}[]:,"\\01 \n\0\xff'),
    *(b"-1", b"-0", b"1.0", b"1e0", b"true", b"null", b"NaN", b"4", b"8", b"16", b"99999999999999999999"),
    *(
        b'"dtype"',
        b'"shape"',
        b'"data_offsets"',
        b'"__metadata__"',
        b'"a"',
        b'"F32"',
        b'"BF16"',
        b'""',
        b'"\\u0061"',
        b'"\\ud800"',
    ),
    *(b"\xc3\xa9", b"[0,0]", b"{}", b"[]", b'"x":1,', b'"k":"v",'),
]


@st.composite
def valid_files(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """The header's text and the data of a valid file, in any order and with any white space that JSON allows."""
    names = draw(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=4, unique=True))
    fields: dict[str, object] = {}
    if draw(st.booleans()):
        fields["__metadata__"] = draw(
            st.dictionaries(st.sampled_from(["format", "k", "é"]), st.sampled_from(["pt", "v", ""]), max_size=2)
        )
    position = 0
    for name in names:
        if name == "__metadata__":
            continue
        code = draw(st.sampled_from(sorted(DTYPES)))
        shape = draw(st.lists(st.integers(0, 3), max_size=3)) + ([8] if DTYPES[code].packed else [])
        numel = 1
        for size in shape:
            numel *= size
        nbytes = numel * DTYPES[code].bits // 8
        fields[name] = {"dtype": code, "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    items = draw(st.permutations(list(fields.items())))
    text = json.dumps(
        dict(items), separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])), ensure_ascii=draw(st.booleans())
    )
    return text.encode() + b" " * draw(st.integers(0, 8)), bytes(position)


@st.composite
def mutated_files(draw: st.DrawFn) -> bytes:
    """A valid file with up to four things done to its header, its data or its length."""
    text, data = draw(valid_files())
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(text)))
        stop = min(len(text), place + draw(st.integers(0, 12)))
        change = draw(st.sampled_from(["insert", "replace", "delete", "repeat", "flip"]))
        piece = draw(st.sampled_from(PIECES))
        if change == "insert":
            text = text[:place] + piece + text[place:]
        elif change == "replace":
            text = text[:place] + piece + text[stop:]
        elif change == "delete":
            text = text[:place] + text[stop:]
        elif change == "repeat":
            text = text[:stop] + b"," * draw(st.integers(0, 1)) + text[place:]
        elif place < len(text):
            text = text[:place] + bytes([text[place] ^ (1 << draw(st.integers(0, 7)))]) + text[place + 1 :]
    data = data[: len(data) - draw(st.integers(0, 1))] + bytes(draw(st.integers(0, 1)))
    length = len(text) + draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1, 2**32, 2**63]))
    return (length % 2**64).to_bytes(8, "little") + text + data


@given(mutated_files())
@settings(max_examples=EXAMPLES)
def test_mutated_files(data: bytes) -> None:
    require_agreement(data)


@given(valid_files())
def test_valid_files_are_accepted_by_both(file: tuple[bytes, bytes]) -> None:
    text, data = file
    whole = len(text).to_bytes(8, "little") + text + data
    assert not isinstance(verdict(whole), FormatError)
    assert officially_accepted(whole)


@given(st.binary(max_size=64), st.binary(max_size=200))
def test_noise(head: bytes, tail: bytes) -> None:
    require_agreement(head + tail)
    require_agreement(len(head).to_bytes(8, "little") + head + tail)


@pytest.mark.parametrize("name", WITNESSES)
def test_each_disagreement_has_a_witness(name: str) -> None:
    data = WITNESSES[name]
    found = verdict(data)
    assert isinstance(found, FormatError)
    assert is_listed(found)
    assert officially_accepted(data)


def test_the_list_is_in_the_documents(root: Path) -> None:
    text = (root / "docs" / "storage.md").read_text(encoding="utf-8")
    for name in WITNESSES:
        assert f"| {name} |" in text


def require_agreement(data: bytes) -> None:
    """Both accept with the same tensors, both refuse, or we refuse for listed reasons only."""
    found = verdict(data)
    try:
        theirs = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        assert isinstance(found, FormatError), "accepted here, refused by the official reader"
        return
    if not isinstance(found, FormatError):
        ours = {name: (each.dtype, list(each.shape), each.nbytes) for name, each in found.entries.items()}
        assert ours == {name: (spec["dtype"], list(spec["shape"]), len(spec["data"])) for name, spec in theirs}
        return
    text = data[PREFIX_NBYTES:][: int.from_bytes(data[:PREFIX_NBYTES], "little")]
    defects = read_exactly(text, len(data) - PREFIX_NBYTES - len(text), "x").defects
    assert defects
    twice = any(defect.code == "duplicate-name" for defect in defects)
    unlisted = [str(defect) for defect in defects if not (is_listed(defect) or (twice and defect.code in OVERWRITTEN))]
    assert unlisted == [], "refused here, accepted by the official reader"


def officially_accepted(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True
