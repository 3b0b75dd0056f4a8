"""A trace file: the taps of any engine's forward pass, in one safetensors file with its metadata.

In: a path. Out: a ``Trace``, a mapping from name to tensor that reads each tensor when it is asked for, with parsed
metadata; ``write_trace`` is the way back. Every breach of the contract is a ``TraceError`` that says what to write.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from labkit.config import GPT2Config, parse_config
from labkit.errors import ConfigError, TraceError
from labkit.outside import NotJson, parse_json
from labkit.storage import Entry, SafetensorsFile, open_safetensors, save_safetensors
from labkit.storage.file import Mode
from labkit.verification.chain import Inputs
from labkit.verification.precision import DTYPES, Precision, dtype_name, dtype_named
from labkit.verification.trace_names import IDS, INPUT_NAMES, MASK, POSITIONS, ordered_taps, split_step, step_prefix
from labkit.words import counted

FORMAT = "labkit-trace"
VERSION = "1"

WHAT_TO_WRITE = {
    "format": f"write {FORMAT!r}",
    "version": f"write {VERSION!r}",
    "engine": "write your engine's name, such as 'my-engine 0.3'",
    "model_type": "write 'gpt2'",
    "config": "write the text of the checkpoint's config.json",
    "compute_dtype": f"write the dtype of your arithmetic: one of {', '.join(DTYPES)}",
    "accumulate_dtype": f"write the dtype that your sums are kept in: one of {', '.join(DTYPES)}",
    "weight_dtype": f"write the dtype that your weights are held in: one of {', '.join(DTYPES)}",
    "device": "write where it ran, such as 'cpu'",
}
"""Every key that a trace's metadata must have, and what belongs there."""

STORE = "store I64"
_DTYPE_KEYS = ("compute_dtype", "accumulate_dtype", "weight_dtype")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceMetadata:
    """What an engine says of itself and of the checkpoint it ran."""

    engine: str
    config: GPT2Config
    precision: Precision = dataclasses.field(default_factory=Precision)
    device: str = "cpu"
    weights_sha256: str | None = None

    def fields(self) -> dict[str, str]:
        """As the strings of ``__metadata__``."""
        precision = (self.precision.compute, self.precision.accumulate, self.precision.weight)
        fields = {
            "format": FORMAT,
            "version": VERSION,
            "engine": self.engine,
            "model_type": "gpt2",
            "config": json.dumps({"model_type": "gpt2", **dataclasses.asdict(self.config)}),
            **{key: dtype_name(dtype) for key, dtype in zip(_DTYPE_KEYS, precision, strict=True)},
            "device": self.device,
        }
        return fields if self.weights_sha256 is None else {**fields, "weights_sha256": self.weights_sha256}


def metadata_problems(fields: Mapping[str, str], *, where: object = None) -> tuple[TraceError, ...]:
    """Everything that is wrong with ``__metadata__``; empty where it can be parsed.

    >>> [problem.what for problem in metadata_problems({"format": "labkit-trace", "version": "2"})][:3]
    ["metadata key 'version' has a value that labkit does not know", "metadata key 'engine' is missing",
     "metadata key 'model_type' is missing"]
    """
    return tuple(problem for key in WHAT_TO_WRITE for problem in _problems_of(key, fields, where))


def _problems_of(key: str, fields: Mapping[str, str], where: object) -> Iterator[TraceError]:
    value, known = fields.get(key), {"format": FORMAT, "version": VERSION, "model_type": "gpt2"}
    unknown = f"metadata key {key!r} has a value that labkit does not know"
    if value is None:
        yield TraceError(f"metadata key {key!r} is missing", where=where, fix=WHAT_TO_WRITE[key])
    elif key in known and value != known[key]:
        yield TraceError(unknown, where=where, expected=repr(known[key]), got=repr(value), fix=WHAT_TO_WRITE[key])
    elif key in _DTYPE_KEYS and value not in DTYPES:
        yield TraceError(unknown, where=where, got=repr(value), fix=WHAT_TO_WRITE[key])
    elif key == "config":
        yield from _config_problems(value, where)


def _config_problems(text: str, where: object) -> Iterator[TraceError]:
    what = "metadata key 'config' cannot be used"
    try:
        parsed = parse_json(text)
    except NotJson as error:
        yield TraceError(what, where=where, got=f"not JSON: {error}", fix=WHAT_TO_WRITE["config"])
        return
    if not isinstance(parsed, dict):
        yield TraceError(what, where=where, expected="a JSON object", got=type(parsed).__name__)
        return
    try:
        parse_config(parsed)
    except ConfigError as error:
        yield TraceError(what, where=where, got=str(error), fix=WHAT_TO_WRITE["config"])


def parse_metadata(fields: Mapping[str, str], *, where: object = None) -> TraceMetadata:
    """The parsed metadata; raises the first of its ``metadata_problems``."""
    for problem in metadata_problems(fields, where=where):
        raise problem
    compute, accumulate, weight = (dtype_named(fields[key], where=where) for key in _DTYPE_KEYS)
    return TraceMetadata(
        engine=fields["engine"],
        config=parse_config(parse_json(fields["config"])),
        precision=Precision(compute=compute, accumulate=accumulate, weight=weight),
        device=fields["device"],
        weights_sha256=fields.get("weights_sha256"),
    )


def open_trace(path: str | os.PathLike[str], *, mode: Mode = "mapped") -> "Trace":
    """Open a trace; raises ``TraceError`` for its metadata, and what ``open_safetensors`` raises for the file itself.

    >>> import tempfile, torch; path = Path(tempfile.mkdtemp()) / "one.safetensors"
    >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=8, n_positions=8)
    >>> taps = {"input_ids": torch.tensor([[1, 2]]), "embed": torch.ones(1, 2, 4)}
    >>> write_trace(path, taps, TraceMetadata(engine="mine", config=config))
    >>> with open_trace(path) as trace:
    ...     list(trace), trace.metadata.engine, list(trace["embed"].shape)
    (['input_ids', 'embed'], 'mine', [1, 2, 4])
    """
    file = open_safetensors(path, mode=mode)
    try:
        return Trace(file, parse_metadata(file.metadata, where=f"{path}, __metadata__"))
    except BaseException:
        file.close()
        raise


class Trace(Mapping[str, Tensor]):
    """Name -> tensor, in order of computation, read when it is asked for; a context manager. Tensors outlive it."""

    def __init__(self, file: SafetensorsFile, metadata: TraceMetadata) -> None:
        self.file = file
        self.metadata = metadata
        order = {name: place for place, name in enumerate((*INPUT_NAMES, *ordered_taps(metadata.config)))}

        def place(name: str) -> tuple[int, int, str]:
            step, tap = split_step(name)
            return (-1 if step is None else step, order.get(tap, len(order)), name)

        self._names = tuple(sorted(file, key=place))

    @property
    def path(self) -> Path:
        """The path as it was given."""
        return self.file.path

    @property
    def config(self) -> GPT2Config:
        """The config that the engine says it ran."""
        return self.metadata.config

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The forward passes in order: None for the prompt's own, then the decode steps' numbers."""
        return tuple(dict.fromkeys(split_step(name)[0] for name in self._names))

    def entry(self, name: str) -> Entry:
        """A tensor's dtype code, shape and place; nothing is read."""
        return self.file.header.entry(name)

    def inputs(self, step: int | None = None) -> Inputs:
        """What one forward pass was given, checked; raises ``TraceError``."""
        prefix = step_prefix(step)
        if prefix + IDS not in self:
            raise TraceError(
                f"tensor {prefix + IDS!r} is missing", where=self.path, fix="write the token ids, I64 [batch, pos]"
            )
        ids = self._whole(prefix + IDS)  # [batch, pos]
        if ids.dim() != 2 or ids.numel() == 0:
            raise TraceError(
                "not a batch of prompts",
                where=f"{self.path}, {prefix + IDS}",
                expected="[batch, pos], each at least 1",
                got=list(ids.shape),
                fix="write a batch of one, [1, pos], and every tap with its batch axis" if ids.dim() == 1 else None,
            )
        size = self.config.vocab_size
        if int(ids.min()) < 0 or int(ids.max()) >= size:
            bad = ids[(ids < 0) | (ids >= size)][0]
            raise TraceError(
                "a token id is beyond the vocabulary",
                where=f"{self.path}, {prefix + IDS}",
                expected=f"0 to {size - 1}",
                got=int(bad),
            )
        return Inputs(ids, self._optional(prefix + MASK), self._optional(prefix + POSITIONS))

    def _optional(self, name: str) -> Tensor | None:
        return self._whole(name) if name in self else None

    def _whole(self, name: str) -> Tensor:
        code, tensor = self.entry(name).dtype, self[name]
        where = f"{self.path}, {name}"
        if tensor.is_floating_point() or tensor.is_complex() or (code == "BOOL" and not name.endswith(MASK)):
            raise TraceError("not whole numbers", where=where, expected="I64", got=code, fix=STORE)
        whole = tensor.long()
        if code == "U64" and bool((whole < 0).any()):
            raise TraceError(
                "a number that I64 does not hold", where=where, got=int(whole[whole < 0][0]) + 2**64, fix=STORE
            )
        return whole

    def other_inputs(self) -> dict[str, str]:
        """Inputs that are stored in another dtype than I64, and what to say of each."""
        stored = {name: self.entry(name).dtype for name in self if split_step(name)[1] in INPUT_NAMES}
        return {name: f"stored as {code}, where the contract has I64" for name, code in stored.items() if code != "I64"}

    def __getitem__(self, name: str) -> Tensor:
        return self.file[name]

    def __contains__(self, name: object) -> bool:
        return name in self.file

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Trace({str(self.path)!r}, {counted(len(self), 'tensor')} from {self.metadata.engine!r})"

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def __enter__(self) -> "Trace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_trace(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: TraceMetadata) -> None:
    """Write a trace, atomically; ``tensors`` holds ``input_ids`` and any taps under their names.

    Raises ``TraceError`` where the ids are not there, and what ``save_safetensors`` raises.
    """
    if not any(split_step(name)[1] == IDS for name in tensors):
        raise TraceError(f"tensor {IDS!r} is missing", where=path, fix="add the token ids, I64 [batch, pos]")
    values: dict[str, Any] = dict(tensors)
    save_safetensors(values, path, metadata=metadata.fields(), shared="copy")
