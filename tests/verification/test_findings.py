"""Findings: the planted cause is named with its place; without its hypothesis it is none of the known faults."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import labkit
from labkit.load import load_gpt2
from labkit.model import GPT2, Operations
from labkit.report.coverage import coverage_line
from labkit.verification.chain import Inputs, build_chain
from labkit.verification.faults import FAULTS
from labkit.verification.finding import merge_findings
from labkit.verification.hypotheses import HYPOTHESES
from labkit.verification.operations import gelu_sigmoid
from labkit.verification.precision import Precision
from labkit.verification.standard import Standard
from labkit.verification.verdict import expect_locally
from tests.oracles import random_checkpoint

IDS = torch.tensor([[5, 17, 3, 90, 42, 7, 11, 60, 21, 8, 33, 2, 71, 64, 9, 28]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random")
    random_checkpoint.write(path, seed=21, n_embd=48, n_head=4)
    return path


@pytest.fixture(scope="module")
def standard(folder: Path) -> Standard:
    return Standard(folder, load_gpt2(folder).config, Precision())


def test_names_are_unique_and_there_are_more_than_thirty() -> None:
    names = [hypothesis.name for hypothesis in HYPOTHESES]
    assert len(set(names)) == len(names) >= 30


@pytest.mark.parametrize(
    "name",
    [
        "transpose-c_proj",
        "erf-gelu",
        "epsilon-1e-6",
        "qkv-order",
        "no-mask",
        "k-for-v",
        "residual-twice",
        "tf32-mlp.c_fc",
    ],
)
def test_a_fault_is_named_where_it_was_planted_and_unknown_without_its_hypothesis(
    name: str, folder: Path, standard: Standard
) -> None:
    block = 0 if name.startswith("epsilon") else 1  # in a late block the variance hides epsilon
    taps = FAULTS[name].plant(load_gpt2(folder), block).run(IDS, taps="all").taps
    (finding,) = standard.judge(taps, Inputs(IDS)).findings
    assert (finding.where, finding.cause, finding.kind) == (FAULTS[name].expected_stage(block), name, "named")
    assert finding.error_replayed is not None
    assert finding.error_replayed < finding.error_right / 10
    without = [each for each in HYPOTHESES if each.name != name and not each.fitted]
    (finding,) = standard.judge(taps, Inputs(IDS), hypotheses=without).findings
    assert (finding.cause, finding.kind) == (None, "unknown")
    assert "none of the known faults" in str(finding)


def test_two_faults_in_different_blocks_are_both_named(folder: Path, standard: Standard) -> None:
    once = FAULTS["erf-gelu"].plant(load_gpt2(folder), 0)
    first = once.run(IDS, taps="all").taps
    twice = FAULTS["transpose-c_proj"].plant(load_gpt2(folder), 2)
    both = GPT2(
        twice.config,
        twice.parameters_by_name,
        block_operations={0: replace(Operations(), activation=torch.nn.functional.gelu)},
    )
    taps = both.run(IDS, taps="all").taps
    assert torch.equal(taps["h.0.mlp.post"], first["h.0.mlp.post"])
    findings = standard.judge(taps, Inputs(IDS)).findings
    assert [(each.where, each.cause) for each in findings] == [
        ("h.0.mlp.post", "erf-gelu"),
        ("h.2.attn.out", "transpose-c_proj"),
    ]


def test_an_unusual_epsilon_is_solved_for_with_its_uncertainty(folder: Path, standard: Standard) -> None:
    taps = FAULTS["epsilon-3e-4"].plant(load_gpt2(folder), 0).run(IDS, taps="all").taps
    (finding,) = standard.judge(taps, Inputs(IDS)).findings
    assert finding.cause == "epsilon-solved"
    value, error = (float(part) for part in finding.text.split("epsilon = ")[1].split(" ± "))
    assert abs(value - 3e-4) < max(4 * error, 1e-6)


def test_a_clean_run_has_no_finding_and_says_what_it_could_not_have_seen(folder: Path, standard: Standard) -> None:
    case = standard.judge(load_gpt2(folder).run(IDS, taps="all").taps, Inputs(IDS))
    assert case.findings == ()
    assert {"erf-gelu", "no-mask", "qkv-order", "positions-off-by-one"} <= set(case.coverage.seen)
    assert {"positions-wrap-64", "padding-attended", "mask-finite-1e4", "head-tied"} <= set(case.coverage.unseen)


def test_coverage_is_measured_in_every_block_and_where_it_is_not_that_is_said(folder: Path, standard: Standard) -> None:
    """Spans of many stages are rehearsed in the first and the last block only; one token shows no mask anywhere."""
    taps = load_gpt2(folder).run(IDS, taps="all").taps
    whole = standard.judge(taps, Inputs(IDS)).coverage
    assert whole.stages_seen("erf-gelu") == tuple(f"h.{block}.mlp.post" for block in range(3))
    assert whole.stages_seen("previous-block-attn.c_attn") == ("h.1.attn.q", "h.2.attn.q")
    assert (whole.skipped, whole.untried) == ((), ())
    few = {tap: value for tap, value in taps.items() if tap.endswith("resid_post") or tap == "logits"}
    coverage = standard.judge(few, Inputs(IDS)).coverage
    assert coverage.stages_seen("erf-gelu") == ("h.0.mlp.post", "h.2.mlp.post")
    assert coverage.stages_unseen("erf-gelu") == ()
    assert {stage.split(".")[1] for stage in coverage.skipped} == {"1"}
    assert "not rehearsed, since too many stages lie between those that are there: ln_1 of block 1" in coverage_line(
        coverage
    )
    alone = standard.judge({"h.0.mlp.pre": taps["h.0.mlp.pre"]}, Inputs(IDS)).coverage
    assert {"erf-gelu", "dropout-left-on", "logits-scaled"} <= set(alone.unseen), "nothing recorded comes after"
    last = standard.judge({"logits": taps["logits"]}, Inputs(IDS)).coverage
    assert "erf-gelu" in last.untried
    assert "erf-gelu" not in last.unseen


def test_one_token_cannot_show_a_missing_mask(standard: Standard, folder: Path) -> None:
    one = torch.tensor([[5]])
    case = standard.judge(load_gpt2(folder).run(one, taps="all").taps, Inputs(one))
    assert {"no-mask", "mask-one-ahead", "scale-missing"} - set(case.coverage.seen) == {"no-mask", "mask-one-ahead"}


def test_a_bfloat16_engine_passes_and_its_erf_gelu_is_named() -> None:
    """The fault is smaller than bfloat16's rounding at every element; the pattern of errors shows it."""
    clean = labkit.verify(dtype="bfloat16", tokens=0)
    assert clean.verdict == "same", clean.headline()
    faulty = labkit.verify(dtype="bfloat16", tokens=0, plant="erf-gelu:1")
    assert faulty.verdict == "differs"
    assert [(finding.where, finding.cause) for finding in faulty.findings] == [("h.1.mlp.post", "erf-gelu")]


def test_a_cause_has_to_beat_no_fault_by_a_margin(folder: Path) -> None:
    """One value just beyond its budget lies within another hypothesis's, which explains all others no better."""
    model, tap, precision = load_gpt2(folder, dtype=torch.bfloat16), "h.1.mlp.post", Precision.of(torch.bfloat16)
    standard, taps = Standard(folder, model.config, precision), dict(model.run(IDS, taps="all").taps)
    stages = build_chain(model.config, standard.weights, Inputs(IDS))
    right = expect_locally(stages[tap], stages, taps, precision)
    moved = (gelu_sigmoid(taps["h.1.mlp.pre"].double()) - right.output) / right.budget  # [batch, pos, n_inner]
    place = int(moved.abs().argmax())
    value = right.output + 1.03 * moved.sign() * right.budget
    assert 0.06 < float(moved.abs().max()) < 0.5
    taps[tap] = taps[tap].clone()
    taps[tap].flatten()[place] = value.flatten()[place].bfloat16()
    (finding,) = standard.judge({name: taps[name] for name in (*stages[tap].inputs, tap)}, Inputs(IDS)).findings
    assert (finding.where, finding.cause, finding.kind) == (tap, None, "unknown")


def test_a_wrong_shape_and_a_nan_are_findings_of_their_own(folder: Path, standard: Standard) -> None:
    model = load_gpt2(folder)
    taps = dict(FAULTS["wrong-head-count"].plant(model, 0).run(IDS, taps="all").taps)
    finding = standard.judge(taps, Inputs(IDS)).findings[0]
    assert (finding.where, finding.cause) == ("h.0.attn.q", "wrong-head-count")
    taps = dict(model.run(IDS, taps="all").taps)
    taps["h.1.mlp.out"] = taps["h.1.mlp.out"].clone()
    taps["h.1.mlp.out"][0, 3, 7] = torch.nan
    (finding,) = standard.judge(taps, Inputs(IDS)).findings
    assert (finding.where, finding.kind) == ("h.1.mlp.out", "non-finite")
    assert "[0, 3, 7]" in finding.text


@pytest.mark.parametrize("axis", range(4))
def test_a_tap_of_a_wrong_shape_is_told_once_and_nothing_is_run_on_it(
    axis: int, folder: Path, standard: Standard
) -> None:
    """Also where a hypothesis about another stage would read it."""
    ids = IDS[:, :5]
    taps = dict(load_gpt2(folder).run(ids, taps="all").taps)
    for tap, value in taps.items():
        if axis < value.dim() and not tap.startswith(("h.0.", "h.2.")):
            short = value.narrow(axis, 0, value.shape[axis] - 1) if axis else torch.cat([value, value])
            findings = standard.judge({**taps, tap: short}, Inputs(ids)).findings
            assert [each.where for each in findings] == [tap], f"{tap}, axis {axis}"


def test_missing_taps_widen_the_span_of_a_finding(folder: Path, standard: Standard) -> None:
    taps = FAULTS["erf-gelu"].plant(load_gpt2(folder), 1).run(IDS, taps=["h.*.resid_post", "logits"]).taps
    (finding,) = standard.judge(taps, Inputs(IDS)).findings
    assert finding.where == "h.1.resid_post"
    assert finding.span[0] == "h.1.ln_1"
    assert finding.span[-3:] == ("h.1.mlp.post", "h.1.mlp.out", "h.1.resid_post")
    assert (finding.cause, finding.home, finding.tensors) == ("erf-gelu", "h.1.mlp.post", ())
    assert finding.text.startswith("in h.1.mlp.post, the activation is erf gelu")
    assert "where your engine computes h.1.mlp.post" in finding.next_step
    without = [each for each in HYPOTHESES if each.name != "erf-gelu"]
    (finding,) = standard.judge(taps, Inputs(IDS), hypotheses=without).findings
    assert finding.kind == "unknown"
    assert finding.next_step.startswith("record h.1.attn.z as well")


def test_an_unknown_fault_sends_nobody_to_what_is_recorded_and_right(folder: Path, standard: Standard) -> None:
    """k with its heads in reverse order: q and v, which belong to the same site, are right."""
    taps = dict(load_gpt2(folder).run(IDS, taps="all").taps)
    taps["h.1.attn.k"] = taps["h.1.attn.k"].flip(1)
    findings = standard.judge(taps, Inputs(IDS)).findings
    assert findings[0].where == "h.1.attn.k"
    assert findings[0].span == ("h.1.attn.k",)
    assert findings[0].next_step.startswith("compare your code for h.1.attn.k")


def test_scores_recorded_with_the_mask_on_them_are_told(folder: Path, standard: Standard) -> None:
    """The mask is one ahead and so are the recorded scores: no mask at all would give the same pattern."""
    taps = dict(load_gpt2(folder).run(IDS, taps="all").taps)
    ahead = torch.ones(IDS.shape[1], IDS.shape[1], dtype=torch.bool).tril(1)
    masked = taps["h.1.attn.scores"].masked_fill(~ahead, -1e9)
    taps |= {"h.1.attn.scores": masked, "h.1.attn.pattern": masked.softmax(dim=-1)}
    finding = next(each for each in standard.judge(taps, Inputs(IDS)).findings if each.where == "h.1.attn.pattern")
    assert {"no-mask", "mask-one-ahead"} <= set(finding.candidates)
    assert finding.next_step.startswith("record the scores before the mask")


def test_every_finding_is_among_the_origins(folder: Path) -> None:
    """Also one that was seen in the pattern of errors of a stage that differs for what it was fed."""
    report = labkit.verify(folder, ids=IDS.tolist(), tokens=0, plant="erf-gelu:1")
    fed = tuple(replace(s, cause="inherited") if s.name == "h.1.mlp.post" else s for s in report.stages)
    assert replace(report, stages=fed).origins == report.origins == ("h.1.mlp.post",)


def test_what_ties_on_one_prompt_is_told_apart_by_another(folder: Path, standard: Standard) -> None:
    taps = FAULTS["no-mask"].plant(load_gpt2(folder), 0).run(IDS[:, :2], taps="all").taps
    (short,) = standard.judge(taps, Inputs(IDS[:, :2])).findings
    assert short.kind == "tie"
    assert {"no-mask", "mask-one-ahead"} <= set(short.candidates)
    taps = FAULTS["no-mask"].plant(load_gpt2(folder), 0).run(IDS, taps="all").taps
    (long,) = standard.judge(taps, Inputs(IDS)).findings
    (merged,) = merge_findings([[short], [long]], list(taps))
    assert merged.cause == "no-mask"
