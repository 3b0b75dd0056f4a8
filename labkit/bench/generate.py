"""Tokens a second of GPT-2, labkit beside transformers in the same process, and the share of what memory allows.

Each round runs every side once and measures memory's speed; ratios are taken within a round, and the median over the
rounds counts, so that a busy machine disturbs all sides alike. All make the same number of tokens greedily from the
same ids and stop at none.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from labkit.bench.load import write_random_gpt2
from labkit.errors import UnknownNameError
from labkit.generation.continuation import Continuation
from labkit.generation.decoder import FastDecoder
from labkit.generation.roofline import (
    READ_NBYTES,
    Beside,
    Clock,
    Rate,
    Roofline,
    bytes_per_token,
    operations_per_token,
    peak_operations,
    read_bandwidth,
    seconds_of,
)
from labkit.generation.settings import Settings
from labkit.generation.threads import sensible_threads, threads
from labkit.load import embedded, load_gpt2
from labkit.model import GPT2

PROMPT_TOKENS = 4
PREFILL_TOKENS = 512
BATCH = 8
SMALL_WIDTH = 512
"""n_embd below which a model is all overhead: the goals are for real sizes, here only beside transformers."""
GOALS = {  # by kind of device: beside transformers in each dtype; share of memory's limit in each dtype
    "cpu": ({"float32": 1.0, "bfloat16": 8.0}, {"float32": 0.9}),
    "gpu": ({"float32": 3.0, "bfloat16": 3.0}, {"bfloat16": 0.5}),
}
"""What decoding one prompt of a model of real size is to reach; the other goals are a processor's."""
RUN_SECONDS = 0.6
"""About how long one run may take: short runs and many rounds find the moments when nothing else runs."""

ClockName = Literal["wall", "processor"]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}

Run = Callable[[int], object]
"""Makes so many tokens."""
Rounds = dict[str, list[float]]
"""Tokens a second of each side, round by round; memory's speed in bytes a second beside them."""
MEMORY = "memory"
ONE_ID = "one id a pass, same ids"

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def bench_generate(
    folder: str | Path | None = None,
    *,
    device: str = "cpu",
    tokens: int = 48,
    repeats: int = 8,
    prompt: Sequence[int] | None = None,
    clock: ClockName = "wall",
    say: Callable[[str], None] | None = None,
) -> tuple[Roofline, ...]:
    """Measure the checkpoint in ``folder``; without one, the embedded checkpoint and a random GPT-2 small.

    ``clock="processor"`` counts the processor's time on one thread, for machines that do other work meanwhile.
    """
    if clock not in CLOCKS:
        raise UnknownNameError.near("clock", clock, CLOCKS)
    tell = say or (lambda _step: None)
    if folder is not None:
        return (_bench(Path(folder), str(folder), device, tokens, repeats, prompt, clock, tell),)
    with TemporaryDirectory() as name:
        tell("writing a random GPT-2 small")
        write_random_gpt2(Path(name))
        small = _bench(Path(name), "random GPT-2 small", device, tokens, repeats, prompt, clock, tell)
    return (_bench(embedded(), "embedded checkpoint", device, 4 * tokens, repeats, None, clock, tell), small)


def _bench(
    folder: Path,
    name: str,
    device: str,
    tokens: int,
    repeats: int,
    prompt: Sequence[int] | None,
    clock: ClockName,
    tell: Callable[[str], None],
) -> Roofline:
    model = load_gpt2(folder, device=device, mode="owned")
    with threads(1 if clock == "processor" else sensible_threads(model)):
        bench = _Bench(folder, name, model.device, tokens, repeats, prompt, clock, tell)
        return bench.run(model)


class _Bench:
    def __init__(
        self,
        folder: Path,
        name: str,
        device: torch.device,
        tokens: int,
        repeats: int,
        prompt: Sequence[int] | None,
        clock: ClockName,
        tell: Callable[[str], None],
    ) -> None:
        self._folder, self._name, self._device = folder, name, device
        self._tokens, self._repeats, self._tell = tokens, repeats, tell
        self._clock, self._clock_name = CLOCKS[clock], clock
        self._prompt = list(prompt) if prompt else []
        self._bandwidths: list[float] = []
        self._read_nbytes = READ_NBYTES
        self._small = False
        self._kind = "cpu" if device.type == "cpu" else "gpu"

    def _on_cpu(self, goal: float) -> float | None:
        """A goal that is set for models of real size on a processor only."""
        return goal if self._kind == "cpu" and not self._small else None

    def run(self, model: GPT2) -> Roofline:
        config = model.config
        self._small = config.n_embd < SMALL_WIDTH
        if not self._prompt:
            generator = torch.Generator().manual_seed(0)
            self._prompt = torch.randint(config.vocab_size, (PROMPT_TOKENS,), generator=generator).tolist()
        self._tokens = min(self._tokens, config.n_positions - len(self._prompt))
        self._read_nbytes = min(READ_NBYTES, int(bytes_per_token(model, length=0)))
        rates: list[Rate] = []
        for dtype in DTYPES:
            own = model if dtype == torch.float32 else load_gpt2(self._folder, device=str(self._device), dtype=dtype)
            rates.append(self._decode(own, model))
            if dtype == torch.float32:
                rates += [self._whole_text(own), self._prefill(own), self._batch(own), *self._lookups(own)]
            elif dtype == torch.bfloat16:
                rates.append(self._batch(own))
        return Roofline(
            folder=self._name,
            device=str(self._device),
            threads=torch.get_num_threads(),
            clock=self._clock_name,
            bandwidth=median(self._bandwidths),
            peak=peak_operations(self._device, clock=self._clock),
            rates=tuple(rates),
        )

    def _decode(self, model: GPT2, exact: GPT2) -> Rate:
        """``exact``: the same model in float32."""
        dtype = _name(model.dtype)
        peers, shares = ({"float32": 3.0}, {}) if self._small else GOALS[self._kind]
        self._tell(f"{self._name}: decoding in {dtype}")
        peer = self._peer(model.dtype)
        runs: dict[str, Run] = {
            "labkit": lambda n: _greedy(model, [self._prompt], n),
            "transformers": lambda n: _peer(peer, [self._prompt], n),
        }
        goals = {"transformers": peers.get(dtype)}
        if model is not exact:
            runs["float32"] = lambda n: _greedy(exact, [self._prompt], n)
            goals["float32"] = self._on_cpu(1.8) if dtype == "bfloat16" else None
        return self._rate("decode", model, self._race(runs), goal=shares.get(dtype), goals=goals)

    def _whole_text(self, model: GPT2) -> Rate:
        self._tell(f"{self._name}: without the cache")
        peer = self._peer(model.dtype)
        runs: dict[str, Run] = {
            "labkit": lambda n: _greedy(model, [self._prompt], n, cached=False),
            "transformers": lambda n: _peer(peer, [self._prompt], n, use_cache=False),
        }
        return self._rate("no cache", model, self._race(runs), arithmetic=True)

    def _prefill(self, model: GPT2) -> Rate:
        count = min(PREFILL_TOKENS, model.config.n_positions)
        self._tell(f"{self._name}: a prompt of {count} tokens")
        ids = torch.randint(model.config.vocab_size, (1, count), generator=torch.Generator().manual_seed(1))
        peer, decoder = self._peer(model.dtype), FastDecoder(model, capacity=count)
        rows, moved = ids.tolist(), ids.to(self._device)

        def other(_: int) -> None:
            with torch.inference_mode():
                peer(moved, use_cache=True, logits_to_keep=1)

        runs: dict[str, Run] = {"labkit": lambda _: decoder.prefill(rows), "transformers": other}
        rounds, goals = self._race(runs, fixed=count), {"transformers": self._on_cpu(1.0)}
        return self._rate(f"prompt of {count}", model, rounds, arithmetic=True, goals=goals)

    def _batch(self, model: GPT2) -> Rate:
        self._tell(f"{self._name}: {BATCH} prompts at once")
        size = model.config.vocab_size
        rows = [[(token + row) % size for token in self._prompt] for row in range(BATCH)]
        peer = self._peer(model.dtype)
        runs: dict[str, Run] = {
            "labkit": lambda n: _greedy(model, rows, n),
            "transformers": lambda n: _peer(peer, rows, n),
            "one prompt": lambda n: _greedy(model, [self._prompt], n),
        }
        rounds = self._race(runs, rows={"labkit": BATCH, "transformers": BATCH})
        goal = self._on_cpu(4.0) if model.dtype == torch.float32 else None
        return self._rate(f"batch of {BATCH}", model, rounds, batch=BATCH, goals={"one prompt": goal})

    def _lookups(self, model: GPT2) -> list[Rate]:
        rates = []
        for name, goal, subject in (
            ("look-up, text repeats", 1.5, _repeating(model)),
            ("look-up, no repeats", 0.95, _varied(model)),
        ):
            self._tell(f"{self._name}: {name}")
            kept: list[str] = []

            def looked(n: int, subject: GPT2 = subject, kept: list[str] = kept) -> None:
                kept[:] = [_greedy(subject, [self._prompt], n, lookup=True)]

            runs: dict[str, Run] = {"labkit": looked, ONE_ID: partial(_greedy, subject, [self._prompt])}
            rounds = self._race(runs, fixed=self._tokens)
            goals = {ONE_ID: self._on_cpu(goal)}
            rates.append(self._rate(name, model, rounds, goals=goals, note=kept[0]))
        return rates

    def _rate(
        self,
        name: str,
        model: GPT2,
        rounds: Rounds,
        *,
        batch: int = 1,
        arithmetic: bool = False,
        goal: float | None = None,
        goals: Mapping[str, float | None] | None = None,
        note: str = "",
    ) -> Rate:
        length = len(self._prompt) + self._tokens / 2
        moved = None if arithmetic else bytes_per_token(model, length=length, batch=batch)
        ours, bandwidths = rounds["labkit"], rounds[MEMORY]
        shares = [] if moved is None else [rate * moved / speed for rate, speed in zip(ours, bandwidths, strict=True)]
        beside = [
            Beside(
                name=other,
                tokens_per_second=median(rates),
                ratio=median(a / b for a, b in zip(ours, rates, strict=True)),
                goal=(goals or {}).get(other),
            )
            for other, rates in rounds.items()
            if other not in ("labkit", MEMORY)
        ]
        return Rate(
            name=name,
            dtype=_name(model.dtype),
            tokens_per_second=median(ours),
            bytes_per_token=moved,
            operations_per_token=operations_per_token(model, length=length),
            share=median(shares) if shares else None,
            goal=goal,
            beside=tuple(beside),
            note=note,
        )

    def _race(
        self, runs: Mapping[str, Run], *, fixed: int | None = None, rows: Mapping[str, int] | None = None
    ) -> Rounds:
        """Tokens a second of each in every round, and memory's speed in the same round.

        ``fixed``: the number that every run is given; ``rows``: how many prompts a run continues at once.
        """
        counts = {}
        for name, run in runs.items():
            run(2)
            trial = self._time(partial(run, fixed or 4)) / (fixed or 4)
            counts[name] = fixed or max(4, min(self._tokens, int(RUN_SECONDS / trial)))
        rounds: Rounds = {name: [] for name in (*runs, MEMORY)}
        for _ in range(self._repeats):
            for name, run in runs.items():
                seconds = self._time(partial(run, counts[name]))
                rounds[name].append((rows or {}).get(name, 1) * counts[name] / seconds)
            speed = read_bandwidth(self._device, nbytes=self._read_nbytes, repeats=1, clock=self._clock)
            rounds[MEMORY].append(speed)
            self._bandwidths.append(speed)
        return rounds

    def _time(self, run: Callable[[], object]) -> float:
        return seconds_of(run, self._device, clock=self._clock)

    def _peer(self, dtype: torch.dtype) -> Any:
        from transformers import GPT2LMHeadModel
        from transformers.utils import logging

        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            return GPT2LMHeadModel.from_pretrained(self._folder, dtype=dtype).eval().to(self._device)
        finally:
            if shown:
                logging.enable_progress_bar()


def _greedy(
    model: GPT2, rows: Sequence[Sequence[int]], count: int, *, cached: bool = True, lookup: bool = False
) -> str:
    run = Continuation(model, rows, Settings(tokens=count), cached=cached, lookup=lookup)
    while run.advance():
        pass
    return str(run.source) if lookup else ""


def _peer(peer: Any, rows: Sequence[Sequence[int]], count: int, **options: Any) -> None:
    ids = torch.tensor(rows, device=peer.device)  # [batch, pos]
    peer.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )


def _repeating(model: GPT2) -> GPT2:
    """The same products over changed weights: no position and no block moves the stream, so the text soon has a period."""
    still = {name: torch.zeros_like(each) for name, each in model.parameters_by_name.items() if "c_proj" in name}
    still["wpe.weight"] = torch.zeros_like(model.parameters_by_name["wpe.weight"])
    return GPT2(model.config, {**model.parameters_by_name, **still})


def _varied(model: GPT2) -> GPT2:
    """The same products over changed weights: positions weigh much, so the text hardly repeats itself."""
    loud = model.parameters_by_name["wpe.weight"] * 30
    return GPT2(model.config, {**model.parameters_by_name, "wpe.weight": loud})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
