"""What a file really is, when it is not safetensors: a Git LFS pointer, a web page, a pickle, GGUF, and so on.

In: the first bytes of a file that failed the format's first checks. Out: what to call it and what to do about it.
"""

from dataclasses import dataclass

HEAD_NBYTES = 512
"""Bytes of the file that are enough to recognise every kind below."""


@dataclass(frozen=True, kw_only=True)
class Disguise:
    """A kind of file that is often found in place of a safetensors file."""

    code: str
    what: str
    fix: str


_MAGICS: tuple[tuple[bytes, Disguise], ...] = (
    (
        b"version https://git-lfs",
        Disguise(
            code="is-lfs-pointer",
            what="this is a Git LFS pointer, not the file it stands for",
            fix="run `git lfs pull` in the repository, or download the file itself",
        ),
    ),
    (
        b"GGUF",
        Disguise(code="is-gguf", what="this is a GGUF file", fix="use the original checkpoint's model.safetensors"),
    ),
    (
        b"\x1f\x8b",
        Disguise(code="is-gzip", what="this is gzip-compressed", fix="decompress it first (gunzip)"),
    ),
    (
        b"PK\x03\x04",
        Disguise(
            code="is-zip",
            what="this is a ZIP archive (torch.save and numpy.savez write those)",
            fix="convert it to safetensors first; loading a torch.save file can run code",
        ),
    ),
    (
        b"\x80",
        Disguise(
            code="is-pickle",
            what="this is a Python pickle (an old torch.save file)",
            fix="convert it to safetensors first; loading a pickle can run code",
        ),
    ),
    (b"\x93NUMPY", Disguise(code="is-npy", what="this is a NumPy .npy file", fix="save it as safetensors first")),
    (b"\x89HDF\r\n", Disguise(code="is-hdf5", what="this is an HDF5 file (Keras weights)", fix="convert it first")),
    (b"\x28\xb5\x2f\xfd", Disguise(code="is-zstd", what="this is zstd-compressed", fix="decompress it first (unzstd)")),
)

_HTML = Disguise(
    code="is-html",
    what="this is a web page (an error or login page saved under the file's name)",
    fix="download again; the address or the login was wrong",
)
_JSON = Disguise(
    code="is-json",
    what="this is a JSON text without the 8-byte length in front (an index or a config?)",
    fix="give the .safetensors file, or the folder that holds the index",
)


def recognise(head: bytes) -> Disguise | None:
    """The kind of file that starts with ``head``, or None where it is no known one.

    >>> recognise(b"version https://git-lfs.github.com/spec/v1\\n").code
    'is-lfs-pointer'
    >>> recognise(b"\\x70\\0\\0\\0\\0\\0\\0\\0{") is None
    True
    """
    for magic, disguise in _MAGICS:
        if head.startswith(magic) and (magic != b"\x80" or _starts_a_pickle(head)):
            return disguise
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<!--")):
        return _HTML
    return _JSON if text.startswith((b'{"', b"{\n", b"{ ", b"{\r", b"{}")) else None


def _starts_a_pickle(head: bytes) -> bool:
    """Protocol 2 to 5, then an opcode: a safetensors prefix with these two bytes holds zeros from its fifth byte on."""
    return len(head) > 2 and head[1] in (2, 3, 4, 5) and head[4:8] != b"\0\0\0\0"
