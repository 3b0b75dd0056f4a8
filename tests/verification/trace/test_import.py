"""Dumps gathered by a map: .npy and raw bytes, offsets, permutations, and what a map can get wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.cli.main import run
from labkit.errors import LabkitError, TraceError
from labkit.verification.trace import open_trace
from labkit.verification.trace_import import read_dumps
from labkit.verification.trace_record import Recorded, record_trace
from labkit.verification.verify_trace import verify_trace


@pytest.fixture
def dumps(checkpoint: Path, tmp_path: Path) -> tuple[Path, dict[str, Any], Recorded]:
    """Every tap of a run as a dump in one of several forms, with the map's fields."""
    recorded = record_trace(checkpoint, engine="labkit", ids=[[5, 6, 7, 8]])
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    entries: dict[str, Any] = {}
    for number, (name, tensor) in enumerate(recorded.tensors.items()):
        file = f"{number}.bin"
        if name == "input_ids":
            tensor.to(torch.int32).numpy().tofile(tmp_path / file)
            entries[name] = {"file": file, "dtype": "int32", "shape": [1, 4]}
        elif tensor.dim() == 4 and number % 2:
            turned = tensor.transpose(1, 2).contiguous()  # heads after positions, as many engines have them
            (tmp_path / file).write_bytes(b"header!!" + turned.numpy().tobytes())
            sizes = list(turned.shape)
            entries[name] = {"file": file, "dtype": "float32", "offset": 8, "shape": sizes, "permute": [0, 2, 1, 3]}
        else:
            order = "F" if number % 3 else "C"
            np.save(tmp_path / f"{number}.npy", np.asarray(tensor.numpy(), order=order).astype(">f4"))
            entries[name] = {"file": f"{number}.npy"}
    fields = {"metadata": {"engine": "dumper", "config": "config.json"}, "tensors": entries}
    (tmp_path / "map.json").write_text(json.dumps(fields))
    return tmp_path / "map.json", fields, recorded


def test_dumps_in_every_form_give_the_same_trace(
    dumps: tuple[Path, dict[str, Any], Recorded], checkpoint: Path, tmp_path: Path
) -> None:
    place, _, recorded = dumps
    out = tmp_path / "out.safetensors"
    assert run(["trace", "--from-dumps", str(place), "-o", str(out)]) == 0
    with open_trace(out) as trace:
        assert trace.metadata.engine == "dumper"
        assert {name: torch.equal(trace[name], t) for name, t in recorded.tensors.items()} == dict.fromkeys(trace, True)
    assert verify_trace(out, checkpoint).verdict == "same"


Edit = Callable[[dict[str, Any]], object]
WRONG: dict[str, tuple[Edit, str]] = {
    "no tensors": (lambda f: f.pop("tensors"), "no object 'tensors'"),
    "no config": (lambda f: f["metadata"].pop("config"), "'config' is missing; write the text of"),
    "config not there": (lambda f: f["metadata"].update(config="none.json"), "none.json: there is no such file"),
    "no file": (lambda f: f["tensors"]["logits"].pop("file"), "tensor 'logits': the map gives no file"),
    "dump not there": (lambda f: f["tensors"]["logits"].update(file="no.npy"), "there is no such dump for tensor"),
    "unknown field": (lambda f: f["tensors"]["logits"].update(shpe=[1]), "no field named 'shpe'"),
    "raw without dtype": (lambda f: f["tensors"]["input_ids"].pop("dtype"), "a raw dump needs its dtype"),
    "raw without shape": (lambda f: f["tensors"]["input_ids"].pop("shape"), "a raw dump needs its shape"),
    "wrong shape": (lambda f: f["tensors"]["input_ids"].update(shape=[1, 5]), "does not fill the shape"),
    "wrong permute": (lambda f: f["tensors"]["input_ids"].update(permute=[0, 0]), "does not name each axis once"),
    "a file that is a number": (
        lambda f: f["tensors"]["logits"].update(file=5),
        "the map cannot be followed: Expected `str`",
    ),
    "a file without a name": (lambda f: f["tensors"]["logits"].update(file=""), "the map cannot be followed"),
    "a file whose name is too long": (lambda f: f["tensors"]["logits"].update(file="a" * 300), "name too long"),
    "a file with a NUL": (lambda f: f["tensors"]["logits"].update(file="a\0"), "cannot be read: embedded null"),
    "a device": (lambda f: f["tensors"]["input_ids"].update(file="/dev/zero"), "not a regular file .got a device"),
    "a folder": (lambda f: f["tensors"]["input_ids"].update(file="."), "it is a folder"),
    "an entry that is a list": (lambda f: f["tensors"].update(logits=["a"]), "the map gives no file"),
    "metadata empty": (lambda f: f.update(metadata={}), "no object 'metadata' .got an empty one"),
    **{
        f"{field} {value!r}": (
            lambda f, field=field, value=value: f["tensors"]["input_ids"].update({field: value}),  # type: ignore[misc]
            told,
        )
        for field, values, told in (
            ("offset", ("x", [1], -1, 1.5, True), r"the map cannot be followed: .*\$\.offset"),
            ("offset", (10**15,), "no whole number of int32"),
            ("dtype", ([], {}, 1), r"the map cannot be followed: .*\$\.dtype"),
            ("dtype", ("complex64", None), "a raw dump needs its dtype"),
            ("permute", ([0, "1"], 1, [False, True], "01", {}), r"the map cannot be followed: .*\$\.permute"),
            ("permute", ([0], [0, 1, 2], [-1, 0]), "does not name each axis once"),
            ("shape", ("x", [-1], [1.5], {}, 4), r"the map cannot be followed: .*\$\.shape"),
            ("shape", ([2**59, 4], []), "does not fill the shape"),
        )
        for value in values
    },
    "odd bytes": (lambda f: f["tensors"]["input_ids"].update(offset=1), "no whole number of int32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_map_gets_wrong_is_named(dumps: tuple[Path, dict[str, Any], Recorded], name: str) -> None:
    place, fields, _ = dumps
    edit, told = WRONG[name]
    edit(fields)
    place.write_text(json.dumps(fields))
    with pytest.raises(LabkitError, match=told):
        read_dumps(place)


def test_files_that_are_no_dumps(dumps: tuple[Path, dict[str, Any], Recorded], tmp_path: Path) -> None:
    place, fields, _ = dumps
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    fields["tensors"]["logits"] = {"file": "pickled.npy"}
    place.write_text(json.dumps(fields))
    with pytest.raises(LabkitError, match="npy file cannot be read"):
        read_dumps(place)
    for data in (
        b"",
        b"PK\x03\x04",
        b"\x93NUMPY\x01\x00",
        _npy_header("(10**15,)"),
        _npy_header("(" * 500 + ")" * 500),
    ):
        (tmp_path / "pickled.npy").write_bytes(data)
        with pytest.raises(LabkitError, match="npy file cannot be read"):
            read_dumps(place)
    np.savez(tmp_path / "several.npz", np.zeros(2))
    (tmp_path / "several.npz").rename(tmp_path / "pickled.npy")
    with pytest.raises(LabkitError, match="npy file cannot be read"):
        read_dumps(place)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "1" * 5000, "\ufeff[]", "[]"])
def test_a_map_that_is_no_object(text: str, tmp_path: Path) -> None:
    place = tmp_path / "map.json"
    place.write_text(text)
    with pytest.raises(TraceError, match=r"not JSON|not a JSON object"):
        read_dumps(place)
    config = {"metadata": {"engine": "mine", "config": "map.json"}, "tensors": {"input_ids": {"file": "a"}}}
    (tmp_path / "other.json").write_text(json.dumps(config))
    with pytest.raises(TraceError, match=r"not JSON|not a JSON object"):
        read_dumps(tmp_path / "other.json")


def _npy_header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
