"""Records say what happened; the views of them show it, and let no text of the user out unescaped."""

import json
import warnings
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from labkit.errors import ArgumentError
from labkit.figures.merges import draw_merge_tree, draw_token_strip
from labkit.figures.style import to_png
from labkit.report.json import json_text
from labkit.report.tokenizer import (
    encoding_to_json,
    render_encoding,
    render_merges,
    render_pieces,
    render_tree,
    step_to_json,
    visible,
)
from labkit.report.tokenizer_html import encoding_to_html, merges_to_html
from labkit.tokenizer import MergeNode, Tokenizer, split
from tests.oracles.peer_tokenizers import byte_level
from tests.tokenizer.texts import random_texts

HOSTILE = "<script>alert(1)</script>[red]x[/red]\x1b[31m\u202e&'\"日"


def shown(renderable: RenderableType) -> str:
    console = Console(width=200, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_pieces_cover_the_text_and_say_why(gpt2: Tokenizer) -> None:
    for text in random_texts(61, 500):
        pieces = gpt2.pieces(text)
        assert "".join(piece.text for piece in pieces) == text
        for piece in pieces:
            assert text[piece.start : piece.end] == piece.text
            assert text.encode("utf-8")[piece.byte_start : piece.byte_end] == piece.data == piece.text.encode("utf-8")
    taken = {piece.text: piece.alternative for piece in split("it's  12 ?\n x \n")}
    assert taken == {
        "it": "letters",
        "'s": "contraction",
        " ": "spaces",
        " 12": "numbers",
        " ?": "others",
        "\n": "spaces",
        " x": "letters",
        " \n": "spaces",
    }
    assert [piece.alternative for piece in split("a\nb")] == ["letters", "space", "letters"]
    assert split("a\nb")[1].why == "the white space left over before text that did not take it"


def test_steps_follow_from_each_other(gpt2: Tokenizer) -> None:
    for text in random_texts(62, 300):
        for piece in gpt2.pieces(text)[:5]:
            symbols = tuple(bytes([byte]) for byte in piece.data)
            for number, step in enumerate(gpt2.merge_steps(piece.data)):
                assert step.number == number
                assert step.before == symbols
                ranks = [candidate.rank for candidate in step.candidates]
                assert ranks == sorted(set(ranks))
                assert step.winner == step.candidates[0]
                assert step.winner.line == step.winner.rank + 2
                assert step.merged == gpt2.token_bytes(step.token_id)
                for place in step.places:
                    assert symbols[place : place + 2] == (step.winner.left, step.winner.right)
                joined = list(symbols)
                for place in reversed(step.places):
                    joined[place : place + 2] = [step.merged]
                symbols = tuple(joined)
                assert step.after == symbols
            assert [gpt2.token_bytes(token) for token in gpt2.encode_piece(piece.data)] == list(symbols)


def test_spans_are_right_for_characters_split_over_tokens(gpt2: Tokenizer) -> None:
    for text in random_texts(63, 400):
        data = text.encode("utf-8")
        for token in gpt2.explain(text).tokens:
            assert data[token.byte_start : token.byte_end] == token.data
            before, inside = data[: token.byte_start], data[: token.byte_end]
            assert token.start == len(before.decode("utf-8", "ignore"))
            assert token.end == len(inside.decode("utf-8", "replace"))


def test_spans_against_tokenizers(gpt2: Tokenizer, tmp_path: Path) -> None:
    """tokenizers gives the same spans, but takes a leading blank out of them."""
    gpt2.save(tmp_path)
    peer = byte_level(tmp_path / "vocab.json", tmp_path / "merges.txt")
    peer.pre_tokenizer.trim_offsets = False  # type: ignore[union-attr]
    for text in ("año €5 日本語 😀 don't", "日本", "e\u0301 \u200b"):
        assert gpt2.explain(text).spans == peer.encode(text, add_special_tokens=False).offsets


def test_the_tree_of_merges(gpt2: Tokenizer) -> None:
    def bytes_under(node: MergeNode) -> bytes:
        if node.left is None or node.right is None:
            assert node.rank is None
            return node.data
        assert node.rank is not None
        assert gpt2.vocabulary.made[node.rank] == node.token_id
        return bytes_under(node.left) + bytes_under(node.right)

    for token in gpt2.explain("unbelievable 日本 antidisestablishmentarianism").tokens:
        assert token.tree.token_id == token.id
        assert bytes_under(token.tree) == token.data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b" the\n\t\r", "·the⏎⇥␍"),
        ("·".encode(), "\\u{b7}"),
        (b"\x1b[31m", "\\u{1b}[31m"),
        ("\u202e".encode(), "\\u{202e}"),
        (b"\xe6\x97", "⟨e6 97⟩"),
        (b"a\x80b", "a⟨80⟩b"),
        (b"", ""),
    ],
)
def test_visible(data: bytes, text: str) -> None:
    assert visible(data) == text


def test_terminal_views(gpt2: Tokenizer) -> None:
    text = shown(render_encoding(gpt2.explain("日本 <|endoftext|>", special_tokens="huggingface")))
    assert "6 tokens in 2 pieces" in text
    assert "⟨e6 97⟩" in text
    assert "special token" in text
    (piece,) = gpt2.pieces(" world")
    text = shown(render_merges(piece, list(gpt2.merge_steps(piece.data)), gpt2.encode(piece.text)))
    assert "·│w│o│r│l│d" in text
    assert "·w + or" in text
    assert "·wor + ld" in text
    assert "741" in text
    assert "ids 995" in text
    assert "a run of letters" in shown(render_pieces((piece,)))
    (token,) = gpt2.explain(" world").tokens
    tree = shown(render_tree(token.tree))
    assert "·wor  id 476  rank 220" in tree
    assert tree.count("byte") == 6


def test_hostile_text_is_escaped_everywhere(gpt2: Tokenizer) -> None:
    encoding = gpt2.explain(HOSTILE)
    html = encoding_to_html(encoding)
    out = shown(render_encoding(encoding))
    for piece in encoding.pieces:
        steps = list(gpt2.merge_steps(piece.data))
        ids = gpt2.encode_piece(piece.data)
        html += merges_to_html(piece, steps, ids)
        out += shown(render_merges(piece, steps, ids)) + shown(render_pieces((piece,)))
    for token in encoding.tokens:
        out += shown(render_tree(token.tree))
    assert "<script" not in html
    assert "\x1b" not in html + out
    assert "\u202e" not in html + out
    assert "red" in out  # shown as text, not taken as markup


def test_json_forms(gpt2: Tokenizer) -> None:
    fields = json.loads(json_text(encoding_to_json(gpt2.explain("日本 a"))))
    assert fields["ids"] == gpt2.encode("日本 a")
    assert fields["tokens"][0] == {
        "id": 33768,
        "bytes": "e697",
        "symbols": "æĹ",
        "characters": [0, 1],
        "byte_span": [0, 2],
        "piece": 0,
    }
    (step, *_) = gpt2.merge_steps(" the")
    assert step_to_json(step)["before"] == ["Ġ", "t", "h", "e"]
    assert json.loads(json_text(step_to_json(step)))["rank"] == 0


@pytest.mark.parametrize("text", [" world", "日本", "$x_{1}$ %", HOSTILE[:60], "a" * 64, "한글 नमस्ते"])
def test_figures_draw_without_a_missing_glyph(gpt2: Tokenizer, text: str) -> None:
    encoding = gpt2.explain(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strip = to_png(draw_token_strip(encoding))
        tree = to_png(draw_merge_tree([token.tree for token in encoding.tokens if token.piece == 0]))
    assert strip.startswith(b"\x89PNG")
    assert tree.startswith(b"\x89PNG")


def test_figures_show_every_token_and_every_merge(gpt2: Tokenizer) -> None:
    encoding = gpt2.explain(" unbelievably, 日本")
    texts = [text.get_text() for text in draw_token_strip(encoding).axes[0].texts]
    assert [text for text in texts if text.isdecimal() and len(text) > 2] == [
        str(token) for token in encoding.ids if token > 99
    ]
    assert sum(len(text) == 2 for text in texts) >= len(encoding.text.encode())
    tree = [text.get_text() for text in draw_merge_tree([encoding.tokens[0].tree]).axes[0].texts]
    assert sum("rank" in label for label in tree) == 12
    assert "Ġunbelievably\nrank 48687\nid 48943" in tree


def test_what_is_too_long_to_draw_is_refused(gpt2: Tokenizer) -> None:
    with pytest.raises(ArgumentError, match=r"cannot be drawn as a strip \(expected 1 to 600 bytes, got 700\)"):
        draw_token_strip(gpt2.explain("a" * 700))
    with pytest.raises(ArgumentError, match="cannot be drawn as a strip"):
        draw_token_strip(gpt2.explain(""))
    with pytest.raises(ArgumentError, match=r"cannot be drawn as a tree \(expected 1 to 64 bytes, got 65\)"):
        draw_merge_tree([token.tree for token in gpt2.explain("=" * 65).tokens])
