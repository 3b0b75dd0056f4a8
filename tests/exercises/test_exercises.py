"""Each exercise takes its right answer and says what is wrong with likely wrong ones, without telling the answer."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import labkit.exercises
from labkit.config import GPT2Config
from labkit.errors import ArgumentTypeError, FileAccessError, OutOfRangeError, UnknownNameError
from labkit.exercises import check, zoo_trace
from labkit.exercises.engine_tasks import diagnosis, stages
from labkit.exercises.task import ROOMS, tasks_of
from labkit.exercises.zoo import ENGINES, plantings
from labkit.storage import read_header
from labkit.verification import verify
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
    ("00.1", "h.2.attn.out", "not the first that differs"),
    ("00.1", "h.2.attn.k", "not the first that differs"),
    ("00.1", "h.0.attn.q", "still agrees"),
    ("00.1", "h.2.ln_1", "still agrees"),
    ("00.1", "logits", "not the first that differs"),
    ("00.1", "h.9.attn.k", "no stage"),
    ("00.1", 2, "should be a text, not 2"),
    ("01.1", file_of({"x": X}, DATA[:-1]), "no reader takes it"),
    ("01.1", file_of({"y": X}, DATA), "named x"),
    ("01.1", file_of({"x": X}, DATA[4:] + DATA[:4]), "reads as"),
    ("01.1", "x", "not str"),
    ("01.2", 287_209_472, "not of the file"),
    ("01.3", 3, "past a multiple"),
    ("01.4", lambda header, file: 8 + header <= file, "wraps around"),
    ("01.4", lambda header, file: True, "does not fit"),
    ("01.4", lambda header, file: None, "fits(10, 18) should be True or False, not None"),
    ("01.4", lambda header, file: (header < 2**64 - 8 and 8 + header <= file) or header == 2**64 - 4, "does not fit"),
    ("02.1", lambda bits: float(bits), "do not stand for"),
    ("02.1", lambda bits: None, "should be a number, not None"),
    ("03.1", count_with_inner_of_four, "has fewer"),
    ("03.1", lambda config: "124M", "should be a number, not '124M'"),
    ("03.2", transposes_where_shapes_allow, "wrong way round"),
    ("03.2", lambda x, w, b: x @ w, "the bias is missing"),
    ("03.2", lambda x, w, b: x @ w + 2 * b, "not by [2.0, 2.0, 2.0]"),
    ("03.2", lambda x, w, b: None, "should be a tensor of real numbers, not None"),
    ("03.2", lambda x, w, b: (x @ w + b).sum(), "should have shape [3], not []"),
    ("03.2", lambda x, w, b: x @ w + b if x.dim() == 1 else torch.zeros(2, 4, 3), "axes before the last"),
    ("03.2", lambda x, w, b: x @ w.T + b, "raised RuntimeError"),
    ("03.3", 160, "how many tensors"),
    ("04.1", first_pair, "lowest rank"),
    ("04.1", lambda s, r: None, "gave None: it has a pair with a rank"),
    ("04.1", lambda s, r: ("e", "l"), "the place of a pair is expected"),
    ("04.1", lambda s, r: len(s), "no pair stands at that place"),
    ("04.1", lambda s, r: len(s) - 2, "the pair ('l', 'o') has no rank"),
    ("04.1", lambda s, r: 1, "where no pair has a rank the answer is None"),
    ("04.1", lambda s, r: None if "x" in s else 1, "of equal ranks the leftmost"),
    ("04.2", "あ", "stands for no byte"),
    ("04.2", "x", "stands for another byte"),
    ("04.2", "G", "dot"),
    ("04.3", 50_257, "single bytes"),
    ("07.1", lambda probabilities, p: probabilities, "too many"),
    ("07.1", lambda probabilities, p: torch.tensor([1.0, 0, 0, 0]), "not the likeliest"),
    ("07.1", lambda probabilities, p: [0, 1, 0, 0], "too few"),
    (
        "07.1",
        lambda probabilities, p: (top_p(probabilities, p) > 0) / (top_p(probabilities, p) > 0).sum(),
        "proportions",
    ),
    ("07.1", lambda probabilities, p: probabilities[:2], "should have shape [4], not [2]"),
    ("07.1", lambda probabilities, p: torch.full((4,), torch.nan), "holds NaN"),
    ("07.2", 37_748_736, "keys and values"),
    ("08.1", lambda scores: scores.softmax(-1), "future"),
    ("10.1", 16, "another shape"),
    ("08.1", lambda scores: scores.softmax(-1).tril(), "add up to 1"),
    ("08.1", lambda scores: None, "pattern(scores) of [3, 3] should be a tensor of real numbers, not None"),
    ("08.1", lambda scores: 1 / 0, "the answer raised ZeroDivisionError: division by zero"),
    ("05.1", "h.2.resid_mid", "a pair is asked for"),
    ("05.1", ("residual-after-norm", "h.2.resid_mid"), "no stage of the embedded checkpoint is named"),
    ("05.1", ("h.2.resid_mid", None), "the cause's name should be a text, not None"),
    ("05.1", (None, "residual-after-norm"), "the stage's name should be a text, not None"),
]
ALSO_RIGHT: list[tuple[str, Any]] = [
    ("00.1", " H.2.ATTN.Q\n"),
    ("01.1", bytearray(file_of({"x": X}, DATA))),
    ("01.2", np.int64(287_223_763)),
    ("01.3", 5.0),
    ("01.3", np.array(5)),
    ("01.4", lambda header, file: np.bool_(file >= 8 and header <= file - 8)),
    ("02.1", lambda bits: np.array([bits << 16], np.uint32).view(np.float32)[0]),
    ("03.1", lambda config: torch.tensor(count(config))),
    ("03.2", lambda x, weight, bias: x.numpy() @ weight.numpy() + bias.numpy()),
    ("03.3", torch.tensor(12)),
    ("04.1", lambda symbols, ranks: None if (place := next_merge(symbols, ranks)) is None else np.int32(place)),
    ("04.3", np.float32(50_000)),
    ("07.1", lambda probabilities, p: top_p(probabilities, p).tolist()),
    ("07.2", torch.tensor(75_497_472.0)),
    ("08.1", lambda scores: pattern(scores).numpy()[::-1][::-1]),
    ("10.1", np.uint8(4)),
]


def changes_its_arguments(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    result = x @ weight + bias
    x.zero_(), weight.zero_(), bias.zero_()
    return result


class Unreadable:
    def __repr__(self) -> str:
        raise ValueError("no")


ODD: dict[str, Any] = {
    "nan": float("nan"),
    "inf": float("inf"),
    "minus inf": -float("inf"),
    "huge": 10**5000,
    "complex": 1j,
    "True": True,
    "empty text": "",
    "text": "five",
    "bytes": b"",
    "bytearray": bytearray(b"\0" * 16),
    "list": [],
    "pair of lists": [[], []],
    "pair of None": (None, None),
    "dict": {},
    "set": {1},
    "object": object(),
    "unreadable": Unreadable(),
    "type": int,
    "divides by zero": lambda: 1 / 0,
    "raises": lambda *_: 1 / 0,
    "module": np,
    "array": np.zeros((2, 2)),
    "empty array": np.array([]),
    "object array": np.array([None, {}], dtype=object),
    "array scalar of nan": np.float32("nan"),
    "NumPy bool": np.bool_(0),
    "tensor": torch.ones(3),
    "bool tensor": torch.zeros((), dtype=torch.bool),
    "meta tensor": torch.empty((), device="meta"),
    "sparse tensor": torch.eye(3).to_sparse(),
    "complex tensor": torch.ones(3, dtype=torch.complex64),
}
EVERY = sorted(number for notebook in ROOMS for number in tasks_of(notebook))
TRUE_OF_ODD = (
    r"should be (a number|a text|a tensor of real numbers|True or False), not .+",
    r"should have shape \[.*\], not \[.*\]",
    r"^(the bytes of a file are asked for|a function is asked for|one character is asked for|a pair is asked for.*), not .+",
    r"^the answer raised \w+: .+",
    r"^too (large|small)$",
    r"^no reader takes it: .+",
    r"^no stage of the embedded checkpoint is named .+",
    r"^\['h', 'e', 'l', 'l', 'o'\] gave None: it has a pair with a rank, and the place of a pair is expected$",
    r"gave .+: (the place of a pair is expected, a whole number|no pair stands at that place)$",
    r"^a header of 11 bytes in a file of 18 bytes does not fit$",
    r"^a header of 10 bytes in a file of 18 bytes fits$",
    r"^the bits 0x3f80 do not stand for ",
    r"^a model of 12 blocks, n_embd 768 has (more|fewer): count\(config\) gave ",
    r"^x = \[1, 1\] with the weight \[\[1, 2, 3\], \[4, 5, 6\]\] does not give \[1.0, 1.0, 1.0\]$",
    r"^rows add up to 1, but the shares are not the softmax of the scores$",
)
"""All that may be said of an odd answer, or of a function that returns one."""


@pytest.mark.parametrize("number", sorted(RIGHT))
def test_the_right_answer_is_right(number: str) -> None:
    assert repr(check(number, RIGHT[number])) == f"{number} right"


@pytest.mark.parametrize(("number", "answer", "said"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(number: str, answer: Any, said: str) -> None:
    verdict = check(number, answer)
    assert not verdict.right
    assert said in verdict.wrong
    if isinstance(RIGHT.get(number), int | str):
        assert f" {RIGHT[number]}" not in f" {verdict.wrong}"


def test_hints_of_the_first_exercise_are_true_of_every_stage() -> None:
    report = verify(prompts=["It is a truth universally acknowledged"], plant="qkv-order:2", tokens=0)
    assert [stage.name for stage in report.stages] == list(stages())
    for stage in report.stages:
        said = check("00.1", stage.name).wrong
        assert "still agrees" not in said or stage.verdict == "same"
        assert ("not the first that differs" in said) == (stages().index(stage.name) > stages().index(RIGHT["00.1"]))
    assert report.first_divergence == RIGHT["00.1"]


@pytest.mark.parametrize(("number", "answer"), ALSO_RIGHT)
def test_the_right_answer_may_come_in_other_types(number: str, answer: Any) -> None:
    assert repr(check(number, answer)) == f"{number} right"


def test_a_function_may_change_what_it_is_given() -> None:
    assert check("03.2", changes_its_arguments).right


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("number", EVERY)
def test_odd_answers_are_told_what_is_true_of_them(number: str, odd: str) -> None:
    for answer in (ODD[odd], lambda *_: ODD[odd]):
        verdict = check(number, answer)
        assert not verdict.right
        assert any(re.search(pattern, verdict.wrong, re.DOTALL) for pattern in TRUE_OF_ODD), verdict.wrong


def test_every_task_has_its_answer_here() -> None:
    assert set(EVERY) == set(RIGHT) | {f"05.{n}" for n in range(1, ENGINES + 1)}


@pytest.mark.parametrize("answer", [None, ...])
def test_no_answer_yet(answer: object) -> None:
    assert check("04.2", answer).wrong == "there is no answer yet"


def test_unknown_numbers_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no exercise named '04\.9'"):
        check("04.9", 1)
    with pytest.raises(UnknownNameError, match="no notebook with exercises named '99'"):
        check("99.1", 1)
    with pytest.raises(
        ArgumentTypeError, match=r"an exercise is named by a text \(expected such as '05\.2', got 5\.2\)"
    ):
        check(5.2, 1)  # type: ignore[arg-type]


def test_every_name_is_there() -> None:
    assert all(callable(getattr(labkit.exercises, name)) for name in labkit.exercises.__all__)


def test_the_zoo_tells_nothing_of_its_faults(tmp_path: Any) -> None:
    header = read_header(zoo_trace(3, tmp_path))
    assert header.metadata is not None
    fault = plantings()[2].partition(":")[0]
    assert fault not in json.dumps(dict(header.metadata))
    assert header.metadata["engine"] == "engine-03"


def test_the_zoo_makes_the_folder_and_refuses_what_is_no_engine(tmp_path: Path) -> None:
    assert zoo_trace(np.int64(2), str(tmp_path / "new" / "folder")).is_file()  # type: ignore[arg-type]
    for number in (0, 11):
        with pytest.raises(OutOfRangeError, match="a whole number from 1 to 10"):
            zoo_trace(number, tmp_path)
    for answer in ("3", 2.5, None):
        with pytest.raises(ArgumentTypeError, match="an engine is named by its number"):
            zoo_trace(answer, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="the traces need a folder"):
        zoo_trace(3, None)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(FileAccessError, match="the folder cannot be made"):
        zoo_trace(3, tmp_path / "file")


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
    assert check(f"05.{number}", [stage.upper(), f" {cause}"]).right
    assert "another cause" in check(f"05.{number}", (stage, other)).wrong
    assert "no cause is named" in check(f"05.{number}", (stage, "bad luck")).wrong
