"""Your own engine: hooked modules in nanoGPT's and minGPT's naming, and plain functions, clean and with faults."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import labkit
from labkit.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from labkit.verification.name_map import MINGPT, NameMap, Rule, first_row, heads_third, merged_heads, packed_qkv
from labkit.verification.report import Report
from tests.oracles import random_checkpoint
from tests.verification.engines import linear_gpt

IDS = [[5, 17, 3, 90, 42, 7, 11, 60, 21, 8, 33, 2]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    random_checkpoint.write(path, seed=3, n_layer=2)
    return path


def _hooks(module: nn.Module) -> int:
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in module.modules())


@pytest.mark.parametrize(("style", "stages"), [("nanogpt", 3 + 2 * 12 + 2), ("mingpt", 3 + 2 * 13 + 2)])
def test_a_clean_module_is_the_same(style: str, stages: int, folder: Path) -> None:
    model = linear_gpt.build(folder, style=style)
    report = labkit.verify_callable(model, folder, name_map=style, ids=IDS, tokens=6)
    assert (report.verdict, report.engine, report.dtype) == ("same", "GPT", "float32")
    assert len(report.stages) == stages  # all but scores; the fused attention has no pattern either
    assert report.controls.planted == stages
    assert len(report.tokens[0].actual) == 6
    assert _hooks(model) == 0
    if style == "nanogpt":
        assert "transformer.h.0.attn.attn_dropout" in report.notes[0]


def _erf(model: linear_gpt.GPT) -> None:
    model.transformer["h"][1].mlp["act"] = nn.GELU()


def _transposed(model: linear_gpt.GPT) -> None:
    weight = model.transformer["h"][1].attn.c_proj.weight
    weight.data = weight.data.T.contiguous()


def _unmasked(model: linear_gpt.GPT) -> None:
    model.transformer["h"][0].attn.masked = False


def _epsilon(model: linear_gpt.GPT) -> None:
    model.transformer["h"][0].ln_1.eps = 1e-3


def _no_bias(model: linear_gpt.GPT) -> None:
    model.transformer["h"][1].mlp["c_fc"].bias.data.zero_()


@pytest.mark.parametrize(
    ("bug", "stage", "cause"),
    [
        (_erf, "h.1.mlp.post", "erf-gelu"),
        (_transposed, "h.1.attn.out", "transpose-c_proj"),
        (_unmasked, "h.0.attn.pattern", "no-mask"),
        (_epsilon, "h.0.ln_1", "epsilon-1e-3"),
        (_no_bias, "h.1.mlp.pre", "no-bias-mlp.c_fc"),
    ],
)
def test_a_bug_in_a_module_is_named_at_its_stage(
    bug: Callable[[linear_gpt.GPT], None], stage: str, cause: str, folder: Path
) -> None:
    model = linear_gpt.build(folder, style="mingpt")
    bug(model)
    report = labkit.verify_callable(model, folder, name_map="mingpt", ids=IDS)
    assert (report.verdict, report.first_divergence) == ("differs", stage)
    assert report.origins == (stage,)
    assert [finding.cause for finding in report.findings] == [cause]


def test_a_bug_behind_the_fused_attention_is_found_over_the_span(folder: Path) -> None:
    model = linear_gpt.build(folder, style="nanogpt")
    model.transformer["h"][0].attn.masked = False
    report = labkit.verify_callable(model, folder, name_map="nanogpt", ids=IDS)
    assert report.first_divergence == "h.0.attn.z"
    assert report.findings[0].cause == "no-mask"


def test_a_function_is_judged_by_its_logits(folder: Path) -> None:
    engine = linear_gpt.functional_gpt(folder)
    report = labkit.verify_callable(engine, folder, ids=IDS, tokens=3)
    assert ([stage.name for stage in report.stages], report.verdict) == (["logits"], "same")
    assert report.engine == "Functional"
    engine.approximate = "none"
    report = labkit.verify_callable(engine, folder, ids=IDS, engine="mine")
    assert (report.verdict, report.first_divergence, report.engine) == ("differs", "logits", "mine")


def test_two_prompts_and_another_dtype(folder: Path) -> None:
    model = linear_gpt.build(folder, style="mingpt").double()
    report = labkit.verify_callable(model, folder, name_map=MINGPT, ids=[[1, 2, 3], [9, 8, 7, 6]])
    assert (report.verdict, report.dtype, len(report.prompts)) == ("same", "float64", 2)


class Parted(nn.Module):
    """Heads kept as [batch, pos, head, head_dim], as some engines do, in names of its own."""

    def __init__(self, inner: linear_gpt.GPT) -> None:
        super().__init__()
        self.body, self.heads = inner, nn.Identity()

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        normed = self.body.transformer["h"][0].ln_1
        q = self.body.transformer["h"][0].attn.c_attn
        x = self.body.transformer["wte"](ids) + self.body.transformer["wpe"](torch.arange(ids.shape[1]))
        batch, pos, width = x.shape
        self.heads(q(normed(x))[..., :width].view(batch, pos, 3, width // 3))
        return {"logits": self.body(ids)[0]}


def test_a_map_of_your_own_with_layouts(folder: Path) -> None:
    engine = Parted(linear_gpt.build(folder, style="mingpt"))
    name_map = {
        "heads": Rule("h.0.attn.q", heads_third),
        "body.transformer.h.{i}.attn.c_proj": ["h.{i}.attn.out", Rule("h.{i}.attn.z", merged_heads, side="input")],
        "body.transformer.wpe": Rule("wpe", first_row),
    }
    report = labkit.verify_callable(engine, folder, name_map=name_map, ids=IDS)
    expected = ["wpe", "h.0.attn.q", "h.0.attn.z", "h.0.attn.out", "h.1.attn.z", "h.1.attn.out", "logits"]
    assert ([stage.name for stage in report.stages], report.verdict) == (expected, "same")


def test_nothing_stays_hooked_when_the_forward_raises(folder: Path) -> None:
    model = linear_gpt.build(folder, style="mingpt")

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("out of memory")

    model.transformer["h"][1].mlp["act"] = Broken()
    with pytest.raises(ArgumentError, match="GPT, prompt 1: the engine raised RuntimeError: out of memory"):
        labkit.verify_callable(model, folder, name_map="mingpt", ids=IDS)
    assert _hooks(model) == 0


def test_own_hooks_are_left_alone(folder: Path) -> None:
    model = linear_gpt.build(folder, style="mingpt")
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda *_: seen.append(1))
    labkit.verify_callable(model, folder, name_map="mingpt", ids=[[1, 2]])
    assert seen
    assert _hooks(model) == 1


def test_training_mode_is_said(folder: Path) -> None:
    model = linear_gpt.build(folder, style="mingpt").train()
    report = labkit.verify_callable(model, folder, name_map="mingpt", ids=[[1, 2, 3]])
    assert model.training
    assert any("training mode" in note for note in report.notes)


@pytest.mark.parametrize(
    ("name_map", "kind", "text"),
    [
        ("nanogtp", UnknownNameError, "no name map named 'nanogtp'; did you mean 'nanogpt'"),
        ({"transformer.wpt": "wte"}, UnknownNameError, "no module named 'transformer.wpt'"),
        ({"transformer.wte": "wtf"}, UnknownNameError, "no tap named 'wtf'"),
        ({"transformer.wte": 3}, ArgumentTypeError, "a tap's name or a Rule"),
        ({"transformer.wte": Rule(("wte", "wpe"))}, ArgumentError, "another number of tensors"),
        ({"transformer.h.0.ln_1": Rule("h.0.attn.z", lambda v, c: v.view(7, 7))}, ArgumentError, "layout does not fit"),
        (NameMap({}, call=lambda model, ids: None), ArgumentTypeError, "not logits"),
        (NameMap({}, call=lambda model, ids: model(ids)[0][:, -1]), ArgumentError, "not the last alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_maps_are_one_clear_line(name_map: object, kind: type[Exception], text: str, folder: Path) -> None:
    model = linear_gpt.build(folder, style="mingpt")
    with pytest.raises(kind, match=text):
        labkit.verify_callable(model, folder, name_map=name_map, ids=IDS)  # type: ignore[arg-type]
    assert _hooks(model) == 0


def test_a_map_for_a_function_is_refused(folder: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="needs a torch module"):
        labkit.verify_callable(linear_gpt.functional_gpt(folder), folder, name_map="mingpt", ids=IDS)
    with pytest.raises(ArgumentTypeError, match="not an engine"):
        labkit.verify_callable(3, folder, ids=IDS)  # type: ignore[arg-type]


def test_packed_layout_is_thirds_then_heads() -> None:
    config = labkit.GPT2Config(n_embd=4, n_head=2)
    q, _k, _v = packed_qkv(torch.arange(24.0).view(1, 2, 12), config)
    assert q.tolist() == [[[[0.0, 1.0], [12.0, 13.0]], [[2.0, 3.0], [14.0, 15.0]]]]


def told(report: Report) -> str:
    """All that a report says, with its notes."""
    return "\n".join((str(report), *report.notes))


def _faulty(folder: Path) -> linear_gpt.GPT:
    model = linear_gpt.build(folder, style="mingpt")
    _erf(model)
    return model


@pytest.mark.parametrize(
    ("engine", "name_map", "next_step"),
    [
        ("function", None, "give a torch module with a name_map that shows h."),
        ("module", None, "give a name_map with the module that gives h."),
        ("module", {"transformer.ln_f": "ln_f"}, "name the module that gives h."),
    ],
)
def test_what_to_show_next_is_said_in_terms_of_what_was_given(
    folder: Path, engine: str, name_map: dict[str, str] | None, next_step: str
) -> None:
    model = _faulty(folder)
    given = model if engine == "module" else lambda ids: model(ids)[0]
    report = labkit.verify_callable(given, folder, ids=IDS, name_map=name_map)
    assert report.verdict == "differs"
    assert report.findings[0].next_step.startswith(next_step)
    assert "record" not in told(report)
    assert name_map is None or "trace" not in told(report)


def test_a_tie_and_scores_with_the_mask_on_them_ask_for_modules(folder: Path) -> None:
    model = linear_gpt.build(folder, style="mingpt")
    model.transformer["h"][0].ln_2 = nn.Identity()
    report = labkit.verify_callable(model, folder, name_map={"transformer.h.{i}": "h.{i}.resid_post"}, ids=[[5, 17]])
    assert report.findings[0].kind == "tie"
    assert report.findings[0].next_step.startswith("name the module that gives h.0.")
    assert "record" not in told(report)


@pytest.mark.parametrize(
    ("rules", "advice"),
    [
        (
            {
                "transformer.h.0.attn.c_proj": Rule(
                    "h.0.attn.z", lambda v, c: v.unflatten(-1, (c.n_head, -1)), side="input"
                )
            },
            "transpose axes 1 and 2, to [batch, head, pos, head_dim]",
        ),
        ({"transformer.h.0.attn.c_attn": "h.0.attn.q"}, "no transpose or reshape gives it"),
    ],
)
def test_a_wrong_shape_is_righted_in_the_map(folder: Path, rules: dict[str, str | Rule], advice: str) -> None:
    model = linear_gpt.build(folder, style="mingpt")
    (finding,) = labkit.verify_callable(model, folder, name_map=rules, ids=IDS).findings
    assert advice in finding.next_step
    assert "heads_third, merged_heads, packed_qkv" in finding.next_step
    assert "lint-trace" not in finding.next_step


def test_weights_and_arithmetic_of_another_dtype_than_judged(folder: Path) -> None:
    rounded = linear_gpt.build(folder, style="mingpt").bfloat16().float()
    report = labkit.verify_callable(rounded, folder, name_map="mingpt", ids=IDS)
    (finding,) = report.findings
    assert finding.cause == "weight_dtype"
    assert "weight_dtype float32; its values are those of weights in bfloat16" in finding.text
    assert "trace" not in told(report)
    narrow = linear_gpt.build(folder, style="mingpt").bfloat16()
    report = labkit.verify_callable(lambda ids: narrow(ids)[0].float(), folder, ids=IDS)
    (finding,) = report.findings
    assert (finding.cause, finding.next_step.split(",")[0]) == ("compute_dtype", 'give dtype="bfloat16"')
    assert (
        labkit.verify_callable(lambda ids: narrow(ids)[0].float(), folder, ids=IDS, dtype="bfloat16").verdict == "same"
    )


def test_one_module_under_two_names_is_told(folder: Path) -> None:
    model = linear_gpt.build(folder, style="mingpt")
    rules = {"transformer.h.0.mlp.c_fc": ["h.0.mlp.pre", "h.0.mlp.post"]}
    (finding,) = labkit.verify_callable(model, folder, name_map=rules, ids=IDS).findings
    assert "h.0.mlp.post is byte for byte h.0.mlp.pre: one module for both?" in finding.text


def test_no_cause_speaks_of_a_trace() -> None:
    """A mistake is one whatever brought it to light."""
    from labkit.verification.hypotheses import HYPOTHESES

    assert [each.name for each in HYPOTHESES if "trace" in each.cause or "record" in each.cause] == []


def test_greedy_tokens_of_an_engine_that_breaks_down_are_not_run() -> None:
    model = labkit.load_gpt2()

    def engine(ids: Tensor) -> Tensor:
        logits = model(ids)  # [batch, pos, vocab]
        return logits if ids.shape[1] < 5 else torch.full_like(logits, torch.nan)

    report = labkit.verify_callable(engine, ids=[[5, 6, 7]], tokens=4)
    assert [(each.verdict, each.reason) for each in report.tokens] == [
        ("not run", "the logits of position 4 are not finite")
    ]
    assert (report.verdict, report.first_divergence) == ("cannot tell", None)


def test_as_many_tokens_as_fit_are_compared() -> None:
    report = labkit.verify_callable(labkit.load_gpt2(), ids=[list(range(250))], tokens=9)
    assert len(report.tokens[0].actual) == 7
    assert "prompt 1 leaves room for 7 greedy tokens instead of 9 (n_positions = 256)" in report.notes
