"""How many threads a decode step is worth."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from labkit.errors import ArgumentError
from labkit.generation.prepared import prepare
from labkit.model import GPT2

ONE_THREAD_NBYTES = 32 * 2**20
"""Weights below this are read from the cache in less time than threads need to meet."""


MOST_PER_CORE = 4
"""Threads beyond this for each core of the machine only wait for each other; torch fails where the system has no more."""


def check_threads(count: int) -> None:
    """Raise ``ArgumentError`` for a number of threads that this machine has no use for."""
    most = MOST_PER_CORE * (os.cpu_count() or 1)
    if not 1 <= count <= most:
        raise ArgumentError("out of range", where="threads", expected=f"1 to {most}, {MOST_PER_CORE} a core", got=count)


def sensible_threads(model: GPT2) -> int:
    """One thread for a model that a processor's cache holds, else as many as torch has now."""
    return 1 if prepare(model).nbytes_per_token < ONE_THREAD_NBYTES else torch.get_num_threads()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many torch threads inside, as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
