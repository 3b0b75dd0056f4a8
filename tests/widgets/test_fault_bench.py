"""The bench shows what verify found; its twin holds signs that are the same on every machine."""

from pathlib import Path
from typing import Any

import pytest

from labkit.errors import ArgumentError
from labkit.verification import verify
from labkit.widgets import FaultBench
from labkit.widgets.stage_view import grid_twin, grid_view


@pytest.fixture(scope="module")
def bench() -> FaultBench:
    return FaultBench(fault="transpose-c_proj", block=1, prompt="It is a truth")


def cells(grid: dict[str, Any]) -> dict[str, str]:
    return {
        cell["name"]: cell["sign"]
        for part in ("before", "inside", "after")
        for row in grid[part]
        for cell in row["cells"]
    }


def test_the_grid_names_the_planted_stage(bench: FaultBench) -> None:
    signs = cells(bench.grid)
    assert [name for name, sign in signs.items() if sign == "local"] == ["h.1.attn.out"]
    assert signs["h.1.attn.z"] == "same"
    assert signs["logits"] == "inherited"


def test_the_grid_holds_every_stage_once(bench: FaultBench) -> None:
    assert bench.report is not None
    assert sorted(cells(bench.grid)) == sorted(stage.name for stage in bench.report.stages)


def test_the_twin_holds_signs_and_no_figures(bench: FaultBench) -> None:
    twin = bench.twin()
    assert twin.count("✗") == 2  # the stage, and the legend
    body = twin[twin.index("<tbody>") :]
    assert not any(cell["used"] in body for row in bench.grid["inside"] for cell in row["cells"])


def test_a_choice_from_the_page_runs_again(bench: FaultBench) -> None:
    bench.set_state({"choice": {"fault": "none", "block": 0, "prompt": "It is a truth"}})
    assert bench.grid["verdict"] == "same"
    assert repr(bench) == "FaultBench(nothing planted, same, first divergence None)"
    assert not bench.busy


def test_an_unusable_prompt_is_shown_and_the_bench_is_free_again() -> None:
    bench = FaultBench(prompt="")
    assert "no tokens" in bench.error
    assert not bench.busy
    assert repr(bench) == "FaultBench(nothing planted, no verdict)"


def test_a_folder_that_is_not_there_is_shown(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in FaultBench(tmp_path / "none").error


def test_one_run_at_a_time_and_the_last_choice_wins() -> None:
    import threading

    running, most = 0, 0

    def slow(*_arguments: object, **_options: object) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threading.Event().wait(0.05)
        running -= 1
        raise ArgumentError("stop here")

    bench = FaultBench(run=slow)
    threads = [
        threading.Thread(target=bench.set_state, args=({"choice": {"fault": "none", "block": 0, "prompt": str(i)}},))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_verdict_alone_makes_a_twin() -> None:
    view = grid_view(verify(prompts=["It is a truth"], tokens=0))
    assert "Verdict: <b>same</b>" in grid_twin(view)
