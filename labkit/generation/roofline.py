"""How fast decoding could be: bytes that a token moves, the memory's measured speed, and the share reached.

In: a model, measured rates. Out: frozen records with their text. One row through a GPT-2 reads every weight once and
computes two operations on each, far less than a processor does in the time that the reading takes; so memory speed
over bytes per token is the limit of a decoder that makes one token a pass (Williams et al. 2009, "Roofline").
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkit.generation.prepared import prepare
from labkit.model import GPT2

READ_NBYTES = 512 * 2**20
"""Bytes read to measure the speed of memory: many times any processor's cache."""
ROUNDS_NBYTES = {"cpu": READ_NBYTES // 8, "cuda": 8 * READ_NBYTES, "mps": 8 * READ_NBYTES}
"""Bytes read between two looks at the clock: a GPU reads so fast that fewer would time the wait for it."""
MOST_ROUNDS = 1000

Clock = Callable[[], float]
"""time.perf_counter, or time.process_time: processor time, which other programs disturb less, of one thread."""

WIDTH = 4096
"""Elements in a row of what is read."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A rate to compare with, measured in the same rounds, and the ratio that is aimed at (None: for information)."""

    name: str
    tokens_per_second: float
    ratio: float
    """Median over the rounds of the measured rate over this one."""
    goal: float | None = None


@dataclass(frozen=True, kw_only=True)
class Rate:
    """One way of making tokens, measured: medians over rounds."""

    name: str
    dtype: str
    tokens_per_second: float
    bytes_per_token: float | None  # None where arithmetic, not memory, is the limit
    operations_per_token: float
    share: float | None = None
    """The part of memory's limit that is reached: median over rounds, memory's speed measured in each."""
    goal: float | None = None  # share of the limit that is aimed at
    beside: tuple[Beside, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """All rates of one model on one machine; bandwidth in bytes a second, the peak in operations a second."""

    folder: str
    device: str
    threads: int
    clock: str  # "wall", or "processor" where the time of other programs is left out
    bandwidth: float  # of memory, or of the cache where the whole model fits into it
    peak: float  # multiplications and additions in float32
    rates: tuple[Rate, ...]

    @property
    def return_code(self) -> int:
        """0 where every goal is reached, else 1."""
        return 1 if any(not good for _, good in self.goals()) else 0

    def goals(self) -> tuple[tuple[str, bool], ...]:
        """Every goal in words, and whether it is reached."""
        found = []
        for rate in self.rates:
            if rate.goal is not None and rate.share is not None:
                found.append((f"{rate.name}, {rate.dtype}: {rate.goal:.2f} of the limit", rate.share >= rate.goal))
            for other in rate.beside:
                if other.goal is not None:
                    goal = f"{rate.name}, {rate.dtype}: {other.goal:.2f}x {other.name}"
                    found.append((goal, other.ratio >= other.goal))
        return tuple(found)

    def __str__(self) -> str:
        place = f"{self.device}, {self.threads} thread{'s' if self.threads > 1 else ''}, {self.clock} time"
        speeds = f"reads {self.bandwidth / 1e9:.1f} GB/s, computes {self.peak / 1e9:.0f} GFLOP/s in float32"
        lines = [f"{self.folder} on {place}: {speeds}"]
        for rate in self.rates:
            share = rate.share
            moved = f"{rate.bytes_per_token / 1e6:8.1f} MB/token" if rate.bytes_per_token is not None else 17 * " "
            reached = f"{share:5.2f} of the limit" if share is not None else 18 * " "
            mark = "" if rate.goal is None or share is None else _mark(share, rate.goal)
            name = f"{rate.name}, {rate.dtype}"
            lines.append(f"  {name:36} {rate.tokens_per_second:9.1f} tokens/s {moved}  {reached} {mark}".rstrip())
            for other in rate.beside:
                mark = "" if other.goal is None else _mark(other.ratio, other.goal)
                told = f"beside {other.name}"
                lines.append(
                    f"      {told:32} {other.tokens_per_second:9.1f} tokens/s   ratio {other.ratio:.2f} {mark}".rstrip()
                )
            lines += [f"      {rate.note}"] if rate.note else []
        return "\n".join(lines)


def _mark(value: float, goal: float) -> str:
    return f"(goal {goal:.2f}) {'ok' if value >= goal else 'short'}"


def bytes_per_token(model: GPT2, *, length: float, batch: int = 1) -> float:
    """Bytes read for one token of one row: its part of the weights, and the keys and values of ``length`` positions.

    >>> from labkit.load import load_gpt2
    >>> model = load_gpt2()
    >>> bytes_per_token(model, length=0) > bytes_per_token(model, length=0, batch=2)
    True
    """
    config = model.config
    cached = 2 * config.n_layer * config.n_embd * model.dtype.itemsize * length
    return prepare(model).nbytes_per_token / batch + cached


def operations_per_token(model: GPT2, *, length: float) -> float:
    """Multiplications and additions for one token: two a weight of each product, and attention over ``length``."""
    config, prepared = model.config, prepare(model)
    products = [pair[1] for b in prepared.blocks for pair in (b.c_attn, b.attn_c_proj, b.c_fc, b.mlp_c_proj)]
    weights = sum(each.numel() for each in products) + prepared.head.numel()
    return 2 * weights + 4 * config.n_layer * config.n_embd * length


def read_bandwidth(
    device: torch.device, *, nbytes: int = READ_NBYTES, repeats: int = 5, clock: Clock = time.perf_counter
) -> float:
    """Bytes a second at which ``nbytes`` are read over and over: the best of a sum and of two products with one row."""
    rows = max(1, nbytes // (4 * WIDTH))
    table = torch.ones(rows, WIDTH, device=device)  # [rows, width]
    long, wide = torch.ones(rows, device=device), torch.ones(WIDTH, device=device)  # [rows], [width]
    rounds = max(1, min(MOST_ROUNDS, ROUNDS_NBYTES[device.type] // table.nbytes))
    seconds = [
        seconds_of(read, device, rounds=rounds, clock=clock) / rounds
        for _ in range(repeats)
        for read in (table.sum, lambda: table @ wide, lambda: long @ table)
    ]
    return table.nbytes / min(seconds)


def peak_operations(
    device: torch.device, *, size: int = 1024, repeats: int = 5, clock: Clock = time.perf_counter
) -> float:
    """Operations a second of a float32 product of two square matrices."""
    a = torch.ones(size, size, device=device)  # [size, size]
    return max(2 * size**3 / seconds_of(lambda: a @ a, device, clock=clock) for _ in range(repeats))


def seconds_of(
    run: Callable[[], object], device: torch.device, *, rounds: int = 1, clock: Clock = time.perf_counter
) -> float:
    """How long ``rounds`` runs take by the clock, until the device is done with them."""
    wait_for(device)
    began = clock()
    for _ in range(rounds):
        run()
    wait_for(device)
    return clock() - began


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
