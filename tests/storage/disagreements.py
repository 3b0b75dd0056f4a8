"""Where labkit refuses what the official reader (safetensors 0.8.0) accepts: the whole list, with a witness for each.

docs/storage.md says why. There is no entry the other way round: labkit accepts nothing that the official reader refuses.
"""

import re

from labkit.errors import FormatError
from labkit.storage.crafted import entry, frame

DATA = bytes(4)
BIG = 2**40

WITNESSES: dict[str, bytes] = {
    "leading white space": frame(" {" + entry() + "}", DATA),
    "a name twice": frame("{" + entry() + "," + entry(dtype="I32") + "}", DATA),
    "a metadata key twice": frame('{"__metadata__":{"k":"v","k":"w"},' + entry() + "}", DATA),
    "an unknown field": frame("{" + entry().replace("{", '{"x":[[[1]]],') + "}", DATA),
    "an unknown field twice": frame("{" + entry().replace("{", '{"x":1,"x":2,') + "}", DATA),
    "an entry as a list": frame('{"a":["F32",[1],[0,4]]}', DATA),
    "a dtype as an object": frame("{" + entry(dtype={"F32": None}) + "}", DATA),
    "metadata null": frame('{"__metadata__":null,' + entry() + "}", DATA),
    "an empty tensor that no array can have": frame("{" + entry(shape=f"[0,{BIG},{BIG}]", offsets="[0,0]") + "}"),
}
"""A file for each disagreement: refused here, accepted there."""

_ALLOWED: dict[str, tuple[str, str]] = {
    "leading white space": ("header-first-byte", "white-space bytes before the '{'"),
    "a name twice": ("duplicate-name", "the name stands twice"),
    "a metadata key twice": ("duplicate-metadata-key", ""),
    "an unknown field": ("entry-field-unknown", ""),
    "an unknown field that nests": ("header-depth", ""),
    "an unknown field twice": ("duplicate-field", r"the field '(?!(dtype|shape|data_offsets)' )"),
    "an entry as a list": ("entry-type", "got a list of 3"),
    "a dtype as an object": ("dtype-unknown", "got an object"),
    "metadata null": ("metadata-type", "got null"),
    "an empty tensor that no array can have": ("shape-overflow", r"got \[.*\b0\b"),
}


def is_listed(defect: FormatError) -> bool:
    """Whether a defect that the official reader does not mind is in the list."""
    return any(code == defect.code and re.search(pattern, str(defect)) for code, pattern in _ALLOWED.values())
