"""The examples that every account of GPT-2's tokenizer gives, one by one."""

import pytest

from labkit.tokenizer import SYMBOL_OF_BYTE, Tokenizer, merge, split


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, world!", [15496, 11, 995, 0]),
        ("Hello, my name is", [15496, 11, 616, 1438, 318]),
        ("today\n ", [40838, 198, 220]),
        ("DON'T", [41173, 6, 51]),
        (" 's", [705, 82]),
        ("\n's", [198, 338]),
        ("\ua7ce's", [166, 253, 236, 6, 82]),
        (" world", [995]),
        (" the", [262]),
        ("\n", [198]),
        ("", []),
    ],
)
def test_ids(gpt2: Tokenizer, text: str, ids: list[int]) -> None:
    assert gpt2.encode(text) == ids
    assert gpt2.explain(text).ids == ids
    assert [token for piece in split(text) for token in merge(piece.data, gpt2.vocabulary)] == ids
    assert gpt2.decode(ids) == text


def test_japanese_is_four_tokens_of_bytes(gpt2: Tokenizer) -> None:
    ids = gpt2.encode("日本")
    assert [gpt2.token_bytes(token).hex(" ") for token in ids] == ["e6 97", "a5", "e6 9c", "ac"]
    assert gpt2.explain("日本").spans == [(0, 1), (0, 1), (1, 2), (1, 2)]


def test_symbols(gpt2: Tokenizer) -> None:
    assert gpt2.token_text(262) == "Ġthe"
    assert gpt2.token_text(198) == "Ċ"
    assert len(set(SYMBOL_OF_BYTE)) == 256
    assert gpt2.vocabulary_size == 50257
    assert gpt2.special_tokens == {"<|endoftext|>": 50256}
    assert gpt2.notes == ()


def test_merges_of_world_by_rank(gpt2: Tokenizer) -> None:
    steps = list(gpt2.merge_steps(" world"))
    assert [step.winner.rank for step in steps] == [10, 17, 79, 220, 739]
    assert steps[-1].token_id == 995
    assert steps[-1].after == (b" world",)
    assert [step.winner.line for step in steps] == [12, 19, 81, 222, 741]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("don't we'll", ["don", "'t", " we", "'ll"]),
        ("o'clock", ["o", "'", "clock"]),
        ("abc123 45", ["abc", "123", " 45"]),
        ("a  b", ["a", " ", " b"]),
        ("a\n\nb", ["a", "\n", "\n", "b"]),
        ("a   ", ["a", "   "]),
        (" \n x", [" \n", " x"]),
        ("año €5 日本語", ["año", " €", "5", " 日本語"]),
        ("\x1c's", ["\x1c'", "s"]),  # not white space, whatever Python's re says
    ],
)
def test_splits(text: str, pieces: list[str]) -> None:
    assert [piece.text for piece in split(text)] == pieces


def test_special_tokens(gpt2: Tokenizer) -> None:
    text = "a<|endoftext|>b"
    assert gpt2.encode(text) == [64, 27, 91, 437, 1659, 5239, 91, 29, 65]
    assert gpt2.encode(text, special_tokens="huggingface") == [64, 50256, 65]
    assert gpt2.encode(text, special_tokens={"<|endoftext|>"}) == [64, 50256, 65]
    assert gpt2.encode("a <|endoftext|>", special_tokens="huggingface") == [64, 220, 50256]


def test_public_names() -> None:
    import types

    import labkit.tokenizer as room

    found = {
        name
        for name, value in vars(room).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert sorted(found) == sorted(set(room.__all__))
