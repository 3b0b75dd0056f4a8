"""The hex viewer and the header explorer: views equal the file, ask for no more than is shown, and escape every name."""

from pathlib import Path

import pytest
import torch

from labkit.errors import ArgumentError, FormatError, UnknownNameError
from labkit.storage import read_header, save_safetensors
from labkit.widgets import HeaderExplorer, HexViewer
from labkit.widgets.header_view import PAGE
from labkit.widgets.hex_view import MAXIMUM_FOUND

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "model.safetensors"
    save_safetensors(
        {"a": torch.arange(40), EVIL: torch.ones(3), "c": torch.zeros(5).bfloat16()}, place, metadata={EVIL: EVIL}
    )
    return place


def test_the_view_is_the_file(path: Path) -> None:
    data = path.read_bytes()
    viewer = HexViewer(path, rows=1000)
    shown = b"".join(bytes.fromhex(row["bytes"]) for row in viewer.view["rows"])
    assert shown == data
    owners = viewer.view["owners"]
    for row in viewer.view["rows"]:
        assert len(row["owners"]) == len(row["bytes"]) // 2
        for place, number in enumerate(row["owners"]):
            assert owners[number]["begin"] <= row["offset"] + place < owners[number]["end"]


def test_only_the_rows_in_view_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = HexViewer(path, rows=4)
    reads: list[int] = []
    source = viewer._file._source
    read_into = source.read_into
    monkeypatch.setattr(
        source, "read_into", lambda begin, buffer: (reads.append(len(buffer)), read_into(begin, buffer))
    )
    viewer.set_state({"place": {"top": 400, "at": 410, "search": ""}})
    assert sum(reads) <= 4 * 16 + 1 + 8


def test_a_file_of_500_mb(tmp_path: Path) -> None:
    """Holes on disk stand for the data: the viewer reads a page of it."""
    place = tmp_path / "large.safetensors"
    nbytes = 500_000_000
    text = f'{{"a":{{"dtype":"U8","shape":[{nbytes}],"data_offsets":[0,{nbytes}]}}}}'.encode()
    with place.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + nbytes)
    viewer = HexViewer(place, at=400_000_000)
    assert f"element [{400_000_000 - 8 - len(text)}] of U8" in viewer.view["meaning"]
    viewer.go_to("0x1dcd6500")
    assert viewer.view["at"] == 500_000_000


def test_choosing_a_byte_keeps_it_in_view(path: Path) -> None:
    viewer = HexViewer(path, rows=4)
    for at, top in ((0, 0), (16 * 4, 16), (16 * 9, 0), (10**9, 0), (-5, 100)):
        viewer.set_state({"place": {"top": top, "at": at, "search": ""}})
        view = viewer.view
        assert view["top"] <= view["at"] < view["top"] + 16 * 4
        assert view["top"] % 16 == 0
    assert viewer.error == ""


@pytest.mark.parametrize(("text", "at"), [("300", 300), ("0x12c", 300), ("1_00", 100), ("3,00", 300), (" 42 ", 42)])
def test_going_to_an_offset(path: Path, text: str, at: int) -> None:
    viewer = HexViewer(path)
    viewer._handle_custom_msg({"go": text}, [])
    assert viewer.view["at"] == at


def test_going_to_a_tensor_and_to_one_that_is_not_there(path: Path) -> None:
    viewer = HexViewer(path)
    viewer._handle_custom_msg({"go": EVIL}, [])
    assert viewer.view["at"] == read_header(path).span(EVIL)[0]
    viewer._handle_custom_msg({"go": "b"}, [])
    assert "no tensor named 'b'" in viewer.error
    viewer._handle_custom_msg({"go": "0"}, [])
    assert viewer.error == ""
    viewer._handle_custom_msg("nonsense", [])
    assert viewer.error == ""


def test_the_twins_escape_every_name(path: Path) -> None:
    for twin in (HexViewer(path, rows=100).twin(), HeaderExplorer(path).twin()):
        assert "<img" not in twin
        assert "&lt;img src=x onerror=alert(1)&gt;" in twin


def test_what_the_chosen_byte_means(path: Path) -> None:
    viewer = HexViewer(path, tensor="c")
    assert [field["name"] for field in viewer.view["fields"]] == ["sign", "exponent", "mantissa"]
    assert viewer.view["meaning"].startswith(
        f"byte {viewer.view['at']:,} is 0x00: element [0] of BF16 [5] of tensor 'c' = 0.0"
    )
    assert len(repr(viewer)) < 160


def test_the_list_of_tensors_is_cut_and_searched(tmp_path: Path) -> None:
    place = tmp_path / "many.safetensors"
    save_safetensors({f"t{i}": torch.zeros(1) for i in range(300)}, place)
    viewer = HexViewer(place)
    assert len(viewer.view["found"]) == MAXIMUM_FOUND
    assert viewer.view["hidden"] == 300 - MAXIMUM_FOUND
    viewer.set_state({"place": {**viewer.place, "search": "T29"}})
    assert [each["name"] for each in viewer.view["found"]] == ["t29"] + [f"t29{i}" for i in range(10)]


def test_bad_arguments(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="the viewer needs a row"):
        HexViewer(path, rows=0)
    with pytest.raises(UnknownNameError, match="no tensor named 'b'"):
        HexViewer(path, tensor="b")
    (tmp_path / "bad.safetensors").write_bytes(b"x")
    with pytest.raises(FormatError, match="too short"):
        HexViewer(tmp_path / "bad.safetensors")


def test_the_explorer_pages_sorts_and_searches(tmp_path: Path) -> None:
    place = tmp_path / "many.safetensors"
    save_safetensors({f"t{i}": torch.zeros(i) for i in range(60)}, place)
    explorer = HeaderExplorer(place)
    assert (explorer.view["count"], explorer.view["pages"], len(explorer.view["tensors"])) == (60, 3, PAGE)
    explorer.set_state({"asked": {"search": "", "sort": "size", "page": 99, "chosen": "t7"}})
    assert explorer.view["page"] == 2
    assert explorer.view["tensors"][-1]["name"] == "t0"
    assert explorer.view["chosen"]["name"] == "t7"
    explorer.set_state({"asked": {"search": "t5", "sort": "name", "page": 0, "chosen": "gone"}})
    assert [each["name"] for each in explorer.view["tensors"]] == ["t5"] + [f"t5{i}" for i in range(10)]
    assert explorer.view["chosen"] is None
    header = read_header(place)
    assert all((each["begin"], each["end"]) == header.span(each["name"]) for each in explorer.view["tensors"])
    assert explorer.error == ""


def test_the_bundles_hold_a_twin_and_a_short_repr(path: Path) -> None:
    for widget in (HexViewer(path), HeaderExplorer(path)):
        data, _metadata = widget._repr_mimebundle_()
        assert set(data) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
        assert len(data["text/plain"]) < 160
