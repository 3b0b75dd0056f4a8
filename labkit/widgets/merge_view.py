"""text, tokenizer -> the view record of the merge stepper, and the record -> its static twin.

A view is plain values only. Symbols are written as merges.txt writes them, with their bytes beside.
"""

import json
from collections.abc import Sequence
from html import escape
from typing import Any, TypedDict

from labkit.errors import ArgumentError, TextError
from labkit.report.tokenizer import hexadecimal, visible
from labkit.tokenizer import Candidate, MergeStep, Piece, Tokenizer, to_symbols

MAXIMUM_TEXT = 2000
"""Characters in a stepped text: the pieces are shown all at once."""
MAXIMUM_PIECE = 96
"""Bytes in a stepped piece: every step of it is sent to the page."""
STATE_FORMAT = "labkit-merges-1"


class Symbol(TypedDict):
    """One symbol: as merges.txt writes it, its bytes, its id."""

    text: str
    bytes: str
    id: int


class CandidateView(TypedDict):
    """One pair that could be merged next."""

    left: str
    right: str
    rank: int
    line: int | None
    places: list[int]


class State(TypedDict):
    """A piece after some merges: its symbols, and the pairs that could be merged next, the winner first."""

    symbols: list[Symbol]
    candidates: list[CandidateView]
    places: list[int]
    """Where the winner is merged next; empty in the last state."""
    made: Symbol | None
    why: str
    """Why the winner wins, in a sentence."""


class PieceView(TypedDict):
    """One piece of the text."""

    label: str
    bytes: str
    why: str
    ids: list[int]


class MergeView(TypedDict):
    """Everything one panel shows."""

    text: str
    pieces: list[PieceView]
    piece: int
    states: list[State]


def merge_view(text: str, piece: int, tokenizer: Tokenizer) -> MergeView:
    """The pieces of a text and every state of one of them.

    >>> view = merge_view("hello world", 1, Tokenizer.gpt2())
    >>> [state["candidates"][0]["rank"] for state in view["states"][:-1]], view["pieces"][1]["ids"]
    ([10, 17, 79, 220, 739], [995])

    Raises TextError for a text or a piece that is too long to step through.
    """
    if len(text) > MAXIMUM_TEXT:
        raise TextError("the text is too long to step through", expected=f"up to {MAXIMUM_TEXT}", got=len(text))
    pieces = tokenizer.pieces(text)
    chosen = min(max(piece, 0), max(len(pieces) - 1, 0))
    return MergeView(
        text=text,
        pieces=[_piece_view(each, tokenizer) for each in pieces],
        piece=chosen,
        states=_states(pieces[chosen], tokenizer) if pieces else [],
    )


def _piece_view(piece: Piece, tokenizer: Tokenizer) -> PieceView:
    ids = tokenizer.encode_piece(piece.data)
    return PieceView(label=visible(piece.data), bytes=hexadecimal(piece.data), why=piece.why, ids=ids)


def _states(piece: Piece, tokenizer: Tokenizer) -> list[State]:
    if len(piece.data) > MAXIMUM_PIECE:
        raise TextError(
            "the piece is too long to step through",
            where=f"piece {visible(piece.data[:12])}…",
            expected=f"up to {MAXIMUM_PIECE} bytes",
            got=len(piece.data),
        )
    symbols = [_symbol(bytes([byte]), tokenizer.vocabulary.byte_ids[byte]) for byte in piece.data]
    states = []
    for step in tokenizer.merge_steps(piece.data):
        states.append(_state(step, list(symbols)))
        for place in reversed(step.places):
            symbols[place : place + 2] = [_symbol(step.merged, step.token_id)]
    why = "No pair of neighbours is in merges.txt: these are the tokens."
    return [*states, State(symbols=symbols, candidates=[], places=[], made=None, why=why)]


def _state(step: MergeStep, symbols: list[Symbol]) -> State:
    return State(
        symbols=symbols,
        candidates=[
            CandidateView(
                left=to_symbols(each.left),
                right=to_symbols(each.right),
                rank=each.rank,
                line=each.line,
                places=list(each.places),
            )
            for each in step.candidates
        ],
        places=list(step.places),
        made=_symbol(step.merged, step.token_id),
        why=explain_choice(step.candidates),
    )


def _symbol(data: bytes, token: int) -> Symbol:
    return Symbol(text=to_symbols(data), bytes=hexadecimal(data), id=token)


def explain_choice(candidates: Sequence[Candidate]) -> str:
    """Why the next merge is the one it is, in a sentence.

    >>> explain_choice([Candidate(b" ", b"w", 10, (0,), 12), Candidate(b"o", b"r", 17, (2,), 19)])
    'Ġ + w has the lowest rank, 10 (next: o + r, 17): it is merged.'
    """
    winner, others = candidates[0], candidates[1:]
    pair = f"{to_symbols(winner.left)} + {to_symbols(winner.right)}"
    if not others:
        return f"{pair} has the only rank, {winner.rank}: it is merged."
    runner = others[0]
    next_pair = f"{to_symbols(runner.left)} + {to_symbols(runner.right)}"
    return f"{pair} has the lowest rank, {winner.rank} (next: {next_pair}, {runner.rank}): it is merged."


def merge_twin(view: MergeView) -> str:
    """One panel as HTML: the pieces, then every merge of the chosen piece."""
    rows = [_twin_row(number, state) for number, state in enumerate(view["states"], 1)]
    pieces = " ".join(
        f"<b>{escape(piece['label'])}</b>" if number == view["piece"] else f"<span>{escape(piece['label'])}</span>"
        for number, piece in enumerate(view["pieces"])
    )
    chosen = view["pieces"][view["piece"]] if view["pieces"] else None
    ids = " ".join(str(token) for piece in view["pieces"] for token in piece["ids"])
    head = f"<p>Text <code>{escape(view['text'])}</code>, pieces {pieces}, ids <code>{ids}</code></p>"
    if chosen is None:
        return f"<div>{head}</div>"
    columns = "".join(
        f'<th scope="col">{name}</th>' for name in ("step", "symbols", "merged next", "rank", "line", "makes")
    )
    caption = f"Merges of the piece {escape(chosen['label'])} (bytes {chosen['bytes']})"
    return (
        f"<div>{head}<table><caption>{caption}</caption><thead><tr>{columns}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _twin_row(number: int, state: State) -> str:
    joined = {place + side for place in state["places"] for side in (0, 1)}
    symbols = " ".join(
        f"<u><b>{escape(symbol['text'])}</b></u>" if index in joined else escape(symbol["text"])
        for index, symbol in enumerate(state["symbols"])
    )
    if state["made"] is None:
        ids = " ".join(str(symbol["id"]) for symbol in state["symbols"])
        cells = [str(number), symbols, "none left", "", "", f"ids {ids}"]
    else:
        winner = state["candidates"][0]
        line = "" if winner["line"] is None else str(winner["line"])
        pair = f"{escape(winner['left'])} + {escape(winner['right'])}"
        made = f"{escape(state['made']['text'])} = {state['made']['id']}"
        cells = [str(number), symbols, pair, str(winner["rank"]), line, made]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def write_state(text: str, piece: int, step: int) -> str:
    """What a bug report needs to show the same step again, in one line.

    >>> write_state("hello world", 1, 2)
    '{"format": "labkit-merges-1", "text": "hello world", "piece": 1, "step": 2}'
    """
    return json.dumps({"format": STATE_FORMAT, "text": text, "piece": piece, "step": step}, ensure_ascii=True)


def read_state(state: str) -> dict[str, Any]:
    """The text, piece and step of a state string; ArgumentError where it is none."""
    expected = f'a line with "format": "{STATE_FORMAT}", "text", "piece" and "step"'
    try:
        fields = json.loads(state)
    except ValueError:
        raise ArgumentError("is no state of the merge stepper", expected=expected, got=repr(state[:60])) from None
    if not isinstance(fields, dict) or fields.get("format") != STATE_FORMAT:
        raise ArgumentError("is no state of the merge stepper", expected=expected, got=repr(state[:60]))
    kinds = {"text": str, "piece": int, "step": int}
    for name, kind in kinds.items():
        if type(fields.get(name)) is not kind:
            raise ArgumentError(
                f"the state's {name} is unusable",
                expected=kind.__name__,
                got=repr(fields.get(name)),
                fix="copy it again",
            )
    return {name: fields[name] for name in kinds}
