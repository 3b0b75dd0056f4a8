"""Stage results -> an SVG of the error along the taps: what each operation adds, and what is carried along.

Both are shown as shares of the budget, on a logarithmic scale, so that one line is the budget of every stage. Colours
come from the page that holds it.
"""

import math
from collections.abc import Iterator, Sequence

from labkit.report.html_parts import Markup, element, joined
from labkit.verification.verdict import StageResult
from labkit.words import counted

WIDTH, HEIGHT = 960.0, 316.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 12.0, 50.0, 28.0
LOWEST, HIGHEST = -4, 8
"""Decades of the budget at which the scale ends; what lies beyond is drawn at the edge."""

NAMED = 3
"""Stages that are wrong by themselves whose names are written into the picture."""


def draw_waterfall(stages: Sequence[StageResult]) -> Markup:
    """The picture as an ``svg`` element; each stage has its numbers as a tooltip."""
    scale = Scale(stages)
    parts = [
        *_bands(stages, scale),
        *_grid(scale),
        *_stems(stages, scale),
        _total(stages, scale),
        *_names(stages, scale),
    ]
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=f"Error along {counted(len(stages), 'stage')} as a share of the budget; the table below has the numbers",
    )


class Scale:
    """Places in the picture: a column a stage, a logarithmic height."""

    def __init__(self, stages: Sequence[StageResult]) -> None:
        self.step = (WIDTH - LEFT - RIGHT) / max(len(stages), 1)
        shares = [share for each in stages for share in (each.used, each.local_used) if 0 < share < math.inf]
        decades = [math.log10(share) for share in shares] or [0.0]
        endless = any(math.isinf(share) for each in stages for share in (each.used, each.local_used))
        self.low = max(LOWEST, min(-2, math.floor(min(decades))))
        self.high = min(HIGHEST, max(1, math.ceil(max(decades) + (1 if endless else 0))))

    def x(self, column: int) -> float:
        """The middle of a column."""
        return LEFT + (column + 0.5) * self.step

    def y(self, share: float) -> float:
        """The height of a share; nothing at all lies on the floor."""
        decade = self.low if share <= 0 else self.high if math.isinf(share) else math.log10(share)
        decade = min(max(decade, self.low), self.high)
        return TOP + (self.high - decade) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def _bands(stages: Sequence[StageResult], scale: Scale) -> Iterator[Markup]:
    """A band for every other block, and the blocks' names below."""
    names = [stage.name.split(".")[1] if stage.name.startswith("h.") else "" for stage in stages]
    start, written = 0, -math.inf
    for end in range(1, len(names) + 1):
        if end < len(names) and names[end] == names[start]:
            continue
        left, width = LEFT + start * scale.step, (end - start) * scale.step
        if names[start]:
            if int(names[start]) % 2 == 0:
                yield element(
                    "rect", class_="band", x=f"{left:.1f}", y=TOP, width=f"{width:.1f}", height=HEIGHT - TOP - BOTTOM
                )
            if left + width / 2 - written > 34:
                written = left + width / 2
                yield element("text", f"h.{names[start]}", x=f"{written:.1f}", y=HEIGHT - 10, text_anchor="middle")
        start = end


def _grid(scale: Scale) -> Iterator[Markup]:
    every = 1 if scale.high - scale.low <= 7 else 2
    for decade in range(scale.low, scale.high + 1):
        if decade % every:
            continue
        y = f"{scale.y(10.0**decade):.1f}"
        kind = "budget" if decade == 0 else "grid"
        yield element("line", class_=kind, x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
        label = "1" if decade == 0 else f"{10.0**decade:g}" if -3 <= decade <= 4 else f"1e{decade}"
        yield element("text", label, x=LEFT - 8, y=f"{float(y) + 4:.1f}", text_anchor="end")
    yield element("text", "times the budget", x=4, y=14)


def _stems(stages: Sequence[StageResult], scale: Scale) -> Iterator[Markup]:
    floor = HEIGHT - BOTTOM
    for column, stage in enumerate(stages):
        x, kind = f"{scale.x(column):.1f}", "stem over" if stage.local_used > 1 else "stem"
        numbers = (
            f"{stage.name}: here {stage.local_used:.3g}, in all {stage.used:.3g} times the budget, {stage.verdict}"
        )
        stem = element(
            "line", element("title", numbers), class_=kind, x1=x, x2=x, y1=floor, y2=f"{scale.y(stage.local_used):.1f}"
        )
        dot = element("circle", element("title", numbers), class_="dot", cx=x, cy=f"{scale.y(stage.used):.1f}", r=2.2)
        yield joined((stem, dot))


def _total(stages: Sequence[StageResult], scale: Scale) -> Markup:
    points = " ".join(f"{scale.x(column):.1f},{scale.y(stage.used):.1f}" for column, stage in enumerate(stages))
    return element("polyline", class_="total", points=points)


def _names(stages: Sequence[StageResult], scale: Scale) -> Iterator[Markup]:
    """The first stages that are wrong by themselves, above the picture, each on a line of its own."""
    wrong = [(column, stage) for column, stage in enumerate(stages) if stage.local_used > 1][:NAMED]
    for place, (column, stage) in enumerate(wrong):
        x, y, right = scale.x(column), TOP - 6 - 13 * place, scale.x(column) > WIDTH / 2
        end = f"{scale.y(stage.local_used):.1f}"
        yield element("line", class_="lead", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=y - 9, y2=end)
        yield element(
            "text",
            stage.name,
            class_="name",
            x=f"{x:.1f}",
            y=y,
            dx=-5 if right else 5,
            text_anchor="end" if right else "start",
        )
