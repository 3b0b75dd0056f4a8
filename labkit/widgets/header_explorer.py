"""``HeaderExplorer``: what a safetensors file holds, searched, sorted and a page at a time."""

import os
from typing import Any, ClassVar

import traitlets

from labkit.storage.header import read_header
from labkit.widgets.base import LabWidget, script
from labkit.widgets.header_view import HeaderView, header_twin, header_view


class HeaderExplorer(LabWidget):
    """Look through a header of any length: search, sort, and the bytes of each tensor.

    >>> import tempfile, torch; from pathlib import Path; from labkit.storage import save_safetensors
    >>> path = Path(tempfile.mkdtemp()) / "two.safetensors"
    >>> save_safetensors({"a": torch.arange(3), "b": torch.ones(2, 2)}, path)
    >>> HeaderExplorer(path, search="b")
    HeaderExplorer('two.safetensors', 1 of 2 tensors)

    Raises as ``read_header``.
    """

    _esm = script("header_explorer")
    KEPT: ClassVar[tuple[str, ...]] = ("asked",)

    asked = traitlets.Dict().tag(sync=True)
    """What the user chose: ``search``, ``sort``, ``page``, ``chosen``."""
    view = traitlets.Dict().tag(sync=True)
    """What is shown."""

    def __init__(self, path: str | os.PathLike[str], *, search: str = "", key: str | None = None) -> None:
        self._header = read_header(path)
        super().__init__(key=key, asked={"search": search, "sort": "offset", "page": 0, "chosen": None})
        self.guarded(self._update)
        self.observe(lambda _change: self.guarded(self._update), names="asked")

    def twin(self) -> str:
        return header_twin(HeaderView(**self.view))  # type: ignore[typeddict-item]

    def _update(self) -> None:
        asked: dict[str, Any] = self.asked
        chosen = asked.get("chosen")
        self.view = header_view(
            self._header,
            search=str(asked.get("search", "")),
            sort=str(asked.get("sort", "offset")),
            page=int(asked.get("page", 0)),
            chosen=chosen if isinstance(chosen, str) else None,
        )

    def __repr__(self) -> str:
        found, every = self.view["count"], len(self._header.entries)
        return f"{type(self).__name__}({self._header.path.name!r}, {found:,} of {every:,} tensors)"
