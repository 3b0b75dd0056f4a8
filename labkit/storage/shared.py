"""Which tensors share memory, so that a writer can refuse to write one value under two names unasked.

In: name -> torch tensor or NumPy array. Out: pairs of names whose elements overlap. Views that only interleave (the
columns of a packed matrix, say) share no element and are no pair.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

_MAX_WORK = 10_000  # NumPy's bound on solving whether two strided views meet; beyond it they count as shared


class _Extent(NamedTuple):
    device: str
    begin: int
    end: int
    name: str


def find_shared(tensors: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of names that share at least one element.

    >>> base = torch.arange(6)
    >>> list(find_shared({"a": base[:4], "b": base[3:], "c": base.clone()}))
    [('a', 'b')]
    """
    extents = sorted(extent for name, value in tensors.items() if (extent := _extent(name, value)) is not None)
    open_extents: list[_Extent] = []
    for extent in extents:
        open_extents = [other for other in open_extents if other.device == extent.device and other.end > extent.begin]
        for other in open_extents:
            if _meet(tensors[other.name], tensors[extent.name]):
                yield other.name, extent.name
        open_extents.append(extent)


def _extent(name: str, value: Any) -> _Extent | None:
    """The addresses from the first element's to the last's; None where there are none."""
    if isinstance(value, torch.Tensor) and value.numel():
        last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        begin = value.data_ptr()
        return _Extent(str(value.device), begin, begin + (last + 1) * value.element_size(), name)
    if isinstance(value, np.ndarray) and value.size:
        begin, end = np.lib.array_utils.byte_bounds(value)
        return _Extent("cpu", begin, end, name)
    return None


def _meet(first: Any, second: Any) -> bool:
    try:
        return bool(np.shares_memory(_as_array(first), _as_array(second), max_work=_MAX_WORK))  # type: ignore[arg-type]  # any bound is allowed
    except np.exceptions.TooHardError:
        return True
    except TypeError:  # not on the CPU
        return True


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    if value.device.type != "cpu":
        raise TypeError(value.device)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    return value.detach().resolve_conj().view(integer).numpy()
