"""Reading and writing safetensors files, labkit beside the official library and a plain read: seconds and ratios.

The files are synthetic: headers of 148 and of 100,000 entries, and one with the sizes and the layout of GPT-2 small's
released file (160 tensors, a header of 14,283 bytes, data at byte 14,291). Both sides take turns and the fastest of each
counts, so that a busy machine disturbs both alike.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from labkit.bench.load import Measure
from labkit.storage import load_safetensors, open_safetensors, read_header, save_safetensors

HEADER_NBYTES = 14_283
"""The released file's header, spaces included."""
_BLOCKS, _WIDTH, _VOCABULARY, _POSITIONS = 12, 768, 50257, 1024


@dataclass(frozen=True, kw_only=True)
class StorageBench:
    """Every measure of the storage room."""

    repeats: int
    version: str
    file_nbytes: int
    measures: tuple[Measure, ...]

    @property
    def return_code(self) -> int:
        """0 where every measure is within its limit, else 1."""
        return 0 if all(each.within for each in self.measures) else 1

    def __str__(self) -> str:
        head = f"best of {self.repeats}, beside safetensors {self.version}; a file of {self.file_nbytes:,} bytes"
        lines = [head]
        for each in self.measures:
            mark = "" if each.limit is None else f"(at most {each.limit:.2f})  {'ok' if each.within else 'over'}"
            times = f"{each.seconds * 1e3:9.2f} ms  {each.peer_seconds * 1e3:9.2f} ms"
            lines.append(f"  {each.name:42} {times}  ratio {each.ratio:5.2f} {mark}".rstrip())
        return "\n".join(lines)


def bench_storage(*, repeats: int = 7, say: Callable[[str], None] | None = None) -> StorageBench:
    """Measure headers, opening, reading and saving."""
    tell = say or (lambda _step: None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measures = []
        for count, limit, rounds in ((148, 1.5, 100 * repeats), (100_000, 1.0, repeats)):
            tell(f"header of {count:,} entries")
            path = folder / f"{count}.safetensors"
            write_header_file(path, count)
            measures.append(_compare(f"header of {count:,} entries", limit, _header_sides(path), rounds))
        large = folder / "gpt2.safetensors"
        tell("writing a file of GPT-2 small's layout")
        write_gpt2_layout(large)
        tell("opening and reading")
        measures.append(_compare("open mapped, to a dict of tensors", 1.5, _open_sides(large), repeats))
        measures.append(_compare("copy every tensor, beside a plain read", 1.1, _read_sides(large), repeats))
        tell("saving")
        measures.append(_compare("save with fsync", 1.2, _save_sides(large, folder), repeats))
        return StorageBench(
            repeats=repeats,
            version=safetensors.__version__,
            file_nbytes=large.stat().st_size,
            measures=tuple(measures),
        )


def write_header_file(path: Path, count: int) -> None:
    """A file of ``count`` small tensors, its header as the official writer writes it."""
    nbytes = 32
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for i in range(count):
        name = f"model.layers.{i // 12}.part_{i % 12}.weight"
        fields[name] = {"dtype": "F32", "shape": [2, 4], "data_offsets": [nbytes * i, nbytes * (i + 1)]}
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + nbytes * count)


def gpt2_shapes() -> dict[str, tuple[int, ...]]:
    """GPT-2 small's tensors, the causal masks of the released file included.

    >>> len(gpt2_shapes()), gpt2_shapes()["h.3.attn.c_proj.bias"]
    (160, (768,))
    """
    block: dict[str, tuple[int, ...]] = {
        "attn.bias": (1, 1, _POSITIONS, _POSITIONS),
        "attn.c_attn.weight": (_WIDTH, 3 * _WIDTH),
        "attn.c_attn.bias": (3 * _WIDTH,),
        "attn.c_proj.weight": (_WIDTH, _WIDTH),
        "mlp.c_fc.weight": (_WIDTH, 4 * _WIDTH),
        "mlp.c_fc.bias": (4 * _WIDTH,),
        "mlp.c_proj.weight": (4 * _WIDTH, _WIDTH),
    }
    vectors = ("attn.c_proj.bias", "mlp.c_proj.bias", "ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias")
    block |= dict.fromkeys(vectors, (_WIDTH,))
    shapes = {f"h.{i}.{name}": shape for i in range(_BLOCKS) for name, shape in block.items()}
    outside = {"wte.weight": (_VOCABULARY, _WIDTH), "wpe.weight": (_POSITIONS, _WIDTH)}
    return shapes | outside | {"ln_f.weight": (_WIDTH,), "ln_f.bias": (_WIDTH,)}


def write_gpt2_layout(path: Path) -> None:
    """A file with the released file's sizes: 160 F32 tensors of random values, data at byte 14,291."""
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    shapes = dict(sorted(gpt2_shapes().items(), key=lambda item: torch.Size(item[1]).numel()))  # short offsets: it fits
    for name, shape in shapes.items():
        nbytes = 4 * torch.Size(shape).numel()
        fields[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(fields, separators=(",", ":")).encode().ljust(HEADER_NBYTES)
    generator = torch.Generator().manual_seed(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write(torch.randn(shape, generator=generator).numpy().data)


def _header_sides(path: Path) -> dict[str, Callable[[], Any]]:
    def theirs() -> None:
        with safetensors.safe_open(path, "pt"):
            pass

    return {"ours": lambda: read_header(path), "theirs": theirs}


def _open_sides(path: Path) -> dict[str, Callable[[], Any]]:
    def ours() -> dict[str, torch.Tensor]:
        with open_safetensors(path) as file:
            return dict(file)

    return {"ours": ours, "theirs": lambda: safetensors.torch.load_file(path)}


def _read_sides(path: Path) -> dict[str, Callable[[], Any]]:
    return {"ours": lambda: load_safetensors(path, mode="copy"), "theirs": path.read_bytes}


def _save_sides(path: Path, folder: Path) -> dict[str, Callable[[], Any]]:
    tensors = load_safetensors(path, mode="copy")
    metadata = {"format": "pt"}

    def theirs() -> None:
        target = folder / "theirs.safetensors"
        safetensors.torch.save_file(tensors, target, metadata=metadata)
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    return {"ours": lambda: save_safetensors(tensors, folder / "ours.safetensors", metadata=metadata), "theirs": theirs}


def _compare(name: str, limit: float, sides: Mapping[str, Callable[[], Any]], repeats: int) -> Measure:
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(repeats + 1):  # the first round warms both up; the best of all counts
        for side, run in sides.items():
            started = time.perf_counter()
            result = run()
            best[side] = min(best[side], time.perf_counter() - started)
            del result  # freed outside the measured time
    return Measure(name=name, seconds=best["ours"], peer_seconds=best["theirs"], limit=limit)
