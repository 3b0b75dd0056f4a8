"""Exercises of notebooks 00 and 05: which stage, which cause. The zoo is graded by running the diagnosis again."""

import tempfile
from functools import cache
from typing import Any

from labkit.exercises.task import Task
from labkit.exercises.zoo import ENGINES, zoo_trace
from labkit.verification.faults import parse_fault
from labkit.verification.hypotheses import HYPOTHESES
from labkit.verification.verify_trace import verify_trace


def judge_stage(answer: Any) -> str:
    """The stage at which c_attn's columns in another order show first, in block 2."""
    fault, block = parse_fault("qkv-order:2")
    right = fault.expected_stage(block)
    if not isinstance(answer, str):
        return "the name of a stage is asked for, such as 'h.0.ln_1'"
    if answer == right:
        return ""
    if not answer.startswith("h.2."):
        return "the fault is in block 2"
    return (
        "attention's output is wrong too, but what goes into it is wrong already"
        if "attn" in answer
        else "look earlier"
    )


@cache
def diagnosis(number: int) -> tuple[str, str | None]:
    """Where and what the diagnosis finds in one engine of the zoo."""
    with tempfile.TemporaryDirectory() as folder:
        finding = verify_trace(zoo_trace(number, folder)).findings[0]
    return finding.where, finding.cause


def zoo_task(number: int) -> Task:
    """The stage and the cause of the fault in one engine of the zoo."""

    def judge(answer: Any) -> str:
        if not (isinstance(answer, tuple) and len(answer) == 2):
            return "a pair is asked for: the stage, and the name of the cause"
        stage, cause = answer
        known = {hypothesis.name for hypothesis in HYPOTHESES}
        where, what = diagnosis(number)
        if stage != where:
            return f"{stage} is not the first operation that is wrong by itself"
        if cause not in known:
            return f"no cause is named {cause!r}"
        return (
            ""
            if cause == what
            else "the stage is right; replaying that cause does not reproduce what the engine recorded"
        )

    return Task(question=f"Which operation is wrong in engine {number}, and how?", judge=judge)


TASKS: dict[str, Task] = {
    "00.1": Task(question="Where does qkv-order, planted in block 2, show first?", judge=judge_stage),
    **{f"05.{number}": zoo_task(number) for number in range(1, ENGINES + 1)},
}
