"""The tokenizer's records as HTML: plain markup with its own few styles, no script, every text escaped.

In: ``Encoding``, ``Piece``, ``MergeStep``. Out: strings to put into a page or a notebook.
"""

from collections.abc import Sequence
from html import escape

from labkit.report.tokenizer import hexadecimal, visible
from labkit.tokenizer import Encoding, MergeStep, Piece, Token, to_symbols
from labkit.words import counted

TINTS = ("#d6ebf7", "#fbe9c8", "#cdeee1", "#f3dfe9")  # neighbours differ, ink on each is legible
_TOKEN = "display:inline-block;margin:1px;padding:1px 3px;border-radius:3px;color:#1a1a1a;font-family:monospace"
_CELL = "padding:1px 8px;text-align:left;vertical-align:top;font-family:monospace"


def encoding_to_html(encoding: Encoding) -> str:
    """The tokens of a text in a line, each with its id below and its bytes and place as a tip.

    >>> from labkit.tokenizer import Tokenizer
    >>> html = encoding_to_html(Tokenizer.gpt2().explain("<b> 日"))
    >>> html.count("labkit-token"), "&lt;" in html, "<b>" in html
    (6, True, False)
    """
    count = f"{counted(len(encoding.tokens), 'token')} in {counted(len(encoding.pieces), 'piece')}"
    tokens = "".join(_token(token, encoding, TINTS[i % len(TINTS)]) for i, token in enumerate(encoding.tokens))
    return f'<div class="labkit-encoding" role="group" aria-label="{count}">{tokens}</div>'


def merges_to_html(piece: Piece, steps: Sequence[MergeStep], ids: Sequence[int]) -> str:
    """The merges of one piece as a table, one row a step, with the candidates that lost.

    >>> from labkit.tokenizer import Tokenizer
    >>> tokenizer = Tokenizer.gpt2()
    >>> (piece,) = tokenizer.pieces(" the")
    >>> html = merges_to_html(piece, list(tokenizer.merge_steps(piece.data)), tokenizer.encode(" the"))
    >>> html.count("<tr>"), "Ġ + t" in html, "ids 262" in html
    (4, True, True)
    """
    names = ("step", "symbols", "merge", "rank", "line", "makes", "runners-up")
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name in names)
    rows = "".join(_row(_step_cells(step)) for step in steps)
    caption = f"piece {escape(visible(piece.data))} ({hexadecimal(piece.data)}): {escape(piece.why)}"
    table = f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="labkit-merges">{table}<div>ids {" ".join(map(str, ids))}</div></div>'


def _token(token: Token, encoding: Encoding, tint: str) -> str:
    piece = None if token.piece is None else encoding.pieces[token.piece]
    taken = "special token" if piece is None else f"piece {token.piece}: {piece.alternative}"
    tip = f"bytes {hexadecimal(token.data)}, characters {token.start} to {token.end}, {taken}"
    label = f"{escape(visible(token.data))}<br><small>{token.id}</small>"
    return f'<span class="labkit-token" style="{_TOKEN};background:{tint}" title="{escape(tip)}">{label}</span>'


def _step_cells(step: MergeStep) -> list[str]:
    merged = {place + side for place in step.places for side in (0, 1)}
    symbols = " ".join(
        f"<b>{escape(to_symbols(symbol))}</b>" if place in merged else escape(to_symbols(symbol))
        for place, symbol in enumerate(step.before)
    )
    winner = step.winner
    others = ", ".join(f"{to_symbols(c.left)}+{to_symbols(c.right)} {c.rank}" for c in step.candidates[1:])
    return [
        str(step.number + 1),
        symbols,
        escape(f"{to_symbols(winner.left)} + {to_symbols(winner.right)}"),
        str(winner.rank),
        "" if winner.line is None else str(winner.line),
        escape(f"{to_symbols(step.merged)} = {step.token_id}"),
        escape(others),
    ]


def _row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>"
