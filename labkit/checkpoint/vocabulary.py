"""wte's rows against the tokenizer files beside it: which ids have no token, and which tokens have no row."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.outside import parse_json, read_regular


def vocabulary_notes(folder: Path, rows: int) -> tuple[str, ...]:
    """What to say where the tokenizer's ids are not exactly 0 to ``rows`` - 1; nothing where there is no tokenizer."""
    try:
        named = _token_ids(folder)
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        return (f"the tokenizer's files cannot be read, so its ids were not compared with wte's rows: {error}",)
    if named is None:
        return ()
    where, ids = named
    notes = []
    bare = sorted(set(range(rows)) - ids)
    if bare:
        notes.append(f"wte.weight has {rows} rows, but {where} gives no token to ids {ranges(bare)}")
    beyond = sorted(each for each in ids if each >= rows)
    if beyond:
        notes.append(
            f"{where} gives tokens to ids {ranges(beyond)}, but wte.weight has {rows} rows: such ids are refused"
        )
    return tuple(notes)


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as runs, the first eight of them.

    >>> ranges([3, 4, 5, 9, 11, 12])
    '3 to 5, 9, 11 to 12'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(f"{a} to {b}" if b > a else f"{a}" for a, b in runs[:8])
    return shown + (f" and {len(runs) - 8} more runs" if len(runs) > 8 else "")


def _token_ids(folder: Path) -> tuple[str, set[int]] | None:
    """Every id that the folder's tokenizer files give a token, and the file that was read."""
    if (folder / "vocab.json").is_file():
        name, ids = "vocab.json", set(_object(folder / "vocab.json").values())
    elif (folder / "tokenizer.json").is_file():
        name, ids = "tokenizer.json", set(_object(folder / "tokenizer.json")["model"]["vocab"].values())
    else:
        return None
    if (folder / "tokenizer.json").is_file():
        ids |= {each["id"] for each in _object(folder / "tokenizer.json").get("added_tokens", [])}
    if (folder / "added_tokens.json").is_file():
        ids |= set(_object(folder / "added_tokens.json").values())
    if not all(type(each) is int for each in ids):
        raise ValueError(f"{name} holds an id that is not a whole number")
    return name, ids


def _object(path: Path) -> dict[str, Any]:
    found = parse_json(read_regular(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return found
