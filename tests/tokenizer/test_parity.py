"""Parity with the peers: same on real text, and a planted fault is found and shrunk."""

from typing import Any

import pytest

from labkit.errors import ArgumentError
from labkit.tokenizer import Tokenizer
from labkit.tokenizer.parity import compare_with_peer, compare_with_peers, shrink
from tests.tokenizer.texts import random_texts


def test_same_on_mixed_text(gpt2: Tokenizer) -> None:
    text = "".join(random_texts(51, 1500))
    for report in compare_with_peers(gpt2, text):
        assert report.difference is None, report
        assert report.return_code == 0
        assert report.characters == len(text)
        assert report.tokens == len(gpt2.encode(text))
        assert str(report).endswith("same ids")


@pytest.mark.parametrize("peer", ["tiktoken", "tokenizers"])
def test_a_fault_is_found_and_shrunk(gpt2: Tokenizer, peer: Any) -> None:
    class Faulty(Tokenizer):
        """Forgets that U+001C is no white space, as Python's own re does."""

        def encode(self, text: str, **options: Any) -> list[int]:
            return super().encode(text.replace("\x1c", "\n"), **options)

    text = "some words before it, many of them " * 400 + "here:\x1c's" + " and after" * 50
    report = compare_with_peer(Faulty(gpt2.vocabulary), text, peer)
    assert report.return_code == 1
    assert report.difference is not None
    assert report.difference.text == "\x1c"
    assert 0 < report.difference.start <= text.index("\x1c")
    assert "differs: '\\x1c' is [198] here" in str(report)


def test_shrinking_leaves_nothing_to_leave_out() -> None:
    assert sorted(shrink("xxaxxxbxxcxx", lambda text: {"a", "b"} <= set(text))) == ["a", "b"]


def test_a_vocabulary_that_tiktoken_cannot_hold(make_folder: Any) -> None:
    names = {name: 300 - token for token, name in enumerate(Tokenizer.gpt2().byte_symbols)}
    folder = make_folder([("h", "e"), ("l", "l")], names=names | {"he": 400, "ll": 399})
    with pytest.raises(ArgumentError, match="this vocabulary's ids do not follow its merges"):
        compare_with_peer(Tokenizer.from_folder(folder), "hello", "tiktoken")
    assert compare_with_peer(Tokenizer.from_folder(folder), "hello", "tokenizers").return_code == 0
