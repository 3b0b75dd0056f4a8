"""The storage figures: what is drawn is what the records say, for hostile names and for 100,000 tensors."""

import json
import re
from pathlib import Path

import pytest
import torch

from labkit.figures.storage import LANES, MAXIMUM_PIECES, block_of, draw_bits, draw_histogram, draw_layout
from labkit.figures.style import to_png
from labkit.storage import DTYPES, open_safetensors, read_header, save_safetensors
from labkit.storage.crafted import frame
from labkit.storage.widening_by_hand import bit_fields

EVIL = "$\\frac{1}{$\x1b[31m<img>"


def drawn_nbytes(figure: object) -> float:
    """Bytes that the rectangles of the data section cover."""
    data = figure.axes[1]  # type: ignore[attr-defined]
    boxes = [path.vertices for path in data.collections[0].get_paths()]
    return sum(box[:, 0].max() - box[:, 0].min() for box in boxes)


def test_the_layout_covers_the_data_section(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {f"h.{i}.w": torch.zeros(10 + i, 7) for i in range(12)} | {"wte.weight": torch.zeros(100)}
    save_safetensors(tensors, path)
    header = read_header(path)
    figure = draw_layout(header)
    assert drawn_nbytes(figure) == header.data_nbytes
    assert len(figure.axes[1].collections) == 1, "every tensor is aligned, so there are no notches"
    assert {text.get_text() for text in figure.axes[1].texts} == {f"block {i}" for i in range(12)} | {
        "outside the blocks"
    }
    front = [patch.get_width() for patch in figure.axes[0].patches]
    assert front == [8, header.header_nbytes - header.padding_nbytes, header.padding_nbytes]
    assert len(to_png(figure)) > 10_000


def test_unaligned_tensors_have_notches(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    text = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path.write_bytes(frame(text + " " * ((3 - len(text)) % 4), bytes(4)))
    figure = draw_layout(read_header(path))
    assert len(figure.axes[1].collections) == 2
    assert "1 tensor not at a multiple of its own size" in figure.axes[1].get_legend().get_texts()[0].get_text()


def test_a_hundred_thousand_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    fields = {
        f"h.{i // 12}.t{i}": {"dtype": "U8", "shape": [2], "data_offsets": [2 * i, 2 * i + 2]} for i in range(100_000)
    }
    path.write_bytes(frame(json.dumps(fields, separators=(",", ":")), bytes(200_000)))
    header = read_header(path)
    figure = draw_layout(header)
    assert drawn_nbytes(figure) == 200_000
    assert len(figure.axes[1].collections[0].get_paths()) <= MAXIMUM_PIECES + 2 * LANES
    assert len(to_png(figure)) > 10_000


@pytest.mark.parametrize("entries", ["", '"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'])
def test_a_file_without_data(tmp_path: Path, entries: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(frame("{" + entries + "}"))
    assert len(to_png(draw_layout(read_header(path)))) > 1000


def test_hostile_names_are_drawn_as_text(tmp_path: Path) -> None:
    path = tmp_path / "$\\frac{.safetensors"
    save_safetensors({EVIL: torch.randn(100)}, path)
    assert len(to_png(draw_layout(read_header(path)))) > 1000
    with open_safetensors(path) as file:
        figure = draw_histogram(file, EVIL)
    assert "\x1b" not in figure.get_suptitle()
    assert len(to_png(figure)) > 1000


@pytest.mark.parametrize(
    "values",
    [
        torch.linspace(-3, 5, 1000),
        torch.ones(7),
        torch.zeros(3),
        torch.tensor([1.0, float("nan"), float("inf")]),
        torch.arange(9),
    ],
)
def test_the_histogram_counts_every_finite_value(tmp_path: Path, values: torch.Tensor) -> None:
    save_safetensors({"x": values}, tmp_path / "x")
    with open_safetensors(tmp_path / "x") as file:
        figure = draw_histogram(file, "x")
    counts = figure.axes[0].patches[0].get_data().values
    assert counts.sum() == int(values.isfinite().sum())


@pytest.mark.parametrize("values", [torch.zeros(0), torch.tensor([float("nan")])])
def test_a_tensor_without_finite_values_says_so(tmp_path: Path, values: torch.Tensor) -> None:
    save_safetensors({"x": values}, tmp_path / "x")
    with open_safetensors(tmp_path / "x") as file:
        figure = draw_histogram(file, "x")
    assert figure.axes[0].texts[0].get_text() == "no finite value"


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_bits_of_every_dtype(code: str) -> None:
    number = (1 << DTYPES[code].bits) // 3
    figure = draw_bits(bit_fields(code, number))
    shown = "".join(text.get_text() for text in figure.axes[0].texts if re.fullmatch("[01]", text.get_text()))
    assert int(shown, 2) == number
    assert len(shown) == DTYPES[code].bits


def test_blocks_by_name() -> None:
    assert [block_of(name) for name in ("h.0.x", "model.layers.17.y.w", "blocks.3.z", "ln_f.weight", "h.x")] == [
        0,
        17,
        3,
        None,
        None,
    ]
