"""Loading and running GPT-2 small at its real size, labkit beside transformers: seconds, ratios, private memory.

The snapshot is written by transformers with every parameter drawn anew, unless a folder is given. Runs of both sides
alternate, and the fastest of each counts, so that a busy machine disturbs both alike.
"""

import gc
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.load import load_gpt2

PROMPT_TOKENS = 64
FIRST_TOKENS = 8
_SEED, _STD = 0, 0.02
_CHILD = """
import re, sys
from pathlib import Path
from labkit.load import embedded, load_gpt2

def private():
    return int(re.search(r"Private_Dirty:\\s+(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1])

load_gpt2(embedded())
before = private()
model = load_gpt2(sys.argv[1])
print(1024 * (private() - before))
"""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One comparison: labkit's best time beside transformers', and the most that the ratio may be."""

    name: str
    seconds: float
    peer_seconds: float
    limit: float | None  # None where the figure only informs

    @property
    def ratio(self) -> float:
        """labkit's time over the other's."""
        return self.seconds / self.peer_seconds

    @property
    def within(self) -> bool:
        """Whether the ratio is at most the limit."""
        return self.limit is None or self.ratio <= self.limit


@dataclass(frozen=True, kw_only=True)
class LoadBench:
    """Every measure of loading and of the eager forward."""

    folder: str
    repeats: int
    threads: int
    measures: tuple[Measure, ...]
    private_nbytes: int | None  # of a mapped model before its first forward; None where the system does not tell
    private_limit: int = 10_000_000

    @property
    def return_code(self) -> int:
        """0 where every measure is within its limit, else 1."""
        memory = self.private_nbytes is None or self.private_nbytes < self.private_limit
        return 0 if memory and all(each.within for each in self.measures) else 1

    def __str__(self) -> str:
        lines = [f"{self.folder}: best of {self.repeats}, {self.threads} threads"]
        for each in self.measures:
            mark = "" if each.limit is None else f"(at most {each.limit:.2f})  {'ok' if each.within else 'over'}"
            times = f"{each.seconds * 1e3:9.1f} ms  {each.peer_seconds * 1e3:9.1f} ms"
            lines.append(f"  {each.name:34} {times}  ratio {each.ratio:5.2f} {mark}".rstrip())
        if self.private_nbytes is not None:
            mark = "ok" if self.private_nbytes < self.private_limit else "over"
            memory = f"{self.private_nbytes / 1e6:.1f} MB (under {self.private_limit / 1e6:.0f} MB)"
            lines.append(f"  {'private memory of a mapped model':34} {memory}  {mark}")
        return "\n".join(lines)


def bench_load(
    folder: str | Path | None = None, *, repeats: int = 7, say: Callable[[str], None] | None = None
) -> LoadBench:
    """Measure loading and the forward of the snapshot in ``folder`` (default: a random GPT-2 small)."""
    tell = say or (lambda _step: None)
    with _snapshot(folder, tell) as path, _quiet():
        tell("loading")
        loads = _best(
            {
                "mapped": lambda: load_gpt2(path),
                "owned": lambda: load_gpt2(path, mode="owned"),
                "peer": lambda: _peer(path),
                "peer, owned": lambda: _peer_owned(path),
                "mapped, first logits": lambda: _first(load_gpt2(path)),
                "peer, first logits": lambda: _first(_peer(path)),
            },
            repeats,
        )
        tell("running")
        forwards = _forwards(path, repeats)
        private = _private_nbytes(path)
    peer, plain = loads["peer"], forwards["plain"]
    measures = (
        _measure("load, mapped", loads["mapped"], peer, 0.15),
        _measure("load, owned, beside copying too", loads["owned"], loads["peer, owned"], 1.0),
        _measure("load, owned, beside mapping", loads["owned"], peer, None),
        _measure("load to first logits, mapped", loads["mapped, first logits"], loads["peer, first logits"], 0.8),
        _measure(f"forward of {PROMPT_TOKENS} tokens, no tap", plain, forwards["peer"], 1.0),
        _measure("every tap, beside no tap", forwards["every tap"], plain, 1.25),
    )
    return LoadBench(
        folder=str(folder) if folder is not None else "random GPT-2 small",
        repeats=repeats,
        threads=torch.get_num_threads(),
        measures=measures,
        private_nbytes=private,
    )


def write_random_gpt2(folder: Path) -> None:
    """A GPT-2 small written by transformers, every parameter drawn anew."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
            parameter.normal_(centre, _STD, generator=generator)
    model.save_pretrained(folder)


@contextmanager
def _snapshot(folder: str | Path | None, tell: Callable[[str], None]) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as name:
        tell("writing a random GPT-2 small")
        write_random_gpt2(Path(name))
        yield Path(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers without its progress bars, which would be measured with it."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _peer(path: Path) -> Any:
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def _peer_owned(path: Path) -> Any:
    """transformers maps the file as well: this is its load with every parameter copied into memory of its own."""
    model = _peer(path)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def _first(model: Any) -> None:
    ids = torch.arange(FIRST_TOKENS)[None]  # [batch, pos]
    with torch.no_grad():
        model(ids)


def _forwards(path: Path, repeats: int) -> dict[str, float]:
    model, peer = load_gpt2(path), _peer(path)
    ids = torch.arange(PROMPT_TOKENS)[None]  # [batch, pos]

    def other() -> None:
        with torch.no_grad():
            peer(ids, use_cache=False)

    runs: dict[str, Callable[[], object]] = {
        "plain": lambda: model.run(ids),
        "every tap": lambda: model.run(ids, taps="all"),
        "peer": other,
    }
    _best(runs, 1)  # the first touches the pages
    return _best(runs, 3 * repeats)


def _best(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The fastest time of each, in seconds; every round runs all of them once."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            gc.collect()
            start = time.perf_counter()
            kept = run()
            times[name].append(time.perf_counter() - start)
            del kept
    return {name: min(each) for name, each in times.items()}


def _measure(name: str, seconds: float, peer_seconds: float, limit: float | None) -> Measure:
    return Measure(name=name, seconds=seconds, peer_seconds=peer_seconds, limit=limit)


def _private_nbytes(path: Path) -> int | None:
    """Bytes of its own that a mapped load takes, in a process of its own."""
    if not Path("/proc/self/smaps_rollup").exists():
        return None
    command: Sequence[str] = [sys.executable, "-c", _CHILD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"-?\d+", done.stdout)
    return int(found[0]) if found else None
