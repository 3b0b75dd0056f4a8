"""Each exercise takes its right answer and says what is wrong with likely wrong ones, without telling the answer."""

import itertools
import json
from typing import Any

import pytest
import torch

import labkit.exercises
from labkit.config import GPT2Config
from labkit.errors import OutOfRangeError, UnknownNameError
from labkit.exercises import check, zoo_trace
from labkit.exercises.engine_tasks import diagnosis
from labkit.exercises.task import ROOMS, tasks_of
from labkit.exercises.zoo import ENGINES, plantings
from labkit.storage import read_header
from labkit.verification.faults import parse_fault


def file_of(fields: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(fields).encode()
    return len(header).to_bytes(8, "little") + header + data


DATA = bytes.fromhex("0000803f000000c0")
X = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def count(config: GPT2Config) -> int:
    d, inner = config.n_embd, config.inner
    block = 4 * d * d + 4 * d + 2 * d * inner + d + inner + 4 * d
    return (config.vocab_size + config.n_positions) * d + config.n_layer * block + 2 * d


def count_with_inner_of_four(config: GPT2Config) -> int:
    d = config.n_embd
    return (config.vocab_size + config.n_positions) * d + config.n_layer * (12 * d * d + 13 * d) + 2 * d


def conv1d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x @ weight + bias


def transposes_where_shapes_allow(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x @ weight.T if weight.shape[0] == weight.shape[1] else x @ weight) + bias


def pattern(scores: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)


def next_merge(symbols: list[str], ranks: dict[tuple[str, str], int]) -> int | None:
    pairs = [(ranks[pair], place) for place, pair in enumerate(itertools.pairwise(symbols)) if pair in ranks]
    return min(pairs)[1] if pairs else None


def first_pair(symbols: list[str], ranks: dict[tuple[str, str], int]) -> int | None:
    return next((i for i, pair in enumerate(itertools.pairwise(symbols)) if pair in ranks), None)


def top_p(probabilities: torch.Tensor, p: float) -> torch.Tensor:
    values, order = probabilities.sort(descending=True)
    before = values.cumsum(0) - values
    kept = torch.zeros_like(probabilities)
    kept[order] = torch.where(before < p - 1e-6, values, 0.0)
    return kept / kept.sum()


RIGHT: dict[str, Any] = {
    "00.1": "h.2.attn.q",
    "01.1": file_of({"x": X}, DATA),
    "01.2": 287_223_763,
    "01.3": 5,
    "01.4": lambda header, file: file >= 8 and header <= file - 8,
    "02.1": lambda bits: torch.tensor([bits], dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float().item(),
    "03.1": count,
    "03.2": conv1d,
    "03.3": 12,
    "04.1": next_merge,
    "04.2": "Ġ",
    "04.3": 50_000,
    "07.1": top_p,
    "07.2": 75_497_472,
    "08.1": pattern,
    "10.1": 4,
}
WRONG: list[tuple[str, Any, str]] = [
    ("00.1", "h.2.attn.out", "wrong already"),
    ("00.1", "h.0.attn.q", "block 2"),
    ("01.1", file_of({"x": X}, DATA[:-1]), "no reader takes it"),
    ("01.1", file_of({"y": X}, DATA), "named x"),
    ("01.1", file_of({"x": X}, DATA[4:] + DATA[:4]), "reads as"),
    ("01.1", "x", "not str"),
    ("01.2", 287_209_472, "not of the file"),
    ("01.3", 3, "past a multiple"),
    ("01.4", lambda header, file: 8 + header <= file, "wraps around"),
    ("01.4", lambda header, file: True, "does not fit"),
    ("02.1", lambda bits: float(bits), "do not stand for"),
    ("03.1", count_with_inner_of_four, "fewer than"),
    ("03.2", transposes_where_shapes_allow, "wrong way round"),
    ("03.2", lambda x, w, b: x @ w, "bias"),
    ("03.2", lambda x, w, b: x @ w.T + b, "raised RuntimeError"),
    ("03.3", 160, "how many tensors"),
    ("04.1", first_pair, "lowest rank"),
    ("04.2", "G", "dot"),
    ("04.3", 50_257, "single bytes"),
    ("07.1", lambda probabilities, p: probabilities, "too many"),
    ("07.2", 37_748_736, "keys and values"),
    ("08.1", lambda scores: scores.softmax(-1), "future"),
    ("10.1", 16, "another shape"),
    ("08.1", lambda scores: scores.softmax(-1).tril(), "add up to 1"),
]


@pytest.mark.parametrize("number", sorted(RIGHT))
def test_the_right_answer_is_right(number: str) -> None:
    assert repr(check(number, RIGHT[number])) == f"{number} right"


@pytest.mark.parametrize(("number", "answer", "said"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(number: str, answer: Any, said: str) -> None:
    verdict = check(number, answer)
    assert not verdict.right
    assert said in verdict.wrong
    if isinstance(RIGHT[number], int | str):
        assert f" {RIGHT[number]}" not in f" {verdict.wrong}"


def test_every_task_has_its_answer_here() -> None:
    every = {number for notebook in ROOMS for number in tasks_of(notebook)}
    assert every == set(RIGHT) | {f"05.{n}" for n in range(1, ENGINES + 1)}


@pytest.mark.parametrize("answer", [None, ...])
def test_no_answer_yet(answer: object) -> None:
    assert check("04.2", answer).wrong == "there is no answer yet"


def test_unknown_numbers_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no exercise named '04\.9'"):
        check("04.9", 1)
    with pytest.raises(UnknownNameError, match="no notebook with exercises named '99'"):
        check("99.1", 1)


def test_every_name_is_there() -> None:
    assert all(callable(getattr(labkit.exercises, name)) for name in labkit.exercises.__all__)


def test_the_zoo_tells_nothing_of_its_faults(tmp_path: Any) -> None:
    header = read_header(zoo_trace(3, tmp_path))
    assert header.metadata is not None
    fault = plantings()[2].partition(":")[0]
    assert fault not in json.dumps(dict(header.metadata))
    assert header.metadata["engine"] == "engine-03"
    with pytest.raises(OutOfRangeError, match="1 to 10"):
        zoo_trace(11, tmp_path)


def solve(number: int) -> tuple[str, str]:
    fault, block = parse_fault(plantings()[number - 1])
    return fault.expected_stage(block), fault.finding or fault.name


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n == 1 else [pytest.mark.slow]) for n in range(1, ENGINES + 1)]
)
def test_the_diagnosis_solves_each_engine(number: int) -> None:
    assert diagnosis(number) == solve(number)
    stage, cause = solve(number)
    assert check(f"05.{number}", (stage, cause)).right
    assert "not the first" in check(f"05.{number}", ("logits", cause)).wrong
    other = "erf-gelu" if cause != "erf-gelu" else "relu"
    assert "does not reproduce" in check(f"05.{number}", (stage, other)).wrong
    assert "no cause is named" in check(f"05.{number}", (stage, "bad luck")).wrong
