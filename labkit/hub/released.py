"""The hashes of GPT-2 small's released files, and hashing in the two ways the hub names a file's content."""

import hashlib
from pathlib import Path

RELEASED_REPOSITORIES = ("openai-community/gpt2", "gpt2")
"""Names under which the hub has OpenAI's GPT-2 small."""

RELEASED_SHA256 = {
    "model.safetensors": "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
"""SHA-256 of the released files."""

RELEASED_NBYTES = 548_105_171
"""Bytes of the released model.safetensors."""

_CHUNK_NBYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    return _digest(path, hashlib.sha256())


def git_blob_of(path: Path) -> str:
    """The name git gives a file's content, which the hub states for small files."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    return _digest(path, digest)


def _digest(path: Path, digest: "hashlib._Hash") -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_NBYTES):
            digest.update(chunk)
    return digest.hexdigest()
