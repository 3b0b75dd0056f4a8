"""Invariants: clean engines keep all, each planted fault breaks those it must, for models, callables and traces."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.cli.main import run
from labkit.errors import ArgumentError, ArgumentTypeError, TraceError
from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.verification.faults import FAULTS
from labkit.verification.invariants import INVARIANTS, InvariantResult, check_callable, check_model, check_trace
from labkit.verification.trace import Trace, open_trace, write_trace
from labkit.verification.trace_record import record_trace
from tests.oracles import random_checkpoint

BREAKS = {
    "no-mask": {"causality", "prefix", "cache", "pattern", "token-0"},
    "mask-finite-10": {"causality", "prefix", "cache", "padding", "pattern", "token-0"},
    "mask-after-softmax": {"causality", "prefix", "cache", "padding", "pattern", "token-0"},
    "softmax-bfloat16": {"pattern"},
    "padding-attended": {"padding"},
    "positions-ignore-padding": {"cache", "padding"},
    "dropout-left-on": {"prefix", "cache", "batch", "padding", "pattern", "token-0"},
    "mix-of-keys": {"token-0"},
    "transpose-c_proj": {"token-0"},
    "merge-interleaved": {"token-0"},
    "logits-before-ln_f": {"tied-logits"},
    "head-off-by-one": {"tied-logits"},
    "erf-gelu": set(),  # a function of one position's values: no invariant of this kind can see it
    "scale-missing": set(),
}
"""Fault -> the invariants that it breaks when planted in block 0; every other one must hold."""


@pytest.fixture(scope="module")
def model() -> GPT2:
    return load_gpt2()


def _broken(results: tuple[InvariantResult, ...]) -> set[str]:
    return {result.name for result in results if result.verdict == "broken"}


def _named(results: tuple[InvariantResult, ...], name: str) -> InvariantResult:
    return next(result for result in results if result.name == name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_embedded_checkpoint_keeps_every_invariant(dtype: torch.dtype) -> None:
    results = check_model(load_gpt2(dtype=dtype))
    assert tuple(result.name for result in results) == INVARIANTS
    assert [(result.name, result.detail) for result in results if result.verdict != "held"] == []
    assert "bit for bit" in _named(results, "causality").detail


@pytest.mark.parametrize("name", BREAKS)
def test_each_fault_breaks_its_invariants_and_no_other(name: str, model: GPT2) -> None:
    results = check_model(FAULTS[name].plant(model, 0), reference=model)
    assert _broken(results) == BREAKS[name]
    for result in results:
        if result.verdict == "broken":
            assert result.used > 1
            assert result.where is not None


def test_the_place_is_the_tap_where_the_fault_begins(model: GPT2) -> None:
    results = check_model(FAULTS["mask-one-ahead"].plant(model, 2), reference=model)
    assert _named(results, "causality").where == "h.2.attn.pattern"
    assert "changing token 1 of 12 moves what comes before it: h.2.attn.pattern" in _named(results, "causality").detail


@pytest.mark.parametrize("seed", range(6))
def test_random_checkpoints_keep_every_invariant(seed: int, tmp_path: Path) -> None:
    fields = random_checkpoint.random_fields(seed)
    random_checkpoint.write(tmp_path, seed=seed, **fields)
    results = check_model(load_gpt2(tmp_path))
    assert _broken(results) == set()
    tied = "held" if fields["tie_word_embeddings"] else "not applicable"
    assert _named(results, "tied-logits").verdict == tied


def test_one_token_leaves_what_needs_two_unanswered(model: GPT2) -> None:
    verdicts = {result.name: result.verdict for result in check_model(model, ids=[[7]])}
    unanswered = {name for name, verdict in verdicts.items() if verdict == "not applicable"}
    assert unanswered == {"causality", "prefix", "cache"}
    assert "broken" not in verdicts.values()


def test_the_worst_of_several_rows_counts(model: GPT2) -> None:
    wrapping = FAULTS["no-mask"].plant(model, 0)
    assert "causality" in _broken(check_model(wrapping, reference=model, ids=[[5], [5, 6, 7]]))


def _leak(model: GPT2, size: float) -> Callable[[Tensor], Tensor]:
    """Logits with a little of the next position's in them."""

    def engine(ids: Tensor) -> Tensor:
        logits = model(ids)  # [batch, pos, vocab]
        return logits + size * logits.roll(-1, dims=1)

    return engine


def test_a_leak_below_rounding_is_still_a_leak(model: GPT2) -> None:
    """Equality bit for bit is asked where shapes are the same: 1e-6 of the next position moves a last bit somewhere."""
    assert "causality" in _broken(check_callable(_leak(model, 1e-6), model))
    assert _broken(check_callable(_leak(model, 0.0), model)) == set()


def test_a_callable_is_asked_for_what_it_offers(model: GPT2) -> None:
    def masked(ids: Tensor, mask: Tensor) -> Tensor:
        return model.run(ids, attention_mask=mask).logits

    plain = {result.name: result for result in check_callable(model, model)}
    assert {name for name, result in plain.items() if result.verdict == "held"} == {
        "causality",
        "prefix",
        "batch",
        "tied-logits",
    }
    assert "without an attention mask" in plain["padding"].detail
    full = {result.name: result.verdict for result in check_callable(model, model, masked=masked, cached=model)}
    assert full["padding"] == full["cache"] == "held"

    def ignores_mask(ids: Tensor, _mask: Tensor) -> Tensor:
        return model(ids)

    def stale(ids: Tensor) -> Tensor:
        return model(torch.cat([ids[:, :1], ids[:, :-1]], dim=1))

    assert _broken(check_callable(model, model, masked=ignores_mask, cached=stale)) == {"padding", "cache"}


def test_a_callable_with_another_head_is_seen_by_the_span_of_wte(model: GPT2) -> None:
    assert _broken(check_callable(lambda ids: model(ids).roll(1, dims=-1), model)) == {"tied-logits"}
    tied = _named(check_callable(lambda ids: model(ids)[..., :-1], model), "tied-logits")
    assert (tied.verdict, tied.detail) == ("broken", "2047 logits a position, 2048 rows of wte")


def test_an_engine_that_draws_at_random_is_held_to_rounding(model: GPT2) -> None:
    """An engine that does not repeat itself bit for bit, as on some devices, keeps causality within rounding."""

    def jitter(ids: Tensor) -> Tensor:
        logits = model(ids)
        return logits * (1 + 2**-23 * torch.randint(0, 2, logits.shape))

    causality = _named(check_callable(jitter, model), "causality")
    assert causality.verdict == "held"
    assert "within rounding" in causality.detail


def test_an_engine_that_ignores_its_ids_proves_nothing(model: GPT2) -> None:
    fixed = model([[1] * 12])
    result = _named(check_callable(lambda ids: fixed[:, : ids.shape[1]].expand(len(ids), -1, -1), model), "causality")
    assert result.verdict == "not applicable"
    assert "does not read its ids" in result.detail


def test_an_engine_that_refuses_batches_leaves_them_unanswered(model: GPT2) -> None:
    def single(ids: Tensor) -> Tensor:
        if len(ids) > 1:
            raise RuntimeError("batch of one only\nsecond line")
        return model(ids)

    result = _named(check_callable(single, model), "batch")
    assert (result.verdict, result.detail) == (
        "not applicable",
        "the engine could not be run so: RuntimeError: batch of one only",
    )


def test_what_is_not_finite_is_broken(model: GPT2) -> None:
    def poisoned(ids: Tensor) -> Tensor:
        logits = model(ids)
        logits[:, 2:, 5] = torch.nan
        return logits

    assert {"prefix", "batch"} <= _broken(check_callable(poisoned, model))


@pytest.mark.parametrize(
    ("engine", "kind", "text"),
    [
        (lambda ids: ids, ArgumentTypeError, "expected a dense tensor of float64"),
        (lambda ids: torch.zeros(1, 9), ArgumentError, "not the last alone"),
        (lambda ids: "logits", ArgumentTypeError, "expected a tensor"),
    ],
)
def test_what_is_no_logits_is_refused(
    engine: Callable[[Tensor], Tensor], kind: type[Exception], text: str, model: GPT2
) -> None:
    with pytest.raises(kind, match=text):
        check_callable(engine, model)


def _trace(path: Path, ids: list[list[int]], *, plant: list[str] | None = None, steps: int = 0) -> Trace:
    recorded = record_trace(engine="labkit", ids=ids, plant=plant or [], steps=steps)
    write_trace(path / "t.safetensors", recorded.tensors, recorded.metadata)
    return open_trace(path / "t.safetensors")


ALIKE = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 11, 12, 13], [5, 6, 7]]


def test_a_clean_trace_of_rows_that_begin_alike(model: GPT2, tmp_path: Path) -> None:
    with _trace(tmp_path, ALIKE, steps=2) as trace:
        results = check_trace(trace, model)
    assert {result.name for result in results if result.verdict == "held"} == {
        "causality",
        "cache",
        "padding",
        "pattern",
        "token-0",
        "tied-logits",
    }
    assert "share their first 3 tokens" in _named(results, "causality").detail


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("no-mask", {"causality", "pattern", "token-0", "padding"}),
        ("padding-attended", {"padding", "pattern", "token-0"}),
        ("transpose-c_proj", {"token-0"}),
        ("head-off-by-one", {"tied-logits"}),
    ],
)
def test_faults_in_a_trace(fault: str, broken: set[str], model: GPT2, tmp_path: Path) -> None:
    with _trace(tmp_path, ALIKE, plant=[fault]) as trace:
        assert _broken(check_trace(trace, model)) == broken


def test_a_stale_cache_in_a_trace(model: GPT2, tmp_path: Path) -> None:
    recorded = record_trace(engine="labkit", ids=[[5, 6, 7]], taps=["h.*.attn.k", "logits"], steps=1)
    tensors = dict(recorded.tensors)
    for block in range(4):
        own = f"h.{block}.attn.k"
        tensors[f"step.0.{own}"] = torch.cat([tensors[own], tensors[f"step.0.{own}"]], dim=2)
    for spoilt in (False, True):
        if spoilt:
            tensors["step.0.h.2.attn.k"][0, 1, 1, 3] += 1e-3
        write_trace(tmp_path / "t.safetensors", tensors, recorded.metadata)
        with open_trace(tmp_path / "t.safetensors") as trace:
            result = _named(check_trace(trace, model), "cache")
        assert result.verdict == ("broken" if spoilt else "held")
    assert result.where == "step.0.h.2.attn.k"


def test_a_trace_stored_in_bfloat16_is_not_at_fault(model: GPT2, tmp_path: Path) -> None:
    recorded = record_trace(engine="labkit", ids=ALIKE)
    narrow = {k: v.bfloat16() if v.is_floating_point() else v for k, v in recorded.tensors.items()}
    write_trace(tmp_path / "t.safetensors", narrow, recorded.metadata)
    with open_trace(tmp_path / "t.safetensors") as trace:
        assert _broken(check_trace(trace, model)) == set()


def test_a_trace_of_another_model_is_refused(model: GPT2, tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path / "other", seed=0)
    with _trace(tmp_path, [[1, 2]]) as trace, pytest.raises(TraceError, match="another model"):
        check_trace(trace, load_gpt2(tmp_path / "other"))


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["invariants", "--ids", "5,6,7,8"]) == 0
    assert "8 of 8 invariants hold" in capsys.readouterr().out
    assert run(["invariants", "--ids", "5,6,7,8", "--plant", "no-mask:1"]) == 1
    assert "no-mask:1, planted on purpose, breaks causality, prefix, cache" in capsys.readouterr().out
    _trace(tmp_path, ALIKE, plant=["transpose-c_proj"]).close()
    assert run(["invariants", "--trace", str(tmp_path / "t.safetensors"), "--json", "-"]) == 1
    assert '"headline": "broken: token-0' in capsys.readouterr().out
    assert run(["invariants", "--prompt", "a", "--ids", "1"]) == 2
    assert "both given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("faults", "code", "told"),
    [
        (
            ["no-mask"],
            1,
            "no-mask, planted on purpose, breaks causality, prefix, cache",
        ),
        (["relu:1"], 0, "relu:1, planted on purpose, breaks none of them: 8 of 8 invariants hold"),
        (["relu", "no-mask:1"], 1, "relu and no-mask:1, planted on purpose, break causality"),
        ([], 0, "8 of 8 invariants hold"),
    ],
)
def test_a_planted_fault_is_told_with_what_it_breaks(
    faults: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A violation is what was wanted, and a fault that breaks nothing is no praise of the model."""
    options = [word for fault in faults for word in ("--plant", fault)]
    assert run(["invariants", "--ids", "5,6,7", *options]) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith(told)
    assert run(["invariants", "--ids", "5,6,7", *options, "--json", "-"]) == code
    written = json.loads(capsys.readouterr().out)
    assert (written["planted"], written["return_code"]) == (faults, code)
    assert written["headline"].startswith(told)
