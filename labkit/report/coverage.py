"""Coverage of a verification -> words and JSON: what its prompts would have shown, what not, and where not."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from labkit.verification.detective import Coverage
from labkit.verification.hypotheses import site_of
from labkit.words import counted, listed

SHOWN = 2
"""Groups of mistakes that one line spells out."""


def coverage_line(coverage: Coverage) -> str:
    """How many of the known mistakes would have shown, and where some would not, in a sentence without its full stop."""
    some = [f"{', '.join(names)} not in {places}" for places, names in by_places(coverage).items()]
    more = f"; {len(some) - SHOWN} more such" if len(some) > SHOWN else ""
    counts = [
        (len(coverage.seen), f"would have shown at every stage {'rehearsed' if coverage.skipped else 'of theirs'}"),
        (len(coverage.partly), f"at some only ({'; '.join(some[:SHOWN])}{more})"),
        (len(coverage.unseen), "at none" if coverage.seen else "would have shown at none"),
        (len(coverage.untried), "not rehearsed"),
    ]
    parts = [f"{count} {what}" for count, what in counts if count]
    skipped = f"; {skipped_line(coverage)}" if coverage.skipped else ""
    return f"of {counted(len(coverage.effects), 'known mistake')} {', '.join(parts)}{skipped}"


def skipped_line(coverage: Coverage) -> str:
    """Where no mistake was rehearsed, and why."""
    return f"not rehearsed, since too many stages lie between those that are there: {places_text(coverage.skipped)}"


def by_places(coverage: Coverage) -> dict[str, list[str]]:
    """The mistakes that would have shown in some places only, under the places where they would not."""
    groups: dict[str, list[str]] = {}
    for name in coverage.partly:
        groups.setdefault(places_text(coverage.stages_unseen(name)), []).append(name)
    return groups


def places_text(stages: Iterable[str]) -> str:
    """Stages in words, those of several blocks together.

    >>> places_text(["h.0.attn.q", "h.1.ln_1", "h.2.ln_1", "h.3.ln_1", "h.3.ln_2", "ln_f"])
    'attn.qkv of block 0, ln_1 of blocks 1 to 3, ln_2 of block 3, ln_f'
    """
    blocks: dict[str, list[int]] = {}
    for stage in stages:
        if not stage.startswith("h."):
            blocks[stage] = []
            continue
        _, block, name = stage.split(".", 2)
        blocks.setdefault("attn.qkv" if site_of(stage) == "attn.qkv" else name, []).append(int(block))
    return ", ".join(name + (f" of {_blocks(found)}" if found else "") for name, found in blocks.items())


def _blocks(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first + 1 == len(numbers):
        return f"blocks {first} to {last}"
    return f"block{'s' if len(numbers) > 1 else ''} {listed(map(str, numbers), most=len(numbers))}"


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """What the prompts could have shown, what not, and where, as plain JSON values."""
    return {
        "seen": list(coverage.seen),
        "partly": {
            name: {"seen": list(coverage.stages_seen(name)), "unseen": list(coverage.stages_unseen(name))}
            for name in coverage.partly
        },
        "unseen": list(coverage.unseen),
        "untried": list(coverage.untried),
        "not_rehearsed": list(coverage.skipped),
        "effects": {
            name: {stage: effect for stage, effect in by_stage.items() if not math.isnan(effect)}
            for name, by_stage in coverage.effects.items()
        },
    }
