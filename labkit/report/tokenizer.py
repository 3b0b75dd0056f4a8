"""The tokenizer's records as text for a terminal and as JSON.

In: ``Encoding``, ``Piece``, ``MergeStep``. Out: rich renderables, strings, plain dictionaries.
White space shows as marks, and bytes that are no whole character show as bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from labkit.report.plain import columns
from labkit.tokenizer import Encoding, MergeNode, MergeStep, Piece, to_symbols
from labkit.words import counted

SPACE_MARK = "·"
MARKS = {0x20: SPACE_MARK, 0x0A: "⏎", 0x09: "⇥", 0x0D: "␍"}
_AMBIGUOUS = set(MARKS.values())


def visible(data: bytes) -> str:
    """Bytes for the eye: white space as marks, other unprintable characters escaped, broken characters as bytes.

    >>> visible(b" a\\n"), visible("é".encode()), visible(b"\\xe6\\x97"), visible(b"a\\xff")
    ('·a⏎', 'é', '⟨e6 97⟩', 'a⟨ff⟩')
    """
    parts: list[str] = []
    broken: list[str] = []
    for character in data.decode("utf-8", "surrogateescape"):
        if 0xDC80 <= ord(character) <= 0xDCFF:
            broken.append(f"{ord(character) - 0xDC00:02x}")
            continue
        if broken:
            parts.append(f"⟨{' '.join(broken)}⟩")
            broken = []
        parts.append(_visible_character(character))
    if broken:
        parts.append(f"⟨{' '.join(broken)}⟩")
    return "".join(parts)


def _visible_character(character: str) -> str:
    mark = MARKS.get(ord(character))
    if mark is not None:
        return mark
    if character in _AMBIGUOUS or not character.isprintable():
        return f"\\u{{{ord(character):x}}}"
    return character


def hexadecimal(data: bytes) -> str:
    """Bytes as two digits each.

    >>> hexadecimal(b" a")
    '20 61'
    """
    return data.hex(" ")


def render_encoding(encoding: Encoding) -> RenderableType:
    """One row per token: id, what it shows as, its bytes, its name in vocab.json, where it stands, its piece."""
    if not encoding.tokens:
        return Text("the text is empty, and so are its tokens")
    title = f"{counted(len(encoding.tokens), 'token')} in {counted(len(encoding.pieces), 'piece')}"
    names = ("id", "text", "bytes", "name", "characters", "bytes at", "piece", "taken as")
    table = columns(names, right=("id",), title=title)
    for token in encoding.tokens:
        piece = None if token.piece is None else encoding.pieces[token.piece]
        table.add_row(
            Text(str(token.id), "cyan"),
            escape(visible(token.data)),
            hexadecimal(token.data),
            escape(to_symbols(token.data)),
            f"{token.start}:{token.end}",
            f"{token.byte_start}:{token.byte_end}",
            "" if piece is None else str(token.piece),
            "special token" if piece is None else piece.alternative,
        )
    return table


def render_pieces(pieces: Sequence[Piece]) -> Table:
    """One row per piece: where it stands, and why the pattern took it."""
    table = columns(("piece", "characters", "bytes", "taken as", "why"), title=counted(len(pieces), "piece"))
    for piece in pieces:
        where = f"{piece.start}:{piece.end}"
        table.add_row(escape(visible(piece.data)), where, hexadecimal(piece.data), piece.alternative, piece.why)
    return table


def render_symbols(symbols: Iterable[bytes], places: Sequence[int] = (), *, width: int = 1) -> Text:
    """Symbols with a bar between each two; those that a merge joined or made stand out."""
    marked = {place + step for place in places for step in range(width)}
    text = Text()
    for index, symbol in enumerate(symbols):
        text.append("│" if index else "", style="dim")
        text.append(visible(symbol), style="bold green" if index in marked else "")
    return text


def render_merges(piece: Piece, steps: Sequence[MergeStep], ids: Sequence[int]) -> Group:
    """The merges of one piece: a table of steps, each with the candidates it chose from."""
    head = Text.assemble(
        ("piece ", "dim"), (visible(piece.data), "bold"), ("  bytes ", "dim"), hexadecimal(piece.data), f"  {piece.why}"
    )
    parts: list[RenderableType] = [head]
    if steps:
        names = ("step", "symbols", "merge", "rank", "line", "makes", "runners-up")
        table = columns(names, right=("step", "rank", "line"))
        for step in steps:
            table.add_row(*_step_cells(step))
        parts.append(table)
    last = steps[-1].after if steps else tuple(bytes([byte]) for byte in piece.data)
    parts.append(Text.assemble(("ids ", "dim"), " ".join(map(str, ids)), ("  ", ""), render_symbols(last)))
    return Group(*parts)


def _step_cells(step: MergeStep) -> list[RenderableType]:
    winner = step.winner
    others = ", ".join(f"{visible(c.left)}+{visible(c.right)} {c.rank}" for c in step.candidates[1:4])
    more = f" and {len(step.candidates) - 4} more" if len(step.candidates) > 4 else ""
    return [
        str(step.number + 1),
        render_symbols(step.before, step.places, width=2),
        Text(f"{visible(winner.left)} + {visible(winner.right)}"),
        str(winner.rank),
        "" if winner.line is None else str(winner.line),
        Text(f"{visible(step.merged)} = {step.token_id}"),
        Text(others + more, style="dim"),
    ]


def render_tree(node: MergeNode) -> Tree:
    """The merges that made a token, as a tree; the last merge is the root."""
    tree = Tree(_node_label(node))
    _grow(tree, node)
    return tree


def _grow(tree: Tree, node: MergeNode) -> None:
    for child in (node.left, node.right):
        if child is not None:
            _grow(tree.add(_node_label(child)), child)


def _node_label(node: MergeNode) -> Text:
    rank = "byte" if node.rank is None else f"rank {node.rank}"
    return Text.assemble((visible(node.data), "bold"), f"  id {node.token_id}  ", (rank, "dim"))


def encoding_to_json(encoding: Encoding) -> dict[str, Any]:
    """An encoding as plain values; bytes as hexadecimal text."""
    return {
        "text": encoding.text,
        "ids": encoding.ids,
        "tokens": [
            {
                "id": token.id,
                "bytes": token.data.hex(),
                "symbols": to_symbols(token.data),
                "characters": [token.start, token.end],
                "byte_span": [token.byte_start, token.byte_end],
                "piece": token.piece,
            }
            for token in encoding.tokens
        ],
        "pieces": [piece_to_json(piece) for piece in encoding.pieces],
    }


def piece_to_json(piece: Piece) -> dict[str, Any]:
    """A piece as plain values."""
    return {
        "text": piece.text,
        "bytes": piece.data.hex(),
        "characters": [piece.start, piece.end],
        "byte_span": [piece.byte_start, piece.byte_end],
        "alternative": piece.alternative,
    }


def step_to_json(step: MergeStep) -> dict[str, Any]:
    """A merge step as plain values; symbols as vocab.json writes them."""
    return {
        "before": [to_symbols(symbol) for symbol in step.before],
        "candidates": [
            {
                "pair": [to_symbols(each.left), to_symbols(each.right)],
                "rank": each.rank,
                "line": each.line,
                "places": list(each.places),
            }
            for each in step.candidates
        ],
        "rank": step.winner.rank,
        "places": list(step.places),
        "makes": to_symbols(step.merged),
        "id": step.token_id,
        "after": [to_symbols(symbol) for symbol in step.after],
    }
