"""Cases 04 and 24 of the shared checkpoints: which operation is the first that differs, from trace files."""

import importlib
import sys
from pathlib import Path

import pytest

from labkit.cli.main import run
from labkit.verification.compare_traces import compare_traces
from labkit.verification.trace import write_trace
from labkit.verification.trace_comparison import TraceComparison
from labkit.verification.trace_names import module_of
from labkit.verification.trace_record import record_trace
from labkit.verification.verify_trace import verify_trace

IDS = [[5, 17, 3, 99, 42, 7, 250, 11]]


def made(shared_cases: Path, number: str, folder: Path) -> dict:
    """Write a case's variants and a trace of each by labkit; the case's module dictionary."""
    sys.path.insert(0, str(shared_cases / "checkpoints"))
    try:
        (name,) = (path.stem for path in (shared_cases / "checkpoints").glob(f"case_{number}_*.py"))
        module = importlib.import_module(name)
    finally:
        sys.path.pop(0)
    module.make(str(folder))
    for variant in module.VARIANTS:
        recorded = record_trace(folder / variant, engine="labkit", ids=IDS)
        write_trace(folder / f"{variant}.safetensors", recorded.tensors, recorded.metadata)
    return vars(module)


@pytest.fixture(scope="module")
def case_04(shared_cases: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("case_04")
    return folder, made(shared_cases, "04", folder)


@pytest.fixture(scope="module")
def case_24(shared_cases: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("case_24")
    return folder, made(shared_cases, "24", folder)


def against(case: tuple[Path, dict], variant: str, **options: object) -> TraceComparison:
    """A variant's trace compared with the one that it is held against."""
    folder, module = case
    golden = module["VARIANTS"][variant]["against"]
    return compare_traces(folder / f"{variant}.safetensors", folder / f"{golden}.safetensors", **options)


@pytest.mark.parametrize("variant", ["block1_attn_c_proj", "block0_c_fc_square"])
def test_case_04_names_the_first_operation(case_04: tuple[Path, dict], variant: str) -> None:
    comparison = against(case_04, variant)
    first = comparison.first_divergence
    assert module_of(first) == case_04[1]["EXPECT_FIRST"][variant]
    names = [tap.name for tap in comparison.taps]
    assert all(tap.difference.equal for tap in comparison.taps[: names.index(first)])


@pytest.mark.parametrize("variant", ["block1_attn_c_proj", "block0_c_fc_square"])
def test_case_04_verified_against_golden_from_the_trace_alone(case_04: tuple[Path, dict], variant: str) -> None:
    folder, module = case_04
    report = verify_trace(folder / f"{variant}.safetensors", folder / module["VARIANTS"][variant]["against"])
    assert [module_of(tap) for tap in report.origins] == [module["EXPECT_FIRST"][variant]]


@pytest.mark.parametrize("variant", ["rounding", "late", "tiny_then_big", "k_bias_only"])
def test_case_24_under_its_tolerance(case_24: tuple[Path, dict], variant: str) -> None:
    comparison = against(case_24, variant, atol=case_24[1]["TOLERANCE"])
    expected = case_24[1]["EXPECT_FIRST"][variant]
    first = comparison.first_divergence
    assert (None if first is None else module_of(first)) == expected
    assert (expected or "the largest is") in comparison.headline()
    assert comparison.return_code == (0 if expected is None else 1)


def test_case_24_late_is_one_element(case_24: tuple[Path, dict]) -> None:
    comparison = against(case_24, "late", atol=1e-3)
    (tap,) = (tap for tap in comparison.taps if tap.name == "h.1.mlp.pre")
    assert tap.difference.worst[-1] == 5
    assert tap.difference.max_abs == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize(("variant", "first"), [("tiny_then_big", "h.0.ln_1"), ("rounding", "wte")])
@pytest.mark.parametrize("with_model", [False, True])
def test_case_24_under_budgets(case_24: tuple[Path, dict], variant: str, first: str, *, with_model: bool) -> None:
    folder = case_24[0] / "golden" if with_model else None
    assert against(case_24, variant, folder=folder).first_divergence == first


def test_case_24_on_the_command_line(case_24: tuple[Path, dict], capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(case_24[0] / f"{name}.safetensors") for name in ("k_bias_only", "golden")]
    assert run(["compare", *files, "--atol", "1e-3"]) == 1
    assert (
        "h.1.attn.k (from module h.1.attn.c_attn) is the first beyond the stated tolerance" in capsys.readouterr().out
    )
