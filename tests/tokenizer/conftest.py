"""GPT-2's tokenizer, once for the whole room, and a maker of small vocabularies."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.tokenizer import SYMBOL_OF_BYTE, Tokenizer

MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    return Tokenizer.gpt2()


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Write vocab.json and merges.txt for a list of merges in symbols; everything can be overridden."""

    def make(
        merges: list[tuple[str, str]],
        *,
        names: dict[str, object] | None = None,
        specials: tuple[str, ...] = ("<|endoftext|>",),
        merges_text: str | bytes | None = None,
        name: str = "vocabulary",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        words = [*SYMBOL_OF_BYTE, *(a + b for a, b in merges), *specials]
        fields = names if names is not None else {word: i for i, word in enumerate(dict.fromkeys(words))}
        (folder / "vocab.json").write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
        text = merges_text if merges_text is not None else "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)
        (folder / "merges.txt").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return folder

    return make
