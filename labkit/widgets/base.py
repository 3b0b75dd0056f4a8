"""What every widget shares: one style sheet, a static twin, errors that show, and state that outlives a cell.

A widget is a thin class: its traits are plain values, a pure function turns them into a view record, and a small
script draws the record. The same record gives the twin, the HTML that a page without a kernel shows.
"""

import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

from labkit.errors import LabkitError

ASSETS = Path(__file__).parent / "assets"


def script(*names: str) -> str:
    """The front-end module of a widget: the shared helpers and the named scripts, as one text."""
    return "\n".join((ASSETS / f"{name}.js").read_text(encoding="utf-8") for name in ("common", *names))


class LabWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """A widget with a static twin.

    ``KEPT`` names the traits that are the user's state. They are remembered under ``key`` for as long as the kernel
    lives, so a cell that is run again shows what was there before; ``key=None`` remembers nothing.
    """

    _css = (ASSETS / "lab.css").read_text(encoding="utf-8")
    KEPT: ClassVar[tuple[str, ...]] = ()
    _remembered: ClassVar[dict[tuple[str, Hashable], dict[str, Any]]] = {}

    error = traitlets.Unicode().tag(sync=True)

    def __init__(self, *, key: Hashable = None, **values: Any) -> None:
        self._lock = threading.RLock()
        self._key = key
        super().__init__(**{**values, **self._recall()})
        self.observe(self._remember, names=list(self.KEPT))

    def twin(self) -> str:
        """The widget's present view as HTML that needs no kernel and no script."""
        raise NotImplementedError

    def guarded(self, work: Callable[[], None]) -> None:
        """Run ``work`` alone, whichever thread the kernel calls from; what it raises is shown in the widget."""
        with self._lock:
            try:
                work()
            except LabkitError as error:
                self.error = str(error)
            except Exception as error:
                self.error = f"internal error, {type(error).__name__}: {error}"
            else:
                self.error = ""

    def _recall(self) -> dict[str, Any]:
        return dict(self._remembered.get((type(self).__name__, self._key), {})) if self._key is not None else {}

    def _remember(self, _change: Any) -> None:
        if self._key is not None:
            self._remembered[type(self).__name__, self._key] = {name: getattr(self, name) for name in self.KEPT}

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {
            "text/plain": repr(self),
            "text/html": self.twin(),
            "application/vnd.jupyter.widget-view+json": view,
        }, {}
