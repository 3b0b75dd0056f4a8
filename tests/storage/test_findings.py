"""Statistics, comparison, export and the byte view, each against an independent way of finding the same."""

import math
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.errors import ArgumentError, OutOfRangeError
from labkit.storage import (
    DTYPES,
    RawTensor,
    open_safetensors,
    open_snapshot,
    read_header,
    save_safetensors,
    save_snapshot,
)
from labkit.storage.battery import crafted_files
from labkit.storage.byteview import ByteView
from labkit.storage.checking import check_path
from labkit.storage.comparison import TensorDiff, common_names, compare_snapshots
from labkit.storage.crafted import entry, frame
from labkit.storage.exporting import export_tensor
from labkit.storage.statistics import measure_tensor
from labkit.storage.widening_by_hand import widen_by_hand


@pytest.mark.parametrize("code", sorted(set(DTYPES) - {"C64"}))
@pytest.mark.parametrize("max_nbytes", [24, 1 << 20])
@np.errstate(all="ignore")
def test_statistics_of_every_dtype(tmp_path: Path, code: str, max_nbytes: int) -> None:
    path = tmp_path / "x"
    octets = np.random.default_rng(1).integers(0, 2 if code == "BOOL" else 256, 30 * DTYPES[code].bits, dtype=np.uint8)
    save_safetensors({"x": RawTensor(code, (240,), octets.tobytes())}, path)
    values = widen_by_hand(code, octets.tobytes()).astype(np.float64)
    if code in ("F64", "I64", "U64", "I32", "U32"):
        values = octets.view(DTYPES[code].numpy).astype(np.float64)
    finite = values[np.isfinite(values)]
    with open_safetensors(path, mode="copy") as file:
        found = measure_tensor(file, "x", max_nbytes=max_nbytes)
    assert (found.numel, found.nans, found.infinities) == (240, np.isnan(values).sum(), np.isinf(values).sum())
    assert found.zeros == (values == 0).sum()
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    scale = np.abs(finite).max()
    assert found.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-12 * scale)
    if math.isfinite(scale * scale):
        assert found.std == pytest.approx(finite.std(), rel=1e-9, abs=1e-12 * scale)


def test_statistics_where_nothing_is_finite(tmp_path: Path) -> None:
    save_safetensors({"nan": torch.tensor([math.nan, -math.inf]), "none": torch.zeros(0)}, tmp_path / "x")
    with open_safetensors(tmp_path / "x") as file:
        found = measure_tensor(file, "nan")
        assert (found.nans, found.infinities, found.zeros) == (1, 1, 0)
        assert math.isnan(found.mean)
        assert math.isnan(measure_tensor(file, "none").minimum)


def difference(tmp_path: Path, a: dict[str, object], b: dict[str, object], **options: int) -> dict[str, TensorDiff]:
    save_safetensors(a, tmp_path / "a.safetensors")
    save_safetensors(b, tmp_path / "b.safetensors")
    with open_snapshot(tmp_path / "a.safetensors") as first, open_snapshot(tmp_path / "b.safetensors") as second:
        return {tensor.name: tensor for tensor in compare_snapshots(first, second, **options).tensors}


@pytest.mark.parametrize("max_nbytes", [1, 1 << 24])
def test_differences(tmp_path: Path, max_nbytes: int) -> None:
    base = torch.linspace(1, 2, 1000)
    changed = base.clone()
    changed[777] = torch.nextafter(torch.nextafter(changed[777], torch.tensor(9.0)), torch.tensor(9.0))
    found = difference(
        tmp_path,
        {
            "same": base.clone(),
            "ulp": base,
            "dtype": base.bfloat16().clone(),
            "shape": torch.zeros(2, 3),
            "a": torch.zeros(1),
        },
        {
            "same": base.clone(),
            "ulp": changed,
            "dtype": base.bfloat16().float(),
            "shape": torch.zeros(3, 2),
            "b": torch.zeros(1),
        },
        max_nbytes=max_nbytes,
    )
    assert {name: tensor.verdict for name, tensor in found.items()} == {
        "same": "same",
        "ulp": "values",
        "dtype": "dtype",
        "shape": "shape",
        "a": "only in A",
        "b": "only in B",
    }
    ulp = found["ulp"]
    assert (ulp.differing, ulp.ulp, ulp.worst) == (1, 2, 777)
    assert ulp.max_abs == abs(float(changed[777]) - float(base[777]))
    assert (found["dtype"].differing, found["dtype"].max_abs) == (0, 0.0)


@pytest.mark.parametrize(
    "code", [code for code, dtype in DTYPES.items() if dtype.kind == "float" and code != "F8_E8M0"]
)
def test_ulp_counts_steps_through_the_values_of_each_dtype(tmp_path: Path, code: str) -> None:
    """From -smallest to +smallest there are two steps, whatever the dtype."""
    bits = DTYPES[code].bits
    positive, negative = 1, (1 << (bits - 1)) + 1
    raw = [np.array([number] * 4, dtype=np.uint64) for number in (positive, negative)]
    if bits % 8:
        from labkit.storage.arrays import pack_codes

        data = [pack_codes(numbers.astype(np.uint8), bits).tobytes() for numbers in raw]
    else:
        data = [numbers.astype(f"<u{bits // 8}").tobytes() for numbers in raw]
    a, b = (RawTensor(code, (4,), octets) for octets in data)
    found = difference(tmp_path, {"x": a}, {"x": b})["x"]
    assert (found.ulp, found.differing) == (2, 4)


@pytest.mark.parametrize(
    ("a", "b", "differing"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), 1),
        (torch.tensor([math.nan]), torch.tensor([math.nan]), 0),
        (torch.tensor([math.nan]), torch.tensor([1.0]), 1),
        (torch.tensor([math.inf]), torch.tensor([math.inf]), 0),
        (torch.tensor([2**62]), torch.tensor([2**62 + 1]), 1),
        (torch.tensor([1e308, -1e308]).double(), torch.tensor([-1e308, 1e308]).double(), 2),
    ],
)
def test_odd_values(tmp_path: Path, a: torch.Tensor, b: torch.Tensor, differing: int) -> None:
    found = difference(tmp_path, {"x": a}, {"x": b})["x"]
    assert found.differing == differing
    assert found.verdict == ("values" if differing else "same")


def test_sharding_and_prefixes_do_not_matter(tmp_path: Path) -> None:
    tensors = {f"h.{i}.w": torch.full((10,), float(i)) for i in range(6)}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    save_snapshot(tensors, tmp_path / "a")
    save_snapshot(
        {f"transformer.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "b", max_shard_nbytes=80
    )
    with open_snapshot(tmp_path / "a") as a, open_snapshot(tmp_path / "b") as b:
        found = compare_snapshots(a, b)
    assert found.return_code == 0
    assert str(found) == "all 6 tensors are the same, bit for bit"
    assert found.notes == ("names of B are compared without the prefix 'transformer.'",)


def test_prefixes_are_taken_off_only_where_that_helps() -> None:
    assert common_names(["a.x", "a.y"], ["a.x", "b.z"]) == ("", "")
    assert common_names([], []) == ("", "")
    assert common_names(["odd.x.w", "odd.y.w"], ["x.w", "y.w"]) == ("odd.", "")


@pytest.mark.parametrize("code", sorted(set(DTYPES) - {"C64"}))
@np.errstate(all="ignore")
def test_exports_of_every_dtype(tmp_path: Path, code: str) -> None:
    octets = np.random.default_rng(2).integers(0, 2 if code == "BOOL" else 256, 3 * DTYPES[code].bits, dtype=np.uint8)
    save_safetensors({"x": RawTensor(code, (6, 4), octets.tobytes())}, tmp_path / "x")
    expected = widen_by_hand(code, octets.tobytes()).reshape(6, 4)
    with open_safetensors(tmp_path / "x", mode="copy") as file:
        assert export_tensor(file, "x", tmp_path / "x.f32", form="f32") == 24
        np.testing.assert_array_equal(np.fromfile(tmp_path / "x.f32", "<f4").reshape(6, 4), expected)
        export_tensor(file, "x", tmp_path / "x.npy", form="npy")
        array = np.load(tmp_path / "x.npy")
        np.testing.assert_array_equal(array.astype(np.float32), expected)
        if DTYPES[code].numpy:
            assert array.dtype == np.dtype(DTYPES[code].numpy)
        assert export_tensor(file, "x", tmp_path / "x.csv", form="csv", rows=(2, 5)) == 12
        lines = (tmp_path / "x.csv").read_text().splitlines()
        assert len(lines) == 3
        if code != "BOOL":
            read = np.array([[float(cell) for cell in line.split(",")] for line in lines])
            np.testing.assert_array_equal(read.astype(np.float32), expected[2:5])


def test_export_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    save_safetensors({"x": torch.zeros(3), "s": torch.tensor(1.0)}, tmp_path / "x")
    with open_safetensors(tmp_path / "x") as file:
        with pytest.raises(OutOfRangeError, match=r"the rows leave the tensor .*got 2:9"):
            export_tensor(file, "x", tmp_path / "out", rows=(2, 9))
        with pytest.raises(ArgumentError, match="a scalar has no rows"):
            export_tensor(file, "s", tmp_path / "out", rows=(0, 1))
        with pytest.raises(ArgumentError, match="no such format"):
            export_tensor(file, "x", tmp_path / "out", form="png")
        export_tensor(file, "s", tmp_path / "s.csv", form="csv")
    assert (tmp_path / "s.csv").read_text() == "1\n"
    assert not (tmp_path / "out").exists()


def test_every_byte_has_one_owner(tmp_path: Path) -> None:
    """Walking from owner to owner covers every accepted crafted file, without gap or overlap."""
    path = tmp_path / "x.safetensors"
    for file in crafted_files():
        if file.code is not None or len(file.data) > 5000:
            continue
        path.write_bytes(file.data)
        with ByteView(path) as view:
            position = 0
            for owner in view.owners.between(0, len(file.data)):
                assert owner.begin == position, file.name
                position = owner.end
                assert view.owners.at(owner.end - 1) == owner
                if owner.kind == "element":
                    assert owner.tensor in view.header.entries
            assert position == len(file.data)


def test_elements_are_found_among_empty_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    entries = [
        entry("z", "F32", "[0]", "[0,0]"),
        entry("a", "U8", "[2,3]", "[0,6]"),
        entry("y", "F32", "[0]", "[6,6]"),
        entry("b", "I16", "[1]", "[6,8]"),
        entry("x", "F32", "[0]", "[8,8]"),
    ]
    path.write_bytes(frame("{" + ",".join(entries) + "}", bytes(range(8))))
    header = read_header(path)
    with ByteView(path) as view:
        owner = view.owners.at(header.data_start + 5)
        assert (owner.tensor, owner.meaning) == ("a", "element [1, 2] of U8 [2, 3]")
        assert view.owners.at(header.data_start + 7).tensor == "b"
        assert "= 1798 (sign 0 value" in str(view.meaning(header.data_start + 6))
        assert [row.offset for row in view.rows(20, 20)] == [16, 32]
        with pytest.raises(OutOfRangeError, match="the byte lies beyond the file"):
            view.rows(header.file_nbytes, 1)
        with pytest.raises(OutOfRangeError, match="the byte lies beyond the file"):
            view.meaning(-1)


def test_a_byte_in_a_long_header_is_found_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    count = 50_000
    entries = ",".join(entry(f"t{i}", "U8", "[1]", f"[{i},{i + 1}]") for i in range(count))
    path.write_bytes(frame("{" + entries + "}", bytes(count)))
    with ByteView(path) as view:
        middle = 8 + entries.index('"t40000"') + 1
        assert view.owners.at(middle).meaning == "the name of tensor 't40000'"
        assert view.owners.at(middle + 30).tensor == "t40000"
        assert view.owners._tokens_of.cache_info().currsize == 1, "only that entry was looked at"
        assert view.owners.at(8 + view.header.header_nbytes - 1).meaning == "JSON"


def test_packed_elements_share_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_safetensors({"x": RawTensor("F6_E2M3", (4,), bytes(3))}, path)
    with ByteView(path) as view:
        start = view.header.data_start
        assert [view.owners.at(start + i).meaning for i in range(3)] == [
            f"elements {pair} of F6_E2M3 [4]" for pair in ("[0] and [1]", "[1] and [2]", "[2] and [3]")
        ]


@pytest.mark.parametrize(
    ("make", "caution"),
    [
        (frame("{" + entry() + "}", bytes(4)), "data-unaligned"),
        (
            frame(
                ("{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", offsets="[1,5]") + "}").ljust(120), bytes(5)
            ),
            "tensor-unaligned",
        ),
        (frame("{" + entry() + "}\n", bytes(4)), "padding-not-spaces"),
        (frame("{" + entry("a\\u001b") + "}", bytes(4)), "name-unprintable"),
        (frame("{" + entry("<b>") + "}", bytes(4)), "name-markup"),
        (frame("{" + entry("../a") + "}", bytes(4)), "name-path"),
        (frame("{" + entry("/etc/passwd") + "}", bytes(4)), "name-path"),
        (frame("{" + entry("  ") + "}", bytes(4)), "name-blank"),
        (frame("{" + entry("a ") + "}", bytes(4)), "name-padded"),
        (frame('{"__metadata__":{"":"v"},' + entry() + "}", bytes(4)), "metadata-key-empty"),
        (frame('{"__metadata__":{"k":"<script>"},' + entry() + "}", bytes(4)), "metadata-markup"),
        (frame('{"__metadata__":{"k":"\\u0007"},' + entry() + "}", bytes(4)), "metadata-unprintable"),
        (frame("{" + entry("a", "F4", "[2,1]", "[0,1]") + "}", b"x"), "f4-unpaired"),
        (frame("{" + entry("a", "BOOL", "[2]", "[0,2]") + "}", b"\x01\x02"), "bool-bytes"),
        (frame("{" + entry("a", "U8", "[22]", "[0,22]") + "}", b"PK\x05\x06" + bytes(18)), "also-zip"),
    ],
)
def test_cautions(tmp_path: Path, make: bytes, caution: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(make)
    found = check_path(tmp_path / "x.safetensors")
    assert found.return_code == 0
    assert caution in [each.code for each in found.cautions]
    assert all(str(tmp_path) in str(each) for each in found.cautions)


def test_a_plain_file_has_no_cautions(tmp_path: Path) -> None:
    save_safetensors(
        {"h.0.ln_1.weight": torch.ones(3), "mask": torch.ones(2, dtype=torch.bool)},
        tmp_path / "x.safetensors",
        metadata={"format": "pt"},
    )
    assert str(check_path(tmp_path / "x.safetensors")) == "1 file, 0 defects, 0 cautions"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory as Linux counts it")
def test_streaming_keeps_memory_bounded(tmp_path: Path) -> None:
    """Statistics, comparison and export of a 1 GB tensor of bytes take less than 200 MB."""
    place = tmp_path / "large.safetensors"
    nbytes = 1_000_000_000
    text = "{" + entry("a", "U8", f"[{nbytes}]", f"[0,{nbytes}]") + "}"
    with place.open("wb") as file:
        file.write(frame(text))
        file.truncate(8 + len(text) + nbytes)
    program = f"""
        import resource
        from labkit.storage import open_snapshot
        from labkit.storage.comparison import compare_snapshots
        from labkit.storage.exporting import export_tensor
        from labkit.storage.statistics import measure_tensor

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        with open_snapshot({str(place)!r}, mode="copy") as a, open_snapshot({str(place)!r}, mode="copy") as b:
            before = peak()
            assert measure_tensor(a.file_of("a"), "a").zeros == {nbytes}
            assert compare_snapshots(a, b).return_code == 0
            export_tensor(a.file_of("a"), "a", {str(tmp_path / "out.npy")!r})
            print(peak() - before)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert int(child.stdout) < 200_000_000
