"""The tokenizer beside tiktoken and tokenizers: ratios of medians, in one process, the sides taking turns.

In: texts. Out: one measure a question, with its goal. A ratio above 1 says that labkit is faster. Every text is first
checked: a side that gives other ids is not timed.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from labkit.bench import tokenize_texts as texts
from labkit.errors import ArgumentError
from labkit.tokenizer import Tokenizer
from labkit.tokenizer.files import find_gpt2
from labkit.tokenizer.parity import PATTERN, tokenizers_encode
from labkit.tokenizer.train import END_OF_TEXT, count_pieces, train
from labkit.tokenizer.vocabulary import Vocabulary

GOALS: Final = {"english": (5.0, 2.0), "code": (5.0, 2.0), "many scripts": (4.0, None)}  # warm, cold
SENTENCES: Final = (
    "Hello, my name is Sarah, and I have been working on this project since last year.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.",
    "for i in range(10): print(i, end=', ')  # don't",
    "The café's Überraschung cost €5, déjà vu!",
)
LENGTHS: Final = (25_000, 50_000, 100_000, 200_000)  # bytes of a hostile text; the ratio is taken at the third
MEMORY_GOAL: Final = 40e6  # bytes
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One answer: a number, the least or the most it should be, and in words what it is."""

    name: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None
    detail: str = ""

    @property
    def reached(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def goal(self) -> str:
        if self.least is not None:
            return f"at least {self.least:g}"
        return "" if self.most is None else f"at most {self.most:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeBench:
    """Every measure of the tokenizer."""

    rounds: int
    measures: tuple[Measure, ...]

    @property
    def return_code(self) -> int:
        """0 where every goal is reached, else 1."""
        return 0 if all(each.reached for each in self.measures) else 1

    def __str__(self) -> str:
        lines = [f"medians of {self.rounds} rounds, sides taking turns; a ratio above 1 says that labkit is faster"]
        for each in self.measures:
            mark = "" if not each.goal else "ok" if each.reached else "short"
            goal = f"({each.goal})" if each.goal else ""
            lines.append(f"  {each.name:44} {each.value:8.2f} {each.unit:6} {goal:16} {mark:6} {each.detail}")
        return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: GPT-2's vocabulary here, and tiktoken's encoding of the same files."""

    vocabulary: Vocabulary
    encoding: Any


def bench_tokenize(files: Sequence[Path] = (), *, rounds: int = 7, say: Say | None = None) -> TokenizeBench:
    """Measure on the given files, or on texts made from what is installed."""
    tell = say or (lambda _step: None)
    tell("making texts")
    given: dict[str, str | None] = {path.name: path.read_text(encoding="utf-8") for path in files}
    found = given or {"english": texts.english(), "code": texts.code(), "many scripts": texts.many_scripts()}
    corpora = {name: text for name, text in found.items() if text}
    measures: list[Measure] = []
    sides = Sides(Tokenizer.gpt2().vocabulary, build_tiktoken())
    for name, text in corpora.items():
        tell(f"encoding: {name}")
        measures += _encoding(name, text, sides, rounds)
    first = next(iter(corpora.values()))
    steps: Mapping[str, Callable[[], list[Measure]]] = {
        "tokenizers": lambda: _tokenizers(first, sides, rounds),
        "sentences": lambda: _sentences(sides, rounds),
        "decoding": lambda: _decoding(first, sides, rounds),
        "hostile texts": lambda: _hostile(sides, rounds),
        "loading": lambda: _loading(rounds),
        "training": lambda: _training(first, min(rounds, 3)),
        "two processes": lambda: _two_processes(first, rounds),
        "memory": lambda: _memory(first),
    }
    for name, step in steps.items():
        tell(name)
        measures += step()
    return TokenizeBench(rounds=rounds, measures=tuple(measures))


def take_turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each side over rounds in which they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, run in sides.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
    finally:
        gc.enable()
    return {name: median(each) for name, each in seconds.items()}


def build_tiktoken() -> Any:
    """tiktoken's encoding, built from the same two files by its own reader."""
    try:
        import tiktoken
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    except ImportError:
        raise ArgumentError("tiktoken is not installed", fix="pip install tiktoken") from None
    vocab, merges = find_gpt2()
    ranks = data_gym_to_mergeable_bpe_ranks(str(merges), str(vocab))
    return tiktoken.Encoding("bench", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def _check(name: str, ours: list[int], theirs: list[int]) -> None:
    if ours != theirs:
        raise ArgumentError(f"{name}: the ids differ, so there is nothing to time", fix="see labkit parity")


def _encoding(name: str, text: str, sides: Sides, rounds: int) -> list[Measure]:
    peer = sides.encoding.encode_ordinary
    tokenizer = Tokenizer(sides.vocabulary).prepare()
    _check(name, tokenizer.encode_array(text).tolist(), peer(text))
    fresh = iter([Tokenizer(sides.vocabulary).prepare() for _ in range(rounds)])
    seconds = take_turns(
        {
            "peer": lambda: peer(text),
            "warm": lambda: tokenizer.encode_array(text),
            "list": lambda: tokenizer.encode(text),
            "cold": lambda: next(fresh).encode_array(text),
        },
        rounds,
    )
    warm, cold = GOALS.get(name, (None, None))
    speed = f"{len(text.encode()) / seconds['warm'] / 1e6:.0f} MB/s"
    return [
        Measure(
            name=f"{name}, warm, array", value=seconds["peer"] / seconds["warm"], unit="x", least=warm, detail=speed
        ),
        Measure(name=f"{name}, cold, array", value=seconds["peer"] / seconds["cold"], unit="x", least=cold),
        Measure(name=f"{name}, warm, list", value=seconds["peer"] / seconds["list"], unit="x"),
    ]


def _tokenizers(text: str, sides: Sides, rounds: int) -> list[Measure]:
    tokenizer = Tokenizer(sides.vocabulary).prepare()
    peer = tokenizers_encode(sides.vocabulary)
    part = text[:500_000]
    _check("tokenizers", tokenizer.encode(part), peer(part))
    seconds = take_turns({"peer": lambda: peer(part), "ours": lambda: tokenizer.encode_array(part)}, min(rounds, 5))
    return [Measure(name="beside tokenizers' encode", value=seconds["peer"] / seconds["ours"], unit="x", least=25)]


def _sentences(sides: Sides, rounds: int) -> list[Measure]:
    tokenizer, peer = Tokenizer(sides.vocabulary).prepare(), sides.encoding.encode_ordinary
    for sentence in SENTENCES:
        _check("sentences", tokenizer.encode(sentence), peer(sentence))
    many = SENTENCES * 500
    seconds = take_turns(
        {"peer": lambda: [peer(each) for each in many], "ours": lambda: [tokenizer.encode(each) for each in many]},
        rounds,
    )
    return [Measure(name="single sentences, list", value=seconds["peer"] / seconds["ours"], unit="x", least=1.1)]


def _decoding(text: str, sides: Sides, rounds: int) -> list[Measure]:
    tokenizer, encoding = Tokenizer(sides.vocabulary), sides.encoding
    ids = tokenizer.encode(text)
    array = np.array(ids, tokenizer.id_dtype)  # [token]
    if not tokenizer.decode(ids) == encoding.decode(ids) == text:
        raise ArgumentError("decoding: the texts differ, so there is nothing to time")
    seconds = take_turns(
        {
            "peer": lambda: encoding.decode(ids),
            "list": lambda: tokenizer.decode(ids),
            "array": lambda: tokenizer.decode(array),
        },
        rounds,
    )
    return [
        Measure(name="decoding a list", value=seconds["peer"] / seconds["list"], unit="x", least=1.1),
        Measure(name="decoding an array", value=seconds["peer"] / seconds["array"], unit="x"),
    ]


def _hostile(sides: Sides, rounds: int) -> list[Measure]:
    peer = sides.encoding.encode_ordinary
    by_length = {length: texts.hostile(length) for length in LENGTHS}
    few = min(rounds, 5)
    ratios, exponents = {}, {}
    for name, text in by_length[LENGTHS[2]].items():
        _check(name, Tokenizer(sides.vocabulary).encode(text), peer(text))
        fresh = iter([Tokenizer(sides.vocabulary).prepare() for _ in range(few)])
        both = take_turns({"peer": partial(peer, text), "ours": partial(_encode_with_next, fresh, text)}, few)
        ratios[name] = both["peer"] / both["ours"]
        spent = [_processor_seconds(sides.vocabulary, by_length[length][name], few) for length in LENGTHS]
        exponents[name] = float(np.polyfit(np.log(LENGTHS), np.log(spent), 1)[0])
    slowest, steepest = min(ratios, key=lambda n: ratios[n]), max(exponents, key=lambda n: exponents[n])
    kinds = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return [
        Measure(name="hostile texts, the worst", value=ratios[slowest], unit="x", least=0.25, detail=kinds),
        Measure(
            name="hostile texts, time as length to the power",
            value=exponents[steepest],
            unit="",
            most=1.1,
            detail=steepest,
        ),
    ]


def _processor_seconds(vocabulary: Vocabulary, text: str, rounds: int) -> float:
    """The least processor time of a first call: how it grows with length is ours to answer for, waiting is not."""
    seconds = []
    for _ in range(rounds):
        tokenizer = Tokenizer(vocabulary).prepare()
        start = time.process_time()
        tokenizer.encode(text)
        seconds.append(time.process_time() - start)
    return min(seconds)


def _encode_with_next(tokenizers: Iterator[Tokenizer], text: str) -> list[int]:
    return next(tokenizers).encode(text)


def _loading(rounds: int) -> list[Measure]:
    seconds = take_turns({"peer": build_tiktoken, "ours": lambda: Tokenizer.gpt2().prepare()}, rounds)
    value = seconds["ours"] / seconds["peer"]
    return [Measure(name="loading, our time over tiktoken's", value=value, unit="", most=1.0)]


def _training(text: str, rounds: int) -> list[Measure]:
    """A vocabulary of 4,000 on a megabyte, by lines, as tokenizers' trainer takes files."""
    from tokenizers import Tokenizer as Peer
    from tokenizers import models, pre_tokenizers, trainers

    size, lines = 4000, text[:1_000_000].splitlines(keepends=True)

    def theirs() -> None:
        peer = Peer(models.BPE())
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        peer.train_from_iterator(lines, trainer)

    seconds = take_turns({"peer": theirs, "ours": lambda: train(count_pieces(lines), vocabulary_size=size)}, rounds)
    return [
        Measure(
            name="training beside tokenizers' trainer", value=seconds["peer"] / seconds["ours"], unit="x", least=0.2
        )
    ]


_WORKER: dict[str, tuple[Tokenizer, str]] = {}


def _start_worker(text: str) -> None:
    tokenizer = Tokenizer.gpt2()
    tokenizer.encode_array(text)
    _WORKER["ready"] = tokenizer, text


def _work(_task: int) -> int:
    tokenizer, text = _WORKER["ready"]
    return len(tokenizer.encode_array(text))


def _run_tasks(pool: ProcessPoolExecutor, tasks: Iterable[int]) -> list[int]:
    return list(pool.map(_work, tasks))


def _two_processes(text: str, rounds: int) -> list[Measure]:
    """The same eight tasks in one process and in two, each process warm."""
    context, tasks = get_context("spawn"), range(8)
    pools = {
        count: ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker, initargs=(text,))
        for count in (1, 2)
    }
    try:
        for pool in pools.values():
            _run_tasks(pool, tasks)
        sides = {str(count): partial(_run_tasks, pool, tasks) for count, pool in pools.items()}
        seconds = take_turns(sides, min(rounds, 5))
    finally:
        for pool in pools.values():
            pool.shutdown()
    return [Measure(name="two processes beside one", value=seconds["1"] / seconds["2"], unit="x", least=1.5)]


def _memory(text: str) -> list[Measure]:
    gc.collect()
    tracemalloc.start()
    tokenizer = Tokenizer.gpt2().prepare()
    tokenizer.encode_array(text)
    for start in range(0, len(text), 2000):
        tokenizer.encode(text[start : start + 2000])
    tokenizer.decode(tokenizer.encode(text[:5000]))
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return [Measure(name="memory of vocabulary and tables", value=held / 1e6, unit="MB", most=MEMORY_GOAL / 1e6)]
