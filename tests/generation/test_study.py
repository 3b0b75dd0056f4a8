"""The roofline's arithmetic and figure, the dtype study's numbers against numbers made another way."""

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2LMHeadModel

from labkit.bench.generate import MEMORY, _Bench
from labkit.errors import ArgumentError, NonFiniteError
from labkit.figures.roofline import draw_roofline
from labkit.generation import forget, generate, generate_batch
from labkit.generation.decoder import FastDecoder
from labkit.generation.dtype_study import DtypeResult, DtypeStudy, NotFinite, dtype_study
from labkit.generation.prepared import prepare
from labkit.generation.roofline import Beside, Rate, Roofline, bytes_per_token, operations_per_token, read_bandwidth
from labkit.generation.threads import sensible_threads, threads
from labkit.load import load_gpt2
from labkit.model import GPT2

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def test_bytes_per_token_are_every_weight_but_the_tables_looked_up(random_model: GPT2) -> None:
    parameters = dict(random_model.parameters_by_name)
    for looked_up in ("wte.weight", "wpe.weight"):  # the head is untied here
        del parameters[looked_up]
    expected = sum(each.nbytes for each in parameters.values())
    assert bytes_per_token(random_model, length=0) == expected
    assert bytes_per_token(random_model, length=10) == expected + 10 * 3 * 2 * 24 * 4
    assert bytes_per_token(random_model, length=0, batch=4) == expected / 4
    matrices = sum(each.numel() for name, each in parameters.items() if each.dim() == 2)
    assert operations_per_token(random_model, length=0) == 2 * matrices


def test_shares_goals_and_text() -> None:
    rate = Rate(
        name="decode",
        dtype="float32",
        tokens_per_second=18.0,
        bytes_per_token=5e8,
        operations_per_token=2.5e8,
        share=0.9,
        goal=0.9,
        beside=(Beside(name="transformers", tokens_per_second=20.0, ratio=0.9, goal=1.0),),
    )
    bench = Roofline(folder="gpt2", device="cpu", threads=2, clock="wall", bandwidth=1e10, peak=1e11, rates=(rate,))
    assert bench.goals() == (
        ("decode, float32: 0.90 of the limit", True),
        ("decode, float32: 1.00x transformers", False),
    )
    assert bench.return_code == 1
    assert "0.90 of the limit (goal 0.90) ok" in str(bench)
    assert "ratio 0.90 (goal 1.00) short" in str(bench)


def test_ratios_are_taken_within_rounds_and_the_median_counts(random_folder: Path, random_model: GPT2) -> None:
    """In one round of three the machine is ten times slower, on all sides: that tells nothing of the ratio."""
    bench = _Bench(random_folder, "random", torch.device("cpu"), 8, 3, [1, 2], "wall", lambda _step: None)
    moved = bytes_per_token(random_model, length=2 + 8 / 2)
    rounds = {"labkit": [10.0, 1.0, 12.0], "transformers": [5.0, 0.4, 6.0], MEMORY: [20 * moved, 2 * moved, 16 * moved]}
    rate = bench._rate("decode", random_model, rounds, goals={"transformers": 2.1})
    assert rate.share == pytest.approx(0.5)
    assert rate.tokens_per_second == 10.0
    assert [(other.ratio, other.tokens_per_second, other.goal) for other in rate.beside] == [(2.0, 5.0, 2.1)]


def test_the_figure_holds_every_point_and_the_peer_s() -> None:
    rates = tuple(
        Rate(
            name=f"decode {dtype}",
            dtype=dtype,
            tokens_per_second=18.0,
            bytes_per_token=5e8,
            operations_per_token=2.5e8,
            beside=(Beside(name="transformers", tokens_per_second=9.0, ratio=2.0),),
        )
        for dtype in ("float32", "bfloat16")
    )
    figure = draw_roofline(
        Roofline(folder="gpt2", device="cpu", threads=2, clock="wall", bandwidth=1e10, peak=1e11, rates=rates)
    )
    axes = figure.axes[0]
    points = [tuple(each.get_offsets()[0]) for each in axes.collections if len(each.get_offsets())]
    assert points.count((0.5, 4.5)) == 2
    assert points.count((0.5, 2.25)) == 2
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "operations per byte" in axes.get_xlabel()


def test_the_figure_s_labels_stand_apart_and_inside_it() -> None:
    def rate(name: str, dtype: str, speed: float, nbytes: float) -> Rate:
        fields = {"tokens_per_second": speed, "bytes_per_token": nbytes, "operations_per_token": 2.5e8}
        return Rate(name=name, dtype=dtype, share=0.8, **fields)

    rates = (
        *(rate("decode", "float32", 48.1, 5e8), rate("look-up, no repeats", "float32", 48.2, 5e8)),
        *(rate("decode", "bfloat16", 95.1, 2.5e8), rate("decode", "float16", 95.2, 2.5e8)),
        *(rate("batch of 8", "float32", 1053.0, 6e7), rate("batch of 8", "bfloat16", 1060.0, 3e7)),
        rate("look-up, text repeats", "float32", 2070.0, 5e8),
    )
    place = {"device": "cpu", "threads": 2, "clock": "wall", "bandwidth": 3e10, "peak": 1.2e11}
    figure = draw_roofline(Roofline(folder="/models/of/mine/gpt2", rates=rates, **place))  # type: ignore[arg-type]
    assert figure.get_suptitle().startswith("gpt2: decode reaches")
    figure.draw_without_rendering()  # lays it out
    labels = [each for each in figure.axes[0].texts if each.get_text()]
    assert {each.get_text().split(": ")[1] for each in labels} >= {"1,053 tokens/s", "48.1 tokens/s"}
    boxes = [Text.get_window_extent(each) for each in [*labels, *figure.legends[0].get_texts()]]  # without their lines
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    whole, plot = figure.bbox, figure.axes[0].get_window_extent()
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes)
    assert not any(plot.overlaps(box) for box in boxes)


def test_bandwidth_is_of_the_order_of_memory() -> None:
    speed = read_bandwidth(torch.device("cpu"), nbytes=2**25, repeats=1)
    assert 1e8 < speed < 1e13


def test_threads_come_back(random_model: GPT2) -> None:
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert sensible_threads(random_model) == 1


def test_what_is_prepared_is_kept_and_made_anew_after_a_change(random_folder: Path) -> None:
    model = load_gpt2(random_folder, mode="owned")
    first = prepare(model)
    assert prepare(model) is first
    model.parameters_by_name["lm_head.weight"][3] = 0
    assert prepare(model) is not first
    assert not prepare(model).head[:, 3].any()


def test_the_study_s_numbers(random_folder: Path) -> None:
    study = dtype_study(random_folder, ids=IDS, dtypes=[torch.bfloat16, torch.float64], tokens=20)
    models = {
        dtype: GPT2LMHeadModel.from_pretrained(random_folder, dtype=dtype, attn_implementation="eager").eval()
        for dtype in (torch.float32, torch.float64)
    }
    ids = torch.tensor([IDS])
    with torch.no_grad():
        logits = {dtype: model(ids).logits[0].double() for dtype, model in models.items()}
        loss = float(models[torch.float64](ids, labels=ids).loss)
    assert study.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    short, exact = study.results
    assert isinstance(short, DtypeResult)
    assert isinstance(exact, DtypeResult)
    assert exact.max_logit_difference < 1e-4
    assert exact.parting is None
    reference = float((logits[torch.float32] - logits[torch.float64]).abs().max())
    assert exact.max_logit_difference < 10 * reference + 1e-6
    assert 1e-3 < short.max_logit_difference < 3
    assert [name for name, _ in short.depths] == ["embed", *(f"h.{i}.resid_post" for i in range(3)), "ln_f"]
    assert all(1e-4 < error < 0.1 for _, error in short.depths)


def test_a_parting_is_found_and_judged(random_folder: Path, tmp_path: Path) -> None:
    """A prompt whose first id wins by less than bfloat16 can hold: the texts part there, by a coin flip."""
    partings = []
    for seed in range(12):
        ids = torch.randint(257, (8,), generator=torch.Generator().manual_seed(seed)).tolist()
        study = dtype_study(random_folder, ids=ids, dtypes=[torch.bfloat16], tokens=50)
        assert isinstance(study.results[0], DtypeResult)
        partings.append(study.results[0].parting)
    found = [each for each in partings if each is not None]
    assert found
    assert all(each.lead >= 0 and each.float32_id != each.other_id for each in found)
    assert sum(each.coin_flip for each in found) == len(found)


def study_with(folder: Path, target: Path, name: str, factor: float, dtypes: list[torch.dtype]) -> DtypeStudy:
    """A study of the checkpoint with one parameter made larger."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    tensors[f"transformer.{name}"] *= factor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return dtype_study(target, ids=IDS, dtypes=dtypes, tokens=4)


def test_a_perplexity_beyond_float64_is_told(random_folder: Path, tmp_path: Path) -> None:
    study = study_with(random_folder, tmp_path / "sure", "ln_f.weight", 3000.0, [torch.bfloat16])
    assert study.perplexity == math.inf
    assert "float32 perplexity inf (over 709 nats a token)\n" in str(study)
    assert "perplexity inf (over 709 nats a token)\n" in str(study).split("bfloat16")[1]


def test_a_dtype_that_overflows_is_told_beside_the_others(random_folder: Path, tmp_path: Path) -> None:
    study = study_with(random_folder, tmp_path / "large", "ln_f.weight", 60000.0, [torch.float16, torch.bfloat16])
    broken, short = study.results
    assert isinstance(broken, NotFinite)
    assert broken.told.startswith("ln_f: the first tap that is not finite (got ")
    assert isinstance(short, DtypeResult)
    assert short.max_logit_difference > 0
    assert "\n  float16: nothing to compare, ln_f: the first tap that is not finite" in str(study)
    with pytest.raises(NonFiniteError, match="ln_f: the first tap that is not finite"):
        study_with(random_folder, tmp_path / "beyond", "ln_f.weight", 3e38, [])


def test_what_cannot_be_studied(random_folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"text: too short to study .*got 1"):
        dtype_study(random_folder, ids=[1])
    with pytest.raises(ArgumentError, match="a text and ids were both given"):
        dtype_study(random_folder, ids=[1, 2], text="Hi")


EDITS: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda each: each.mul_(0.5),
    "in place, one value": lambda each: each[(0,) * each.dim()].add_(1.0),
    "data flipped": lambda each: each.data.copy_(each.data.flip(0)),
    "data scaled": lambda each: each.data.mul_(0.5),
    "data exchanged": lambda each: setattr(each, "data", each.data.flip(0).contiguous()),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_an_edited_parameter_is_followed(random_folder: Path, edit: str, dtype: torch.dtype, batch: int) -> None:
    for name in ("wte.weight", "lm_head.weight", "h.1.mlp.c_fc.weight", "h.0.attn.c_attn.bias", "ln_f.weight"):
        model = load_gpt2(random_folder, mode="owned", dtype=dtype)
        before = FastDecoder(model, batch=batch).prefill([[0, 1, 2]] * batch)
        EDITS[edit](model.parameters_by_name[name])
        logits = FastDecoder(model, batch=batch).prefill([[0, 1, 2]] * batch)  # [batch, vocab]
        exact = model([0, 1, 2])[0, -1]  # [vocab]
        assert (logits - exact).abs().max() < (1e-3 if dtype == torch.float32 else 0.5)
        assert not torch.equal(logits, before)


def test_one_value_changed_behind_torch_s_count_is_followed_when_told(random_folder: Path) -> None:
    model = load_gpt2(random_folder, mode="owned")
    likeliest = generate(model, [1, 2, 3], tokens=1).ids[0]
    table = model.parameters_by_name["lm_head.weight"]
    table.data[7] = 50 * table.data[likeliest]  # no value of row 7 is one of those sampled
    assert generate(model, [1, 2, 3], tokens=1).ids == (likeliest,)
    forget(model)
    assert generate(model, [1, 2, 3], tokens=1).ids == generate(model, [1, 2, 3], tokens=1, cache=False).ids == (7,)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_model_made_in_inference_mode_generates(random_folder: Path, batch: int) -> None:
    expected = generate(load_gpt2(random_folder), [1, 2, 3], tokens=12).ids
    with torch.inference_mode():
        model = load_gpt2(random_folder, mode="owned")
        assert generate(model, [1, 2, 3], tokens=12).ids == expected
    for options in ({}, {"cache": False}, {"lookup": True} if batch == 1 else {}):
        for each in generate_batch(model, [[1, 2, 3]] * batch, tokens=12, **options):
            assert each.ids == expected
    with torch.inference_mode():
        model.parameters_by_name["lm_head.weight"].copy_(model.parameters_by_name["lm_head.weight"].flip(0))
    cached, whole = (generate(model, [1, 2, 3], tokens=12, cache=cache).ids for cache in (True, False))
    assert cached == whole != expected
