"""Two files or snapshots -> how they differ, tensor by tensor, streaming: names, dtypes, shapes, then bytes and values.

In: two mappings that know where each tensor lies (``Snapshot``). Out: a ``SnapshotDiff`` with a return code. How tensors
are spread over shards does not matter, and a wrapper prefix such as ``transformer.`` is found and said.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from labkit.storage.dtypes import DTYPES
from labkit.storage.file import CHUNK_NBYTES, WHOLE_NBYTES
from labkit.storage.snapshot import Snapshot
from labkit.storage.widening import float64_values, unpack
from labkit.words import counted, every

if TYPE_CHECKING:
    from torch import Tensor

Verdict = Literal["same", "values", "dtype", "shape", "only in A", "only in B"]
_STEP = 8 * WHOLE_NBYTES  # elements that fill whole chunks in every dtype
_WRAPPERS = ("transformer.", "model.", "module.", "_orig_mod.", "base_model.model.")


@dataclass(frozen=True, kw_only=True)
class TensorDiff:
    """One name's verdict; sizes of the difference are None where values were not or could not be compared.

    ``ulp``: the most representable values that lie between two elements of one float dtype. ``differing`` counts elements.
    """

    name: str
    verdict: Verdict
    a: str
    b: str
    differing: int | None = None
    max_abs: float | None = None
    ulp: int | None = None
    worst: int | None = None


@dataclass(frozen=True)
class SnapshotDiff:
    """Every tensor's verdict, in A's order, then those only in B."""

    tensors: tuple[TensorDiff, ...]
    notes: tuple[str, ...]

    @property
    def return_code(self) -> int:
        """0 where every tensor is the same, else 1."""
        return 0 if all(tensor.verdict == "same" for tensor in self.tensors) else 1

    def __str__(self) -> str:
        differing = sum(tensor.verdict != "same" for tensor in self.tensors)
        total = len(self.tensors)
        if differing:
            return f"{differing} of {counted(total, 'tensor')} {'differs' if differing == 1 else 'differ'}"
        same = f"{every(total, 'tensor')} {'is' if total == 1 else 'are'} the same, bit for bit"
        return same if total else "neither holds a tensor"


def compare_snapshots(
    a: Snapshot,
    b: Snapshot,
    *,
    max_nbytes: int = CHUNK_NBYTES,
    progress: Callable[[str], None] | None = None,
) -> SnapshotDiff:
    """Compare every tensor of ``a`` with that of ``b``; at most a chunk of each is in memory."""
    prefix_a, prefix_b = common_names(a, b)
    notes = tuple(
        f"names of {side} are compared without the prefix {prefix!r}"
        for side, prefix in (("A", prefix_a), ("B", prefix_b))
        if prefix
    )
    stored_a = {name.removeprefix(prefix_a): name for name in a}
    stored_b = {name.removeprefix(prefix_b): name for name in b}
    found = []
    for name, stored in stored_a.items():
        if progress is not None:
            progress(name)
        if name in stored_b:
            found.append(_compare(name, a, stored, b, stored_b[name], max_nbytes))
        else:
            found.append(TensorDiff(name=name, verdict="only in A", a=_described(a, stored), b=""))
    for name, stored in stored_b.items():
        if name not in stored_a:
            found.append(TensorDiff(name=name, verdict="only in B", a="", b=_described(b, stored)))
    return SnapshotDiff(tuple(found), notes)


def common_names(a: Iterable[str], b: Iterable[str]) -> tuple[str, str]:
    """The prefixes to take off A's and B's names so that most of them meet; empty where none helps.

    >>> common_names(["transformer.wte.weight", "lm_head.weight"], ["wte.weight", "lm_head.weight"])
    ('transformer.', '')
    """
    names_a, names_b = set(a), set(b)

    def met(prefixes: tuple[str, str]) -> int:
        return len({n.removeprefix(prefixes[0]) for n in names_a} & {n.removeprefix(prefixes[1]) for n in names_b})

    choices = [("", "")]
    choices += [(prefix, "") for prefix in _prefixes(names_a)] + [("", prefix) for prefix in _prefixes(names_b)]
    return max(choices, key=met)  # the first of the best, so no prefix unless it helps


def _prefixes(names: set[str]) -> list[str]:
    """Wrappers that occur, and the dotted beginning that all names share."""
    first, last = min(names, default=""), max(names, default="")
    shared = 0
    while shared < len(first) and first[shared] == last[shared : shared + 1]:
        shared += 1
    own = first[: first.rfind(".", 0, shared) + 1]
    return [prefix for prefix in (*_WRAPPERS, own) if prefix and any(name.startswith(prefix) for name in names)]


def _described(snapshot: Snapshot, name: str) -> str:
    entry = snapshot.entries[name][1]
    return f"{entry.dtype} {list(entry.shape)}"


def _compare(name: str, a: Snapshot, name_a: str, b: Snapshot, name_b: str, max_nbytes: int) -> TensorDiff:
    entry_a, entry_b = a.entries[name_a][1], b.entries[name_b][1]
    described_a, described_b = _described(a, name_a), _described(b, name_b)
    if entry_a.shape != entry_b.shape:
        return TensorDiff(name=name, verdict="shape", a=described_a, b=described_b)
    same_dtype = entry_a.dtype == entry_b.dtype
    per_chunk = max(1, max_nbytes // (8 * _STEP)) * _STEP  # elements, so that both sides yield the same ones
    chunks_a = a.file_of(name_a).chunks(name_a, max_nbytes=per_chunk * DTYPES[entry_a.dtype].bits // 8)
    chunks_b = b.file_of(name_b).chunks(name_b, max_nbytes=per_chunk * DTYPES[entry_b.dtype].bits // 8)
    differing, max_abs, ulp, worst, first = 0, 0.0, 0, None, 0
    for raw_a, raw_b in zip(chunks_a, chunks_b, strict=True):
        values_a, values_b = float64_values(raw_a, entry_a.dtype), float64_values(raw_b, entry_b.dtype)  # [chunk] each
        if same_dtype and raw_a.equal(raw_b):
            first += values_a.numel()
            continue
        unequal = _unequal(raw_a, raw_b, entry_a.dtype) if same_dtype else _values_unequal(values_a, values_b)
        distance = (values_a - values_b).abs()  # [chunk]
        distance = torch.where(values_a == values_b, 0.0, distance).nan_to_num(nan=float("inf"))  # [chunk]
        differing += int(unequal.sum())
        largest = float(distance.max())
        if worst is None or largest > max_abs:
            worst = first + int(distance.argmax())
            max_abs = max(max_abs, largest)
        if same_dtype and DTYPES[entry_a.dtype].kind == "float":
            ulp = max(ulp, _largest_ulp(raw_a, raw_b, entry_a.dtype))
        first += values_a.numel()
    if same_dtype and differing == 0:
        return TensorDiff(name=name, verdict="same", a=described_a, b=described_b, differing=0, max_abs=0.0)
    has_ulp = same_dtype and DTYPES[entry_a.dtype].kind == "float"
    return TensorDiff(
        name=name,
        verdict="values" if same_dtype else "dtype",
        a=described_a,
        b=described_b,
        differing=differing,
        max_abs=max_abs,
        ulp=ulp if has_ulp else None,
        worst=worst if differing else None,
    )


def _values_unequal(a: "Tensor", b: "Tensor") -> "Tensor":
    return (a != b) & ~(a.isnan() & b.isnan())  # [chunk]


def _unequal(raw_a: "Tensor", raw_b: "Tensor", code: str) -> "Tensor":
    """Which elements differ in any bit."""
    if DTYPES[code].packed:
        bits = DTYPES[code].bits
        return unpack(raw_a, bits) != unpack(raw_b, bits)  # [chunk]
    width = DTYPES[code].bits // 8
    return (raw_a.reshape(-1, width) != raw_b.reshape(-1, width)).any(dim=1)  # [chunk]


def _largest_ulp(raw_a: "Tensor", raw_b: "Tensor", code: str) -> int:
    """The most steps from an element of A to that of B, walking through the dtype's values in order."""
    a, b = _ordered(raw_a, code), _ordered(raw_b, code)  # [chunk] each
    beyond = (
        a.double() - b.double()
    ).abs() >= 2.0**63  # two F64 of opposite signs can lie further apart than an I64 says
    return int(torch.where(beyond, 2**63 - 1, (a - b).abs()).max())


def _ordered(raw: "Tensor", code: str) -> "Tensor":
    """Each float's place in the order of its dtype's values: sign and magnitude become one signed number."""
    bits = DTYPES[code].bits
    if DTYPES[code].packed:
        number = unpack(raw, bits).long()  # [chunk]
    else:
        signed = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
        number = raw.clone().view(signed).long()  # [chunk]
        number = number & (2**bits - 1) if bits < 64 else number
    if code == "F8_E8M0":
        return number
    sign = (number >> (bits - 1)) & 1  # [chunk]
    magnitude = number & (2 ** (bits - 1) - 1)  # [chunk]
    return torch.where(sign == 1, -magnitude, magnitude)
