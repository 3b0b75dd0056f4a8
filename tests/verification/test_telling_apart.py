"""Of mistakes that tie the next step names what would tell them apart, and following it does."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from labkit.model.taps import tap_names
from labkit.verification.finding import Finding, merge_findings
from labkit.verification.trace import write_trace
from labkit.verification.trace_record import record_trace
from labkit.verification.verify_trace import verify_trace
from tests.oracles.random_checkpoint import write

SOME = ["h.*.attn.out", "h.*.resid_mid", "h.*.resid_post", "logits"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tied") / "small"
    write(place)
    return place


def findings(folder: Path, path: Path, fault: str, ids: Sequence[int], taps: str | list[str]) -> tuple[Finding, ...]:
    recorded = record_trace(folder, engine="labkit", ids=[list(ids)], taps=taps, plant=[fault])
    write_trace(path, recorded.tensors, recorded.metadata)
    return verify_trace(path, folder).findings


@pytest.mark.parametrize(
    ("fault", "ids", "taps"),
    [
        ("mix-of-keys", [5, 17, 3], SOME),
        ("scores-transposed", [5, 17, 3], SOME),
        ("ln_2-missing", [5, 17], SOME),
        ("ln_f-missing", [5], SOME),
        ("mix-of-keys:1", [5], ["h.*.resid_post", "logits"]),
    ],
)
def test_the_tap_that_is_asked_for_leaves_fewer(
    folder: Path, tmp_path: Path, fault: str, ids: list[int], taps: list[str]
) -> None:
    """Recording the tap that the next step names, as often as it names one, leaves the one mistake that was made."""
    path, taps = tmp_path / "t.safetensors", list(taps)
    found = findings(folder, path, fault, ids, taps)[0]
    assert found.kind == "tie"
    for _ in range(6):
        if found.kind != "tie" or found.next_tap is None:
            break
        assert found.next_step.startswith(f"record {found.next_tap}: there ")
        assert verify_trace(path, folder).next_tap == found.next_tap
        before, taps = found, [*taps, found.next_tap]
        found = findings(folder, path, fault, ids, taps)[0]
        assert set(found.candidates) < set(before.candidates)
    assert found.kind == "named"
    assert found.cause is not None
    assert found.cause.replace("norm-missing", "ln") in fault.replace("_2-missing", "").replace("_f-missing", "")


@pytest.mark.parametrize("fault", ["no-mask", "stale-v"])
@pytest.mark.parametrize("taps", ["all", SOME])
def test_the_prompt_that_is_asked_for_tells_them_apart(
    folder: Path, tmp_path: Path, fault: str, taps: str | list[str]
) -> None:
    path = tmp_path / "t.safetensors"
    found = findings(folder, path, fault, [5, 17], taps)[0]
    while found.next_tap is not None:  # first what a tap tells
        assert isinstance(taps, list)
        taps = [*taps, found.next_tap]
        found = findings(folder, path, fault, [5, 17], taps)[0]
    assert found.kind == "tie"
    assert found.next_step == (
        "they give the same values at every stage of this prompt, but not on one of 3 tokens, which tells them apart: "
        "run such a prompt"
    )
    assert findings(folder, path, fault, [5, 17, 3], taps)[0].cause == fault


def test_where_nothing_that_was_tried_tells_them_apart_it_says_so(folder: Path, tmp_path: Path) -> None:
    """Both leave epsilon out of what float32 holds, where no row has a small variance."""
    found = findings(folder, tmp_path / "t.safetensors", "epsilon-1e-8", [5], "all")[0]
    assert set(found.candidates) == {"epsilon-1e-8", "epsilon-1e-12"}
    assert "on every other that was tried (up to 32 tokens, and a padded batch)" in found.next_step
    assert found.next_step.endswith("look for each of them in your code")


def test_a_tie_that_another_prompt_ends_is_to_be_corrected(folder: Path, tmp_path: Path) -> None:
    """Merged, the finding no longer asks for what the other prompt gave."""
    path = tmp_path / "t.safetensors"
    short = findings(folder, path, "no-mask", [5, 17], "all")
    long = findings(folder, path, "mask-one-ahead", [5, 17], "all")
    assert short[0].kind == long[0].kind == "tie"
    from dataclasses import replace

    config = record_trace(folder, engine="labkit", ids=[[5]]).metadata.config
    other = replace(long[0], candidates=("no-mask", "something-else"))
    (merged,) = merge_findings([[short[0]], [other]], tap_names(config))
    assert (merged.cause, merged.next_tap) == ("no-mask", None)
    assert merged.next_step == "correct this where your engine computes h.0.attn.pattern, and run again"


def test_no_generator_of_the_user_is_touched(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    findings(folder, tmp_path / "t.safetensors", "no-mask", [5, 17], "all")
    assert torch.equal(torch.get_rng_state(), before)
