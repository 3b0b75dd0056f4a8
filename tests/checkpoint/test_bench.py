"""The load bench: limits and exit codes on made-up figures, and a run on a small snapshot."""

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.bench.load import LoadBench, Measure, bench_load
from tests.oracles import random_checkpoint

FAST = Measure(name="load", seconds=0.01, peer_seconds=0.1, limit=0.15)
BENCH = LoadBench(folder="x", repeats=1, threads=1, measures=(FAST,), private_nbytes=9_999_999)


def test_every_limit_counts_and_a_figure_without_one_does_not() -> None:
    assert BENCH.return_code == 0
    assert replace(BENCH, private_nbytes=None).return_code == 0
    assert replace(BENCH, private_nbytes=10_000_000).return_code == 1
    slow = replace(FAST, seconds=0.016)
    assert (slow.ratio, slow.within) == (pytest.approx(0.16), False)
    assert replace(BENCH, measures=(FAST, slow)).return_code == 1
    assert replace(BENCH, measures=(FAST, replace(slow, limit=None))).return_code == 0
    assert "ratio  0.16 (at most 0.15)  over" in str(replace(BENCH, measures=(slow,)))


@pytest.mark.slow
def test_it_measures_a_small_snapshot(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, n_positions=64)
    result = bench_load(tmp_path, repeats=1)
    assert len(result.measures) == 6
    assert all(each.seconds > 0 and each.peer_seconds > 0 for each in result.measures)
    assert result.private_nbytes is None or result.private_nbytes < 10_000_000
