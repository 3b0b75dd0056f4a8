"""One element explained: its sum is what the run holds, its bytes are the file's, and a trace's faults show."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.cli.main import run
from labkit.errors import ArgumentError, OutOfRangeError, TraceError, UnknownNameError
from labkit.model.taps import extra_tap_names, tap_axes, tap_names
from labkit.storage import save_safetensors
from labkit.verification.explain import explain
from labkit.verification.explanation import Explanation
from labkit.verification.trace import open_trace, write_trace
from labkit.verification.trace_record import record_trace
from tests.oracles.random_checkpoint import write

IDS = [[5, 17, 3, 42, 8, 11]]
SIZES = {
    "batch": 1,
    "pos": 6,
    "pos_q": 6,
    "pos_k": 6,
    "head": 3,
    "head_dim": 8,
    "n_embd": 24,
    "n_inner": 96,
    "3*n_embd": 72,
    "vocab": 97,
}

FORMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "as released": ({}, ["--no-check"]),
    "bfloat16": ({}, ["--dtype", "bfloat16"]),
    "float16, in shards": ({}, ["--dtype", "float16", "--shard-size", "20KB"]),
    "untied head, every flag": (
        {"tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu"},
        [],
    ),
}


@pytest.fixture(scope="module", params=FORMS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields, options = FORMS[request.param]
    place = tmp_path_factory.mktemp("explain")
    write(place / "source", seed=4, **fields)
    assert run(["convert", str(place / "source"), str(place / "form"), *options]) == 0
    return place / "form"


def elements(seed: int) -> list[str]:
    """An element of every tap of every block, drawn from the seed; of a pattern one that is seen."""
    generator = torch.Generator().manual_seed(seed)
    config = type("Config", (), {"n_layer": 3})
    found = []
    for name in (*tap_names(config), *extra_tap_names(config)):  # type: ignore[arg-type]
        index = [int(torch.randint(SIZES[axis], (1,), generator=generator)) for axis in tap_axes(name)]
        if name.endswith(("scores", "pattern")):
            index[-2:] = sorted(index[-2:], reverse=True)
        found.append(f"{name}{index}")
    return found


def stored(folder: Path, made: Explanation) -> None:
    """Every weight is what its bytes say."""
    weights = [factor for term in made.terms for factor in term.factors if ".weight[" in factor.label]
    placed = [factor for term in made.terms for factor in term.factors if factor.place is not None]
    assert len(placed) >= len(weights)
    for factor in placed:
        place = factor.place
        assert place is not None
        data = (folder / place.file).read_bytes()[place.begin : place.end]
        if place.dtype == "BF16":
            (value,) = struct.unpack("<f", b"\0\0" + data)
        else:
            (value,) = struct.unpack({"F32": "<f", "F16": "<e"}[place.dtype], data)
        assert value == factor.value, factor.label


@pytest.mark.parametrize("seed", range(2))
def test_the_sum_is_what_the_run_holds_and_the_bytes_are_the_file_s(folder: Path, seed: int) -> None:
    for element in elements(seed):
        made = explain(element, folder, ids=IDS)
        assert made.held is not None, element
        assert abs(made.value - made.held) <= 16 * made.unit * made.magnitude + 1e-12, element
        assert len({term.factors for term in made.terms}) == len(made.terms)
        stored(folder, made)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("explain") / "plain"
    write(place, seed=4)
    return place


def test_a_fault_shows_at_its_stage_and_the_stages_after_it_are_right_on_their_own_inputs(
    plain: Path, tmp_path: Path
) -> None:
    recorded = record_trace(plain, engine="labkit", ids=IDS, plant=["qkv-order:1"])
    write_trace(tmp_path / "t.safetensors", recorded.tensors, recorded.metadata)
    off = {}
    for element in elements(2):
        if not element.startswith("h.1.attn.c_attn") and not element.startswith("h.1.attn.merged"):
            made = explain(element, plain, trace=tmp_path / "t.safetensors")
            if made.held is not None:
                off[element.split("[")[0]] = abs(made.held - made.value) / (made.unit * made.magnitude or 1)
    assert {name for name, size in off.items() if size > 1000} == {"h.1.attn.q", "h.1.attn.k"}
    assert max(size for name, size in off.items() if name not in ("h.1.attn.q", "h.1.attn.k")) < 16


def test_padding_and_positions_of_a_trace_count(plain: Path, tmp_path: Path) -> None:
    recorded = record_trace(plain, engine="hf", ids=[[5, 6, 7, 8], [9, 10]])
    write_trace(tmp_path / "t.safetensors", recorded.tensors, recorded.metadata)
    place = explain("wpe[1, 2, 3]", plain, trace=tmp_path / "t.safetensors")
    assert place.terms[0].factors[0].label == "wpe.weight[0, 3]"  # two places of padding come before it
    assert place.value == place.held
    pattern = explain("h.1.attn.pattern[1, 0, 3, 3]", plain, trace=tmp_path / "t.safetensors")
    assert "over the 2 keys" in pattern.before[-1].label
    hidden = explain("h.1.attn.pattern[1, 0, 3, 1]", plain, trace=tmp_path / "t.safetensors")
    assert (hidden.terms, hidden.value, hidden.held) == ((), 0, 0)


def test_a_trace_that_lacks_what_is_needed_or_has_it_in_another_shape_is_refused(plain: Path, tmp_path: Path) -> None:
    recorded = record_trace(plain, engine="labkit", ids=IDS, taps=["h.0.ln_1", "h.0.attn.z"])
    file = tmp_path / "t.safetensors"
    write_trace(file, recorded.tensors, recorded.metadata)
    assert explain("h.0.attn.q[0, 0, 1, 2]", plain, trace=file).held is None
    with pytest.raises(TraceError, match=r"record h\.0\.attn\.q as well"):
        explain("h.0.attn.scores[0, 0, 1, 1]", plain, trace=file)
    with open_trace(file) as trace:
        tensors = {**trace, "h.0.ln_1": trace["h.0.ln_1"].transpose(1, 2).contiguous()}
        save_safetensors(tensors, tmp_path / "turned.safetensors", metadata=trace.file.metadata)
    with pytest.raises(TraceError, match=r"h\.0\.ln_1.*expected \[1, 6, 24\], got \[1, 24, 6\]"):
        explain("h.0.attn.q[0, 0, 1, 2]", plain, trace=tmp_path / "turned.safetensors")
    with pytest.raises(ArgumentError, match="brings its own prompt"):
        explain("h.0.attn.q[0, 0, 1, 2]", plain, trace=file, ids=IDS)


@pytest.mark.parametrize(
    ("element", "kind", "match"),
    [
        ("h.0.attn.q", ArgumentError, "not an element"),
        ("h.0.attn.q[1,a]", ArgumentError, "not an element"),
        ("h.0.attn.q[]", ArgumentError, "not an element"),
        ("h.0.attn.q[" + "9" * 5000 + "]", ArgumentError, "not an element"),
        ("\x1b[31m[0]", ArgumentError, "not an element"),
        ("h.0.attn.q[0, 1]", ArgumentError, "4: batch, head, pos, head_dim of"),
        ("h.0.attn.q[0, 3, 0, 0]", OutOfRangeError, "axis head.*expected 0 to 2, got 3"),
        ("h.0.attn.q[0, 0, 0, -9]", OutOfRangeError, "axis head_dim"),
        ("h.9.attn.q[0, 0, 0, 0]", UnknownNameError, "no tap named"),
        ("h.0.attn.qq[0, 0, 0, 0]", UnknownNameError, r"did you mean.*h\.0\.attn\.q"),
    ],
)
def test_what_is_no_element_is_refused(plain: Path, element: str, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        explain(element, plain, ids=IDS)


def test_values_that_are_not_finite_are_shown(plain: Path, tmp_path: Path) -> None:
    recorded = record_trace(plain, engine="labkit", ids=IDS)
    recorded.tensors["h.0.ln_1"][0, 1, 2:4] = torch.tensor([torch.inf, -torch.inf])
    write_trace(tmp_path / "t.safetensors", recorded.tensors, recorded.metadata)
    made = explain("h.0.mlp.out[0, 1, 2]", plain, trace=tmp_path / "t.safetensors")
    assert made.value == pytest.approx(made.held, rel=1e-4)
    assert not abs(explain("h.0.attn.q[0, 0, 1, 2]", plain, trace=tmp_path / "t.safetensors").value) < 1e9


def test_the_command_shows_the_largest_terms_and_writes_them_all(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", "h.0.attn.q[0,0,-1,2]", str(plain), "--ids", "5,17,3", "--top", "2"]) == 0
    shown = capsys.readouterr().out
    assert "h.0.attn.q[0, 0, 2, 2], axes batch, head, pos, head_dim" in shown
    assert "23 more" in shown
    assert run(["explain", "h.0.attn.q[0,0,-1,2]", str(plain), "--ids", "5,17,3", "--json", "-"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made["terms"]) == 25
    assert sum(term["value"] for term in made["terms"]) == pytest.approx(made["held"], abs=1e-5)
    assert made["terms"][1]["factors"][1]["place"]["file"] == "model.safetensors"
    assert run(["explain", "h.0.attn.q[0,0,9,2]", str(plain), "--ids", "5,17,3"]) == 2
    assert run(["explain", "h.0.attn.pattern[0,0,1,2]", str(plain), "--ids", "5,17,3"]) == 0
    assert "may not look" in capsys.readouterr().out
