"""Golden values: an engine written here passes them in every dtype; each small mistake of its own fails them, there only."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from labkit.cli.main import run
from labkit.errors import OutOfRangeError, UnknownNameError
from labkit.model.taps import tap_names
from labkit.verification.golden import golden
from tests.oracles import numpy_gpt2
from tests.oracles.random_checkpoint import write

PROMPTS = [[5, 17, 3, 42, 8, 11], [9, 2, 60]]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

Engine = dict[str, Callable[..., Tensor]]


def engine(parameters: dict[str, Tensor], heads: int) -> Engine:
    """One function a stage of a block, on the tensors that golden values name as its inputs, with torch's own operations."""

    def normed(name: str) -> Callable[..., Tensor]:
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        return lambda x: functional.layer_norm(x, [x.shape[-1]], weight, bias, 1e-5)

    def third(place: int) -> Callable[..., Tensor]:
        def split(x: Tensor) -> Tensor:
            packed = torch.addmm(
                parameters["h.1.attn.c_attn.bias"], x.flatten(0, 1), parameters["h.1.attn.c_attn.weight"]
            )
            own = packed.view(*x.shape[:2], 3, heads, -1)[:, :, place]  # [batch, pos, head, head_dim]
            return own.transpose(1, 2)  # [batch, head, pos, head_dim]

        return split

    def projected(name: str) -> Callable[..., Tensor]:
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        return lambda x: torch.addmm(bias, x.flatten(0, 1), weight).view(*x.shape[:2], -1)

    def pattern(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()  # [pos_q, pos_k]
        seen = seen if mask is None else seen & (mask > 0)[:, None, None, :]  # [batch, 1, pos_q, pos_k]
        return scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num()

    return {
        "wte": lambda ids: parameters["wte.weight"][ids],
        "wpe": lambda positions: parameters["wpe.weight"][positions],
        "embed": torch.add,
        "h.1.ln_1": normed("h.1.ln_1"),
        **{f"h.1.attn.{letter}": third(place) for place, letter in enumerate("qkv")},
        "h.1.attn.scores": lambda q, k: q @ k.mT / math.sqrt(q.shape[-1]),
        "h.1.attn.pattern": pattern,
        "h.1.attn.z": torch.matmul,
        "h.1.attn.out": lambda z: projected("h.1.attn.c_proj")(z.transpose(1, 2).flatten(2)),
        "h.1.resid_mid": torch.add,
        "h.1.ln_2": normed("h.1.ln_2"),
        "h.1.mlp.pre": projected("h.1.mlp.c_fc"),
        "h.1.mlp.post": lambda x: functional.gelu(x, approximate="tanh"),
        "h.1.mlp.out": projected("h.1.mlp.c_proj"),
        "h.1.resid_post": torch.add,
        "ln_f": normed("ln_f"),
        "logits": lambda x: x @ parameters["wte.weight"].T,
    }


STAGES = ["wte", "wpe", "embed", "h.1.*", "ln_f", "logits"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("golden")
    write(place, seed=3)
    return place


def written(folder: Path, place: Path, *options: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What a test of another engine reads: the tensors and the metadata of the file that the command writes."""
    assert run(["golden", str(folder), "-o", str(place), *options]) == 0
    with safe_open(place, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118  (no mapping)


def beyond(held: dict[str, Tensor], metadata: dict[str, str], stages: Engine) -> dict[str, float]:
    """The stages at which an engine leaves the budget, with how far, in budgets."""
    found = {}
    for tap, read in json.loads(metadata["operations"]).items():
        actual = stages[tap](*(held[name] for name in read["inputs"])).double()
        error, budget = (actual - held[f"{tap}.expected"]).abs(), held[f"{tap}.budget"]
        if not bool((error <= budget).all()):
            found[tap] = float(torch.where(error > 0, error / budget, 0.0).max())
    return found


def rows(prompts: list[list[int]]) -> list[str]:
    return [each for row in prompts for each in ("--ids", ",".join(map(str, row)))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "padded"])
def test_a_right_engine_passes(folder: Path, tmp_path: Path, dtype: str, prompts: list[list[int]]) -> None:
    taps = [each for name in STAGES for each in ("--taps", name)]
    held, metadata = written(folder, tmp_path / "g", "--dtype", dtype, *rows(prompts), *taps)
    parameters = {name: value.to(DTYPES[dtype]) for name, value in parameters_of(folder).items()}
    stages = engine(parameters, heads=3)
    assert json.loads(metadata["operations"]).keys() == stages.keys()
    assert beyond(held, metadata, stages) == {}


def parameters_of(folder: Path) -> dict[str, Tensor]:
    loaded = safetensors.numpy.load_file(folder / "model.safetensors")
    return {name.removeprefix("transformer."): torch.from_numpy(value) for name, value in loaded.items()}


def mistaken(parameters: dict[str, Tensor]) -> dict[str, Callable[..., Tensor]]:
    """One small mistake a stage."""
    right = engine(parameters, heads=3)
    swapped = engine({**parameters, "h.1.attn.c_attn.bias": parameters["h.1.attn.c_attn.bias"].flip(0)}, heads=3)

    def norm(x: Tensor) -> Tensor:
        weight, bias = parameters["h.1.ln_1.weight"], parameters["h.1.ln_1.bias"]
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * weight + bias  # N - 1

    def without_mask(scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -10.0).softmax(-1)

    return {
        "wte": lambda ids: torch.nextafter(right["wte"](ids), torch.tensor(9.0)),
        "wpe": lambda positions: right["wpe"](positions + 1),
        "h.1.ln_1": norm,
        "h.1.attn.q": swapped["h.1.attn.q"],
        "h.1.attn.scores": lambda q, k: q @ k.mT / math.sqrt(q.shape[-1] + 1e-3),
        "h.1.attn.pattern": without_mask,
        "h.1.attn.z": lambda pattern, v: pattern.bfloat16().float() @ v,
        "h.1.mlp.post": functional.gelu,
        "h.1.resid_post": lambda a, b: a + b * (1 + 1e-5),
        "logits": lambda x: x @ parameters["wte.weight"].bfloat16().float().T,
    }


def test_a_mistake_fails_at_its_stage_and_at_no_other(folder: Path, tmp_path: Path) -> None:
    taps = [each for name in STAGES for each in ("--taps", name)]
    held, metadata = written(folder, tmp_path / "g", *rows(PROMPTS[:1]), *taps)
    parameters = parameters_of(folder)
    right = engine(parameters, heads=3)
    for tap, wrong in mistaken(parameters).items():
        found = beyond(held, metadata, {**right, tap: wrong})
        assert list(found) == [tap]
        assert found[tap] > 2


def test_every_expected_value_is_that_of_an_independent_forward(folder: Path) -> None:
    made = golden(folder, ids=PROMPTS[:1], dtype="float64")
    config = json.loads((folder / "config.json").read_text())
    theirs = numpy_gpt2.stages(parameters_of(folder), config, PROMPTS[:1])
    assert [each.tap for each in made.operations] == list(theirs)
    for tap, expected in theirs.items():
        seen = np.isfinite(made.tensors[f"{tap}.budget"].numpy())
        np.testing.assert_allclose(made.tensors[f"{tap}.expected"].numpy()[seen], expected[seen], rtol=1e-9, atol=1e-11)


def test_what_means_nothing_has_no_bound_and_what_is_exact_has_none_to_spare(folder: Path) -> None:
    made = golden(folder, ids=PROMPTS, taps=["wte", "h.0.attn.scores", "h.0.attn.pattern", "h.0.resid_mid"])
    scores, pattern = (made.tensors[f"h.0.attn.{name}.budget"] for name in ("scores", "pattern"))
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    assert bool(scores[:, :, future].isinf().all())
    assert bool(scores[0, :, ~future].isfinite().all())
    assert not pattern[0, :, future].any()
    assert bool(scores[1, :, :3].isinf().all())  # three places of padding
    assert bool(made.tensors["h.0.resid_mid.budget"][1, :3].isinf().all())
    assert not made.tensors["wte.budget"][0].any()
    assert made.operations[2].inputs == ("h.0.attn.scores", "attention_mask")


def test_the_file_says_what_it_is(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, metadata = written(folder, tmp_path / "g.safetensors", "--ids", "1,2", "--taps", "h.0.attn.[qz]")
    told = capsys.readouterr().out
    assert "g.safetensors: 2 operations in 9 tensors, " in told
    assert (metadata["format"], metadata["version"], metadata["compute_dtype"]) == ("labkit-golden", "1", "float32")
    assert json.loads(metadata["operations"])["h.0.attn.q"] == {
        "inputs": ["h.0.ln_1"],
        "parameters": ["h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias"],
    }
    assert run(["verify", str(folder), "--trace", str(tmp_path / "g.safetensors")]) == 2
    assert "expected 'labkit-trace', got 'labkit-golden'" in capsys.readouterr().err


def test_what_cannot_be_asked(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownNameError, match=r"no operation's tap named 'h.0.attn.merged'"):
        golden(folder, ids=[[1]], taps="h.0.attn.merged")
    with pytest.raises(OutOfRangeError, match=r"beyond the vocabulary"):
        golden(folder, ids=[[500]])
    for options in (["--taps", "h.9.*"], ["--ids", "1", "--prompt", "a"], ["--ids", "x"]):
        place = tmp_path / "none.safetensors"
        assert run(["golden", str(folder), "-o", str(place), *options]) == 2
        assert capsys.readouterr().err.startswith("labkit: ")
        assert not place.exists()
    assert run(["golden", str(folder), "-o", str(folder / "model.safetensors"), "--ids", "1"]) == 2
    assert "the output is the input" in capsys.readouterr().err


def test_every_stage_is_an_operation() -> None:
    made = golden(ids=[[5, 6]])
    config = type("Config", (), {"n_layer": 4})
    assert [each.tap for each in made.operations] == list(tap_names(config))  # type: ignore[arg-type]
    assert str(made).startswith("61 operations in 184 tensors, ")
