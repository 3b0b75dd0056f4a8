"""Prompts of the command line: ids as they are typed, and what stands in where a folder has no tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.console import tell
from labkit.errors import ArgumentError
from labkit.outside import shown, whole_number

Folder = Annotated[Path | None, typer.Argument(help="Checkpoint folder (default: the embedded one).")]
EMBEDDED_HELP = (
    "Without a folder the embedded checkpoint runs, with its own vocabulary (labkit/data/tiny). For GPT-2 itself: "
    "labkit fetch openai-community/gpt2 --dir models/gpt2, and name models/gpt2."
)


def parse_ids(text: str) -> list[int]:
    """``1,2,3``, ``1 2 3`` or ``[1, 2, 3]`` -> the ids, of which there is at least one.

    >>> parse_ids("15496, 11 995"), parse_ids("[15496, 11]")
    ([15496, 11, 995], [15496, 11])
    """
    ids = [whole_number(word) for word in text.translate({ord(c): " " for c in ",[]"}).split()]
    known = [each for each in ids if each is not None]
    if not ids or len(known) < len(ids):
        raise ArgumentError("not a list of token ids", expected="whole numbers with commas between", got=shown(text))
    return known


def rows_of(
    prompts: Sequence[str] | None, ids: Sequence[str] | None, *, option: str = "--prompt"
) -> list[list[int]] | None:
    """The rows of ``--ids``, or None where there are none; refused beside texts."""
    if prompts and ids:
        raise ArgumentError(f"{option} and --ids were both given", fix="give one of them")
    return None if ids is None else [parse_ids(text) for text in ids]


def stand_in_rows(folder: Path | None) -> list[list[int]] | None:
    """Ids drawn at random, with a note, where ``folder`` has no tokenizer for a text; None where it has one."""
    from labkit.checkpoint.inventory import take_inventory
    from labkit.load import embedded
    from labkit.verification.prompts import choose_prompts

    place = embedded() if folder is None else folder
    chosen, notes = choose_prompts(place, take_inventory(place).config, None, None)
    tell(notes)
    return None if chosen[0].text is not None else [list(prompt.ids) for prompt in chosen]
