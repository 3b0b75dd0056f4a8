"""What someone typed -> what a judge can read, or ``WrongAnswerError``, which says what was asked for and what came instead.

Numbers may be Python's, NumPy's or torch's. Answers that are functions are called here, so that what they raise is
never taken for a fault of the checker, nor the other way round.
"""

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

SHOWN_CHARACTERS = 60
"""How much of a value is shown."""


class WrongAnswerError(Exception):
    """An answer is not right; the message says what is wrong with it."""


def as_number(value: Any, what: str) -> int | float:
    """A number that is no truth value and no NaN; ``what`` names it in the message.

    >>> import numpy
    >>> as_number(numpy.float32(0.5), "the answer")
    0.5
    >>> as_number("five", "the answer")
    Traceback (most recent call last):
    labkit.exercises.answers.WrongAnswerError: the answer should be a number, not 'five'
    """
    plain = _plain(value)
    number = isinstance(plain, int | float) and not isinstance(plain, bool)
    if not number or (isinstance(plain, float) and math.isnan(plain)):
        raise WrongAnswerError(f"{what} should be a number, not {shown(value)}")
    return plain  # type: ignore[no-any-return]


def as_flag(value: Any, what: str) -> bool:
    """True or False, or the 1 or 0 that stands for it.

    >>> as_flag(1, "the answer")
    True
    """
    plain = _plain(value)
    if not isinstance(plain, int) or plain not in (0, 1):
        raise WrongAnswerError(f"{what} should be True or False, not {shown(value)}")
    return bool(plain)


def as_tensor(value: Any, what: str, *, shape: list[int]) -> "Tensor":
    """The real numbers of a tensor, an array or nested lists, in float64 on the CPU.

    >>> as_tensor([1, 2], "f(x)", shape=[2])
    tensor([1., 2.], dtype=torch.float64)
    """
    import torch

    try:
        given = torch.as_tensor(
            value.copy() if isinstance(value, np.ndarray) else value
        )  # torch warns of read-only ones
        tensor = None if given.is_complex() else given.detach().to_dense().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        tensor = None
    if tensor is None:
        raise WrongAnswerError(f"{what} should be a tensor of real numbers, not {shown(value)}")
    if list(tensor.shape) != shape:
        raise WrongAnswerError(f"{what} should have shape {shape}, not {list(tensor.shape)}")
    if bool(tensor.isnan().any()):
        raise WrongAnswerError(f"{what} holds NaN")
    return tensor


def as_function(value: Any) -> Callable[..., Any]:
    """The answer as a function that works on copies of its arguments; what it raises becomes ``WrongAnswerError``.

    >>> as_function(lambda x: x + 1)(2)
    3
    """
    if not callable(value):
        raise WrongAnswerError(f"a function is asked for, not {shown(value)}")
    function: Callable[..., Any] = value

    def call(*arguments: Any) -> Any:
        copies = copy.deepcopy(arguments)
        try:
            return function(*copies)
        except Exception as error:
            raise WrongAnswerError(f"the answer raised {type(error).__name__}: {error}") from error

    return call


def as_name(value: Any, what: str) -> str:
    """A name in lower case without white space; all names here are so.

    >>> as_name(" H.2.attn.Q ", "the answer")
    'h.2.attn.q'
    """
    if not isinstance(value, str):
        raise WrongAnswerError(f"{what} should be a text, not {shown(value)}")
    return "".join(value.split()).lower()


def shown(value: Any) -> str:
    """A value in a few words, whatever it is.

    >>> import torch
    >>> shown(torch.ones(2, 3)), shown([1, 2]), shown(None)
    ('Tensor of shape [2, 3]', '[1, 2]', 'None')
    """
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    if isinstance(shape, tuple) and shape:
        return f"{kind} of shape {list(shape)}"
    try:
        text = repr(value)
    except Exception:
        return f"something of type {kind}"
    readable = len(text) <= SHOWN_CHARACTERS and "\n" not in text and " at 0x" not in text
    return text if readable else f"something of type {kind}"


def _plain(value: Any) -> Any:
    """The Python value of a NumPy or torch scalar; anything else as it is."""
    if getattr(value, "shape", None) != () or not callable(getattr(value, "item", None)):
        return value
    try:
        return value.item()
    except (TypeError, ValueError, RuntimeError):
        return value
