"""How many threads a decode step is worth."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from labkit.generation.prepared import prepare
from labkit.model import GPT2

ONE_THREAD_NBYTES = 32 * 2**20
"""Weights below this are read from the cache in less time than threads need to meet."""


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
