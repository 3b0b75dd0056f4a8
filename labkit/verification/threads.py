"""One torch thread where the work is too small to share: waking a second costs more than it saves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from labkit.config import GPT2Config, parameter_shapes

SMALL = 20_000_000
"""Parameters up to which one thread is at least as fast; on a busy machine many times faster."""


@contextmanager
def threads_for(config: GPT2Config) -> Iterator[None]:
    """Torch's threads set for a model of this size while this lasts, and then as they were."""
    size = sum(torch.Size(shape).numel() for shape in parameter_shapes(config).values())
    before = torch.get_num_threads()
    torch.set_num_threads(1 if size <= SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
