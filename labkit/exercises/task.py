"""number, answer -> ``Verdict``: which task, whether it is right, and if not, what is wrong."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import ArgumentTypeError, UnknownNameError
from labkit.exercises.answers import WrongAnswerError, as_number

ROOMS = {
    "00": "labkit.exercises.engine_tasks",
    "01": "labkit.exercises.byte_tasks",
    "02": "labkit.exercises.byte_tasks",
    "03": "labkit.exercises.model_tasks",
    "04": "labkit.exercises.token_tasks",
    "05": "labkit.exercises.engine_tasks",
    "07": "labkit.exercises.token_tasks",
    "08": "labkit.exercises.model_tasks",
    "10": "labkit.exercises.model_tasks",
}
"""Where the tasks of each notebook are."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One exercise: what is asked, and the judge, which raises ``WrongAnswerError`` for an answer that is not right."""

    question: str
    judge: Callable[[Any], None]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the checker says."""

    number: str
    wrong: str

    @property
    def right(self) -> bool:
        """Whether the answer is right."""
        return not self.wrong

    def __repr__(self) -> str:
        return f"{self.number} right" if self.right else f"{self.number} not yet: {self.wrong}"


def check(number: str, answer: Any) -> Verdict:
    """Judge an answer to the exercise ``number``; an answer that is a function is called, and may fail.

    >>> check("04.2", "Ġ")
    04.2 right

    Raises UnknownNameError for an exercise that is not there, ArgumentTypeError for a number that is no text.
    """
    if not isinstance(number, str):
        raise ArgumentTypeError("an exercise is named by a text", expected="such as '05.2'", got=repr(number))
    tasks = tasks_of(number.partition(".")[0])
    if number not in tasks:
        raise UnknownNameError.near("exercise", number, tasks)
    if answer is None or answer is ...:
        return Verdict(number=number, wrong="there is no answer yet")
    try:
        tasks[number].judge(answer)
    except WrongAnswerError as wrong:
        return Verdict(number=number, wrong=str(wrong))
    except Exception as error:
        return Verdict(number=number, wrong=f"the checker cannot read this answer ({type(error).__name__}: {error})")
    return Verdict(number=number, wrong="")


def tasks_of(notebook: str) -> dict[str, Task]:
    """The tasks of one notebook, by number."""
    if notebook not in ROOMS:
        raise UnknownNameError.near("notebook with exercises", notebook, ROOMS)
    every: Mapping[str, Task] = importlib.import_module(ROOMS[notebook]).TASKS
    return {number: task for number, task in every.items() if number.startswith(f"{notebook}.")}


def number_task(question: str, right: float, hints: Mapping[float, str] | None = None) -> Task:
    """A task whose answer is one number; ``hints`` say what a likely wrong number comes from.

    >>> number_task("two and two", 4, {5: "count again"}).judge(5)
    Traceback (most recent call last):
    labkit.exercises.answers.WrongAnswerError: count again
    """

    def judge(answer: Any) -> None:
        number = as_number(answer, "the answer")
        if hints and number in hints:
            raise WrongAnswerError(hints[number])
        if number != right:
            raise WrongAnswerError("too large" if number > right else "too small")

    return Task(question=question, judge=judge)
