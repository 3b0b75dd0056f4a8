"""Padding before the tokens of a row: which rows have it, and what to say of positions that count it."""

from labkit.verification.chain import Inputs
from labkit.words import listed

_SHOWN = 8
"""Rows listed in one sentence."""


def left_padding(inputs: Inputs) -> tuple[int, ...]:
    """The rows, counted from 0, in which padding stands before a token."""
    before = (~inputs.real).cumsum(dim=-1)  # [batch, pos]
    return tuple(((before > 0) & inputs.real).any(dim=-1).nonzero()[:, 0].tolist())


def padded_rows(inputs: Inputs) -> str:
    """Those rows in words, as "row 1" or "rows 1 and 2"; empty where there are none."""
    rows = left_padding(inputs)
    return f"{'row' if len(rows) == 1 else 'rows'} {listed(map(str, rows), most=_SHOWN)}" if rows else ""


def unstated_positions(inputs: Inputs) -> tuple[str, ...]:
    """What to say of rows that begin with padding where no position_ids are written; nothing where there are none.

    >>> import torch
    >>> padded = Inputs(torch.tensor([[5, 6], [0, 7]]), torch.tensor([[1, 1], [0, 1]]))
    >>> print(*unstated_positions(padded))
    padding stands before the tokens of row 1, and without position_ids positions count it too: the values there are ...
    """
    names = padded_rows(inputs)
    if not names:
        return ()
    return (
        f"padding stands before the tokens of {names}, and without position_ids positions count it too: the values there are "
        "not those of the prompt alone. If your engine counts the tokens only, write position_ids; if it does not, let it "
        "(positions-ignore-padding)",
    )
