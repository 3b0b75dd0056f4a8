"""A figure as a notebook shows it: a sharp PNG with its alternative text, and a short line in place of a repr."""

from typing import TYPE_CHECKING, Any

from labkit.figures.style import DPI, to_png

if TYPE_CHECKING:
    from labkit.figures.style import Figure


class Picture:
    """What a cell that ends in ``picture(figure)`` shows; print the figure's numbers beside it."""

    def __init__(self, figure: "Figure", alt: str) -> None:
        self._png = to_png(figure)
        self._size = [round(float(inches) * DPI) for inches in figure.get_size_inches()]
        self._alt = alt

    def __repr__(self) -> str:
        return f"Picture({self._alt!r})"

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        width, height = self._size
        shown = {"width": width, "height": height, "alt": self._alt}
        return {"text/plain": repr(self), "image/png": self._png}, {"image/png": shown}


def picture(figure: "Figure", *, alt: str | None = None) -> Picture:
    """The figure for a notebook's page; the alternative text is the figure's title unless given.

    >>> from labkit.figures.style import new_figure
    >>> picture(new_figure("Nothing yet"))
    Picture('Nothing yet')
    """
    return Picture(figure, alt or figure.get_suptitle() or "figure")
