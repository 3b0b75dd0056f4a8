"""Exercises of notebooks 00 and 05: which stage, which cause. The zoo is graded by running the diagnosis again."""

import tempfile
from functools import cache
from typing import Any

from labkit.checkpoint.config_file import read_config_fields
from labkit.config import parse_config
from labkit.exercises.answers import WrongAnswerError, as_name, shown
from labkit.exercises.task import Task
from labkit.exercises.zoo import ENGINES, zoo_trace
from labkit.load import embedded
from labkit.model.taps import tap_names
from labkit.verification.faults import FAULTS, parse_fault
from labkit.verification.hypotheses import HYPOTHESES
from labkit.verification.verify_trace import verify_trace

CAUSES = {hypothesis.name: hypothesis.name for hypothesis in HYPOTHESES} | {
    name: fault.expected_finding for name, fault in FAULTS.items()
}
"""Each name a cause may be given -> the name under which the diagnosis finds it."""


@cache
def stages() -> tuple[str, ...]:
    """The stages of the embedded checkpoint in order of computation."""
    return tap_names(parse_config(read_config_fields(embedded() / "config.json")))


def as_stage(value: Any) -> str:
    """The name of a stage, in whatever case it was written."""
    name = as_name(value, "the stage's name")
    if name not in stages():
        raise WrongAnswerError(
            f"no stage of the embedded checkpoint is named {shown(value)}; names are written as in 'h.0.ln_1'"
        )
    return name


def judge_stage(answer: Any) -> None:
    """The stage at which c_attn's columns in another order show first, in block 2."""
    fault, block = parse_fault("qkv-order:2")
    stage, right = as_stage(answer), fault.expected_stage(block)
    place, right_place = stages().index(stage), stages().index(right)
    if place < right_place:
        raise WrongAnswerError(f"{stage} still agrees: look later")
    if place > right_place:
        raise WrongAnswerError(f"{stage} is not the first that differs: look earlier")


@cache
def diagnosis(number: int) -> tuple[str, str | None]:
    """Where and what the diagnosis finds in one engine of the zoo."""
    with tempfile.TemporaryDirectory() as folder:
        finding = verify_trace(zoo_trace(number, folder)).findings[0]
    return finding.where, finding.cause


def zoo_task(number: int) -> Task:
    """The stage and the cause of the fault in one engine of the zoo."""

    def judge(answer: Any) -> None:
        if not (isinstance(answer, tuple | list) and len(answer) == 2):
            raise WrongAnswerError(f"a pair is asked for, the stage and the name of the cause, not {shown(answer)}")
        stage, cause = as_stage(answer[0]), as_name(answer[1], "the cause's name")
        if cause not in CAUSES:
            raise WrongAnswerError(f"no cause is named {shown(answer[1])}")
        where, what = diagnosis(number)
        if stage != where:
            raise WrongAnswerError(f"{stage} is not the first operation that is wrong by itself")
        if CAUSES[cause] != what:
            raise WrongAnswerError("the stage is right, but what the engine recorded there has another cause")

    return Task(question=f"Which operation is wrong in engine {number}, and how?", judge=judge)


TASKS: dict[str, Task] = {
    "00.1": Task(question="Where does qkv-order, planted in block 2, show first?", judge=judge_stage),
    **{f"05.{number}": zoo_task(number) for number in range(1, ENGINES + 1)},
}
