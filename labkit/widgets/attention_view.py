"""model, prompt -> the view record of the attention viewer, and the record -> its static twin."""

from collections.abc import Sequence
from html import escape
from typing import TypedDict

from labkit.errors import ArgumentError, OutOfRangeError
from labkit.model import GPT2
from labkit.report.tokenizer import visible
from labkit.tokenizer import Tokenizer

MAXIMUM_TOKENS = 48
"""Tokens in a viewed prompt: every pair of them is a cell on the page."""


class AttentionView(TypedDict):
    """One block's attention: tokens, and a pattern [head][query][key] in whole percent of a percent."""

    tokens: list[str]
    blocks: int
    block: int
    heads: int
    patterns: list[list[list[int]]]
    """Rows hold only the keys that the query may see."""


def attention_view(model: GPT2, tokenizer: Tokenizer, prompt: str, block: int) -> AttentionView:
    """The pattern of every head of one block.

    Raises ArgumentError for a prompt without tokens or with too many, OutOfRangeError for a block that is not there.
    """
    ids = tokenizer.encode(prompt)
    if not 0 < len(ids) <= MAXIMUM_TOKENS:
        raise ArgumentError("the prompt does not fit", expected=f"1 to {MAXIMUM_TOKENS} tokens", got=len(ids))
    if not 0 <= block < model.config.n_layer:
        raise OutOfRangeError("there is no such block", expected=f"0 to {model.config.n_layer - 1}", got=block)
    name = f"h.{block}.attn.pattern"
    pattern = model.run(ids, taps=name).taps[name][0]  # [head, pos_q, pos_k]
    units = (pattern.float() * 10_000).round().int().tolist()
    return AttentionView(
        tokens=[visible(tokenizer.token_bytes(token)) for token in ids],
        blocks=model.config.n_layer,
        block=block,
        heads=model.config.n_head,
        patterns=[[row[: query + 1] for query, row in enumerate(head)] for head in units],
    )


def attention_twin(view: AttentionView, head: int) -> str:
    """One head as a table: each token, and the two tokens it attends to most, with their shares."""
    rows = [_twin_row(view, query, row) for query, row in enumerate(view["patterns"][head])]
    columns = "".join(f'<th scope="col">{name}</th>' for name in ("", "token", "attends most to", "and then to"))
    caption = f"Block {view['block']}, head {head}: shares of attention, rounded to tenths"
    return f"<table><caption>{caption}</caption><thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _twin_row(view: AttentionView, query: int, row: Sequence[int]) -> str:
    most = sorted(range(len(row)), key=lambda key: (-row[key], key))[:2]
    cells = [f"{escape(view['tokens'][key])} ({key}) {row[key] / 10_000:.1f}" for key in most]
    cells += [""] * (2 - len(cells))
    shown = [str(query), escape(view["tokens"][query]), *cells]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in shown)}</tr>"
