"""Taps: what can be recorded, what can be replaced, and that nothing changes when they only look."""

import pytest
import torch

from labkit.errors import ArgumentError, ArgumentTypeError, NonFiniteError, UnknownNameError
from labkit.model import GPT2, match_taps, tap_axes, tap_names
from labkit.model.taps import extra_tap_names
from tests.model.pairs import IDS, pair


@pytest.fixture(scope="module")
def model() -> GPT2:
    return pair()[0]


def test_looking_changes_nothing(model: GPT2) -> None:
    assert torch.equal(model.run(IDS, taps="all").logits, model(IDS))


def test_every_tap_has_the_axes_it_states(model: GPT2) -> None:
    c = model.config
    sizes = {"batch": 2, "pos": 8, "pos_q": 8, "pos_k": 8, "head": c.n_head, "head_dim": c.head_dim}
    sizes |= {"n_embd": c.n_embd, "n_inner": c.inner, "vocab": c.vocab_size, "3*n_embd": 3 * c.n_embd}
    run = model.run(IDS, taps=[*tap_names(c), *extra_tap_names(c)])
    assert len(run.taps) == 3 + 16 * c.n_layer + 2
    for name, value in run.taps.items():
        assert value.shape == tuple(sizes[axis] for axis in tap_axes(name)), name


def test_taps_are_recorded_in_order_of_computation(model: GPT2) -> None:
    names = match_taps(["logits", "h.1.*", "h.*.attn.c_attn", "h.*.attn.merged", "wte"], model.config)
    assert tuple(model.run(IDS, taps=names).taps) == names


def test_a_replacement_flows_on(model: GPT2) -> None:
    run = model.run(
        IDS, taps=["h.1.attn.out", "h.1.resid_mid", "h.0.resid_post"], replace={"h.1.attn.out": torch.zeros_like}
    )
    assert not run.taps["h.1.attn.out"].any()
    assert torch.equal(run.taps["h.1.resid_mid"], run.taps["h.0.resid_post"])


@pytest.mark.parametrize(
    "name", ["wte", "wpe", "embed", "h.0.ln_1", "h.1.attn.scores", "h.2.attn.z", "h.2.mlp.post", "ln_f"]
)
def test_each_stage_replaced_by_its_own_value_changes_nothing_and_by_another_does(model: GPT2, name: str) -> None:
    clean = model.run(IDS, taps=name)
    again = model.run(IDS, replace={name: clean.taps[name].clone()})
    assert torch.equal(again.logits, clean.logits)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(clean.taps[name].shape, generator=generator)
    moved = model.run(IDS, replace={name: lambda value: value + noise})
    assert (moved.logits - clean.logits).abs().max() > 1e-2


def test_a_glob_replaces_in_every_block(model: GPT2) -> None:
    run = model.run(
        IDS,
        taps=["embed", "h.2.resid_post"],
        replace={"h.*.attn.out": torch.zeros_like, "h.*.mlp.out": torch.zeros_like},
    )
    assert torch.equal(run.taps["h.2.resid_post"], run.taps["embed"])


def test_what_cannot_be_replaced_is_said(model: GPT2) -> None:
    with pytest.raises(UnknownNameError, match=r"no tap named 'h.0.attn.patern'; did you mean 'h.0.attn.pattern'"):
        model.run(IDS, replace={"h.0.attn.patern": torch.zeros_like})
    with pytest.raises(
        ArgumentError, match=r"replacement at tap ln_f: the shape is wrong \(expected \[2, 8, 24\], got \[1\]"
    ):
        model.run(IDS, replace={"ln_f": torch.zeros(1)})
    with pytest.raises(ArgumentError, match=r"tap ln_f: the dtype or device is wrong \(expected torch.float32"):
        model.run(IDS, replace={"ln_f": lambda value: value.double()})
    with pytest.raises(ArgumentTypeError, match="tap ln_f: not a tensor"):
        model.run(IDS, replace={"ln_f": lambda value: 1})  # type: ignore[dict-item, return-value]


def test_scores_and_pattern_are_refused_where_attention_is_fused(model: GPT2) -> None:
    fused = GPT2(model.config, model.parameters_by_name, attention="sdpa")
    with pytest.raises(ArgumentError, match=r"^h\.0\.attn\.scores: the fused attention has no such stage"):
        fused.run(IDS, taps="all")
    assert "h.0.attn.z" in fused.run(IDS, taps="h.0.attn.z").taps


def test_the_first_tap_that_turns_nonfinite_is_named(model: GPT2) -> None:
    parameters = {name: each.half() for name, each in model.parameters_by_name.items()}
    parameters["h.1.mlp.c_fc.weight"] = parameters["h.1.mlp.c_fc.weight"] * 6e4
    half = GPT2(model.config, parameters)
    with pytest.raises(NonFiniteError, match=r"^h.1.mlp.pre: the first tap that is not finite \(got -?inf at \[0, 0, "):
        half.run(IDS, nonfinite="refuse")
    assert not half.run(IDS).logits.isfinite().all()


def test_nothing_is_kept_for_gradients_unless_asked(model: GPT2) -> None:
    weight = model.parameters_by_name["h.0.mlp.c_fc.weight"].detach().clone().requires_grad_()
    learner = GPT2(model.config, {**model.parameters_by_name, "h.0.mlp.c_fc.weight": weight})
    assert not learner(IDS).requires_grad
    run = learner.run(IDS, taps="h.1.ln_1", gradients="on")
    loss = run.logits.logsumexp(-1).sum()
    by_weight, by_tap = torch.autograd.grad(loss, [weight, run.taps["h.1.ln_1"]])
    assert by_weight.abs().max() > 0
    assert by_tap.abs().max() > 0


def test_gradients_reach_every_tap_without_a_parameter_asking(model: GPT2) -> None:
    run = model.run(IDS, taps="all", gradients="on")
    last = tuple(value for name, value in run.taps.items() if name != "logits")
    slopes = torch.autograd.grad(run.logits[:, -1].logsumexp(-1).sum(), last, allow_unused=False)
    for name, slope in zip(run.taps, slopes, strict=False):
        assert slope.abs().max() > 0, name
    step = 1e-2 * slopes[0] / slopes[0].norm()
    moved = model.run(IDS, replace={"wte": lambda value: value + step}).logits[:, -1].logsumexp(-1).sum()
    rise = float(moved - run.logits.detach()[:, -1].logsumexp(-1).sum())
    assert rise == pytest.approx(float(1e-2 * slopes[0].norm()), rel=0.05)
    assert not model.parameters_by_name["wte.weight"].requires_grad
