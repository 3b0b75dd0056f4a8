"""Special tokens in Hugging Face's meaning and in tiktoken's, against both."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken as PeerToken
from tokenizers import Tokenizer as Peer

from labkit.errors import TextError, UnknownNameError
from labkit.tokenizer import Tokenizer
from tests.oracles.peer_tokenizers import tiktoken_gpt2

END = "<|endoftext|>"
TEXTS = [
    f"a{END}b",
    f"a {END} b",
    f"a   {END}",
    f"{END}{END}",
    f"{END[:-1]}{END}",
    f"x\n\n{END}\n",
    f"'s{END}'s",
    "no special",
    "",
    END,
]


@pytest.mark.parametrize("text", TEXTS)
def test_tiktokens_meaning(gpt2: Tokenizer, text: str) -> None:
    peer = tiktoken_gpt2()
    assert gpt2.encode(text) == peer.encode_ordinary(text)
    assert gpt2.encode(text, special_tokens={END}) == peer.encode(text, allowed_special={END})
    assert gpt2.encode_array(text, special_tokens={END}).tolist() == peer.encode(text, allowed_special={END})
    if END in text:
        with pytest.raises(ValueError, match="disallowed special token"):
            peer.encode(text)
        for refused in ("tiktoken", (), frozenset[str]()):
            with pytest.raises(TextError, match=r"character \d+: the text holds the special token '<\|endoftext\|>'"):
                gpt2.encode(text, special_tokens=refused)
    else:
        assert gpt2.encode(text, special_tokens="tiktoken") == peer.encode(text)


@pytest.fixture(scope="module")
def saved(gpt2: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    """GPT-2 as tokenizers reads it from the file that we save."""
    folder = tmp_path_factory.mktemp("gpt2")
    gpt2.save(folder)
    return Peer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_hugging_faces_meaning(gpt2: Tokenizer, saved: Peer, text: str) -> None:
    peer = saved
    assert gpt2.encode(text, special_tokens="huggingface") == peer.encode(text).ids
    encoding = gpt2.explain(text, special_tokens="huggingface")
    assert encoding.ids == peer.encode(text).ids
    assert b"".join(token.data for token in encoding.tokens).decode() == text


def test_a_space_before_a_special_token_stays_alone(gpt2: Tokenizer) -> None:
    assert gpt2.encode(f"a {END}", special_tokens="huggingface") == [64, 220, 50256]
    tokens = gpt2.explain(f"a {END}é", special_tokens="huggingface").tokens
    assert [(token.start, token.end) for token in tokens] == [(0, 1), (1, 2), (2, 15), (15, 16)]
    assert [token.piece for token in tokens] == [0, 1, None, 2]


def test_unknown_names_are_an_error(gpt2: Tokenizer) -> None:
    with pytest.raises(
        UnknownNameError, match=r"no special token named '<\|endoftxt\|>'; did you mean '<\|endoftext\|>'"
    ):
        gpt2.encode("a", special_tokens={"<|endoftxt|>"})


def test_added_tokens_with_flags_against_tokenizers(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    """Overlapping names, white space taken on either side, tokens that are not special, those found late."""
    merges = [("h", "e"), ("Ġ", "t"), ("a", "b")]
    base = Tokenizer.from_folder(make_folder(merges, specials=()))
    base.save(tmp_path / "flags")
    file = tmp_path / "flags" / "tokenizer.json"
    peer = Peer.from_file(str(file))
    peer.add_special_tokens([PeerToken("<a>", lstrip=True), PeerToken("<b>", rstrip=True), PeerToken("<a><b>")])
    peer.add_tokens([PeerToken("the", normalized=True), PeerToken("ab", normalized=False), PeerToken("he llo")])
    peer.save(str(file))
    tokenizer = Tokenizer.from_folder(tmp_path / "flags")
    source = random.Random(4)
    parts = ["<a>", "<b>", "<a><b>", "abab", "ab", "a", "b", " ", "  ", "\n", "\u3000", "he", " llo", "the", "<", "é"]
    found = set()
    for _ in range(2000):
        text = "".join(source.choices(parts, k=source.randrange(1, 9)))
        expected = peer.encode(text).ids
        found.update(expected)
        assert tokenizer.encode(text, special_tokens="huggingface") == expected, text
        assert tokenizer.explain(text, special_tokens="huggingface").ids == expected, text
    assert found.issuperset(token.id for token in tokenizer.added_tokens)
    assert set(tokenizer.special_tokens) == {"<a>", "<b>", "<a><b>"}


def test_saved_flags_come_back(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    Tokenizer.from_folder(make_folder([("h", "e")])).save(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.json"
    fields = json.loads(file.read_text("utf-8"))
    fields["added_tokens"][0] |= {"lstrip": True, "normalized": True}
    file.write_text(json.dumps(fields), encoding="utf-8")
    tokenizer = Tokenizer.from_folder(tmp_path / "saved")
    tokenizer.save(tmp_path / "again")
    assert Tokenizer.from_folder(tmp_path / "again").added_tokens == tokenizer.added_tokens
    assert tokenizer.added_tokens[0].lstrip


def test_white_space_taken_by_a_token_is_not_cut_off_in_a_file(
    make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit.tokenizer import encode_file

    monkeypatch.setattr(encode_file, "CHUNK", 23)
    Tokenizer.from_folder(make_folder([("h", "e")])).save(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.json"
    fields = json.loads(file.read_text("utf-8"))
    fields["added_tokens"][0] |= {"rstrip": True, "lstrip": True}
    file.write_text(json.dumps(fields), encoding="utf-8")
    tokenizer = Tokenizer.from_folder(tmp_path / "saved")
    text = "".join(f"{'w' * n} {END} he " for n in range(40))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    tokenizer.encode_file(tmp_path / "text.txt", tmp_path / "ids.npy", special_tokens="huggingface")
    assert np.load(tmp_path / "ids.npy").tolist() == tokenizer.encode(text, special_tokens="huggingface")
