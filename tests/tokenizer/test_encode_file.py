"""Files of ids: the same as encoding at once, whole or not there, in bounded memory."""

import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from labkit.errors import ArgumentError, FileAccessError, MissingFileError, TextError
from labkit.tokenizer import Tokenizer, encode_file
from tests.tokenizer.texts import random_texts

END = "<|endoftext|>"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_file, "CHUNK", 97)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("special", ["plain", "huggingface"])
def test_the_same_ids_as_at_once(gpt2: Tokenizer, tmp_path: Path, special: str) -> None:
    text = "".join(random_texts(31, 400)) + "日本語" * 200 + f"{END} {END}x" * 50 + "y" * 500 + "  \n " * 80
    source = tmp_path / "text.txt"
    source.write_text(text, encoding="utf-8", newline="")
    expected = gpt2.encode(text, special_tokens=special)  # type: ignore[arg-type]
    seen: list[tuple[int, int]] = []
    for name in ("ids.npy", "ids.safetensors"):
        result = gpt2.encode_file(
            source,
            tmp_path / name,
            special_tokens=special,  # type: ignore[arg-type]
            progress=lambda done, total: seen.append((done, total)),
        )
        assert result.tokens == len(expected)
        assert result.source_bytes == len(text.encode("utf-8"))
        assert result.dtype == "uint16"
    ids = np.load(tmp_path / "ids.npy", allow_pickle=False)
    assert ids.dtype == np.uint16
    assert ids.tolist() == expected
    assert load_file(tmp_path / "ids.safetensors")["ids"].tolist() == expected
    assert seen[-1] == (len(text.encode("utf-8")),) * 2
    assert len(seen) > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.npy", "ids.safetensors", "text.txt"]


def test_an_empty_file(gpt2: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    assert gpt2.encode_file(tmp_path / "empty.txt", tmp_path / "ids.npy").tokens == 0
    assert np.load(tmp_path / "ids.npy").shape == (0,)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("good", [b"", b"a" * 96, b"a" * 300, "日".encode() * 70])
@pytest.mark.parametrize("bad", [b"\xff", b"\xe6\x97", b"\xe6\x97a", b"\xf0\x9f\x98"])
def test_bytes_that_are_no_text_are_placed(gpt2: Tokenizer, tmp_path: Path, good: bytes, bad: bytes) -> None:
    (tmp_path / "text.txt").write_bytes(good + bad)
    target = tmp_path / "ids.npy"
    target.write_bytes(b"as before")
    with pytest.raises(TextError, match=rf"text\.txt, byte {len(good)}: is not UTF-8 \(got {bad[0]:#x}\)"):
        gpt2.encode_file(tmp_path / "text.txt", target)
    assert target.read_bytes() == b"as before"
    assert len(list(tmp_path.iterdir())) == 2


def test_bad_paths(gpt2: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a")
    with pytest.raises(MissingFileError, match=r"nowhere\.txt: there is no such file"):
        gpt2.encode_file(tmp_path / "nowhere.txt", tmp_path / "ids.npy")
    with pytest.raises(MissingFileError, match="no folder: no such folder; make it first"):
        gpt2.encode_file(tmp_path / "text.txt", tmp_path / "no folder" / "ids.npy")
    with pytest.raises(ArgumentError, match=r"the target's kind is unknown \(expected \.npy or \.safetensors"):
        gpt2.encode_file(tmp_path / "text.txt", tmp_path / "ids.bin")
    with pytest.raises(FileAccessError, match="it is a folder"):
        gpt2.encode_file(tmp_path, tmp_path / "ids.npy")


def test_memory_is_bounded(gpt2: Tokenizer, tmp_path: Path) -> None:
    """Eight times the text takes hardly more memory."""
    text = "".join(random_texts(32, 5_000))
    gpt2.encode_array(text)
    peaks = []
    for times in (8, 64):
        source = tmp_path / f"{times}.txt"
        source.write_text(text * times, encoding="utf-8", newline="")
        tracemalloc.start()
        gpt2.encode_file(source, tmp_path / "ids.npy")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0] + 1_000_000


def test_no_cut_falls_into_a_special_token(gpt2: Tokenizer) -> None:
    added = gpt2.added_tokens
    for length in range(40):
        text = "word " * 3 + "x" * length + END + "tail"
        cut = encode_file.safe_cut(text, added)
        assert not 15 + length < cut <= 15 + length + len(END)
    blocks = encode_file.read_blocks(io.BytesIO(b"a b c"), Path("memory"), added)
    assert "".join(text for text, _ in blocks) == "a b c"
