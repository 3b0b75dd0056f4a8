"""``HexViewer``: a safetensors file byte by byte, each in the colour of what owns it."""

import os
import re
from typing import Any, ClassVar

import traitlets

from labkit.errors import ArgumentError
from labkit.storage.byteview import ByteView
from labkit.widgets.base import ASSETS, LabWidget, script
from labkit.widgets.hex_view import HexView, hex_twin, hex_view

_OFFSET = re.compile(r"0[xX]([0-9a-fA-F]+)|([0-9][0-9,_ ]*)")


class HexViewer(LabWidget):
    """Look at a file's bytes: prefix, header tokens, padding, tensor elements; click one to see what it means.

    ``at`` is an offset in bytes; ``tensor`` starts at that tensor's first byte instead. Only the rows in view are read,
    whatever the file's size.

    >>> import tempfile, torch; from pathlib import Path; from labkit.storage import save_safetensors
    >>> path = Path(tempfile.mkdtemp()) / "one.safetensors"
    >>> save_safetensors({"a": torch.arange(3)}, path)
    >>> HexViewer(path, tensor="a", rows=4)
    HexViewer('one.safetensors', byte 64 of 88: element [0] of I64 [3] of tensor 'a')

    Raises as ``read_header``; ``UnknownNameError`` for a tensor that is not there.
    """

    _esm = script("hex_viewer")
    _css = LabWidget._css + (ASSETS / "hex_viewer.css").read_text(encoding="utf-8")
    KEPT: ClassVar[tuple[str, ...]] = ("place",)

    place = traitlets.Dict().tag(sync=True)
    """What the user chose: ``top`` (first byte in view), ``at`` (the chosen byte), ``search`` (a part of a name)."""
    view = traitlets.Dict().tag(sync=True)
    """What is shown."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        at: int = 0,
        tensor: str | None = None,
        rows: int = 16,
        key: str | None = None,
    ) -> None:
        if rows < 1:
            raise ArgumentError("the viewer needs a row", expected="rows of 1 or more", got=str(rows))
        self._file = ByteView(path)
        self._rows = rows
        if tensor is not None:
            at = self._file.header.span(tensor)[0]
        super().__init__(key=key, place={"top": at, "at": at, "search": ""})
        self.guarded(self._update)
        self.observe(lambda _change: self.guarded(self._update), names="place")
        self.on_msg(self._receive)

    def twin(self) -> str:
        return hex_twin(HexView(**self.view))  # type: ignore[typeddict-item]

    def go_to(self, text: str) -> None:
        """Choose the byte at an offset written as ``1234``, ``1,234`` or ``0x4d2``, or the first one of a tensor."""
        match = _OFFSET.fullmatch(text.strip())
        if match and text not in self._file.header.entries:
            at = int(match[1], 16) if match[1] else int(re.sub("[,_ ]", "", match[2]))
        else:
            at = self._file.header.span(text)[0]
        self.place = {**self.place, "at": at, "top": at}

    def _receive(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        if isinstance(content, dict) and isinstance(content.get("go"), str):
            self.guarded(lambda: self.go_to(content["go"]))

    def _update(self) -> None:
        place = self.place
        self.view = hex_view(
            self._file,
            top=int(place.get("top", 0)),
            at=int(place.get("at", 0)),
            count=self._rows,
            search=str(place.get("search", "")),
        )

    def __repr__(self) -> str:
        view = self.view
        meaning = view["meaning"].split(": ", 1)[1].split(" = ")[0]
        return f"{type(self).__name__}({self._file.header.path.name!r}, byte {view['at']:,} of {view['nbytes']:,}: {meaning})"
