"""Parameters -> a snapshot folder that transformers loads, or one in nn.Linear's layout for ports; whole or not at all.

The folder is written beside its place under a temporary name, checked there, and renamed when everything holds.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from labkit.atomic import appearing
from labkit.checkpoint.config_file import read_config_fields
from labkit.checkpoint.foreign import read_named
from labkit.checkpoint.layouts import CONV1D, MAPS
from labkit.checkpoint.read import read_checkpoint
from labkit.config import ALIASES, GPT2Config, parameter_shapes
from labkit.errors import CheckpointError, FileAccessError
from labkit.storage import save_safetensors
from labkit.words import counted

Layout = Literal["hf", "linear"]
"""``hf``: what transformers writes and loads; ``linear``: the same names with nn.Linear matrices, [out, in]."""

COMPANIONS = (
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Files that are copied as they are where the source has them."""

Check = Callable[[Path], tuple[str, ...]]
"""A check of the folder before it appears under its name: raises what is wrong, returns what it found right."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written."""

    folder: Path
    files: tuple[str, ...]
    numel: int
    nbytes: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.folder}: {self.numel:,} parameters, {self.nbytes:,} bytes in {counted(len(self.files), 'file')}"
        return "\n".join([head, *(f"  {note}" for note in self.notes)])


def save_snapshot(
    config: GPT2Config,
    parameters: Mapping[str, Tensor],
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    shard_nbytes: int | None = None,
    layout: Layout = "hf",
    companions: str | Path | None = None,
    check: Check | None = None,
) -> Export:
    """Write ``parameters`` (Conv1D weights [in, out]) as a snapshot; ``dtype`` None keeps each tensor's own.

    ``shard_nbytes`` splits the tensors over shards with an index. ``companions`` is a folder whose tokenizer files,
    generation_config.json and further config fields are taken over. The written folder is read back and compared bit
    for bit, then handed to ``check``, before it takes its name.

    Raises ``ArgumentError`` where the folder exists or an option cannot be honoured, ``CheckpointError`` where a value
    does not fit the dtype or the copy differs, ``FileAccessError`` where writing fails. The folder then does not appear.
    """
    target = Path(folder)
    if set(parameters) != set(parameter_shapes(config)):
        differ = sorted(set(parameters) ^ set(parameter_shapes(config)))
        raise CheckpointError("the parameters are not those of the config", got=", ".join(differ[:4]))
    source = None if companions is None else Path(companions)
    with appearing(target) as draft:
        notes = [*_write_weights(draft, parameters, dtype, shard_nbytes, layout)]
        _write_config(draft, config, parameters, dtype, source)
        notes += _copy_companions(draft, source)
        notes += _compare(draft, config, parameters, dtype, layout)
        notes += check(draft) if check is not None else ()
    files = sorted(target.iterdir())
    return Export(
        folder=target,
        files=tuple(each.name for each in files),
        numel=sum(each.numel() for each in parameters.values()),
        nbytes=sum(each.stat().st_size for each in files),
        notes=tuple(notes),
    )


def cast(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The tensor in the dtype to write; raises ``CheckpointError`` where a finite value would turn infinite.

    >>> cast("ln_f.bias", torch.tensor([7e4]), torch.float16)
    Traceback (most recent call last):
    labkit.errors.CheckpointError: ln_f.bias: 1 of 1 values are beyond float16 (expected at most 65504.0, got 70000.0); ...
    """
    if dtype is None or tensor.dtype == dtype:
        return tensor
    written = tensor.to(dtype)
    lost = tensor.isfinite() & ~written.isfinite()
    if bool(lost.any()):
        raise CheckpointError(
            f"{int(lost.sum())} of {tensor.numel()} values are beyond {str(dtype).removeprefix('torch.')}",
            where=name,
            expected=f"at most {torch.finfo(dtype).max}",
            got=float(tensor[lost].abs().max()),
            fix="write bf16 or f32",
        )
    return written


def shards_of(nbytes: Mapping[str, int], limit: int | None) -> list[list[str]]:
    """Names in order, as many to a shard as stay within ``limit`` bytes; a larger tensor has a shard of its own.

    >>> shards_of({"a": 4, "b": 4, "c": 9, "d": 1}, 8)
    [['a', 'b'], ['c'], ['d']]
    """
    shards: list[list[str]] = [[]]
    used = 0
    for name, size in nbytes.items():
        if limit is not None and shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def _written(parameters: Mapping[str, Tensor], dtype: torch.dtype | None, layout: Layout, name: str) -> Tensor:
    tensor = cast(name, parameters[name], dtype)
    return tensor.t() if layout == "linear" and name.endswith(CONV1D) else tensor


def _file_name(parameter: str) -> str:
    return parameter if parameter == "lm_head.weight" else f"transformer.{parameter}"


def _write_weights(
    draft: Path, parameters: Mapping[str, Tensor], dtype: torch.dtype | None, limit: int | None, layout: Layout
) -> Iterator[str]:
    width = {name: (dtype or each.dtype).itemsize * each.numel() for name, each in parameters.items()}
    shards = shards_of(width, limit)
    metadata = {"format": "pt"} if layout == "hf" else {"format": "pt", "layout": "linear"}
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {_file_name(name): _written(parameters, dtype, layout, name) for name in names}
        save_safetensors(tensors, draft / file, metadata=metadata, shared="copy")
        weight_map |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        total = {
            "total_parameters": sum(each.numel() for each in parameters.values()),
            "total_size": sum(width.values()),
        }
        index = {"metadata": total, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(draft / "model.safetensors.index.json", index)
        yield f"{counted(len(shards), 'shard')} with an index"


def _write_config(
    draft: Path,
    config: GPT2Config,
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    source: Path | None,
) -> None:
    fields: dict[str, Any] = {}
    if source is not None and (source / "config.json").is_file():
        fields = read_config_fields(source / "config.json")
    if not fields and config.vocab_size != GPT2Config.vocab_size:
        fields = {"bos_token_id": None, "eos_token_id": None}  # transformers' default is GPT-2's own 50256
    for stale in (*ALIASES, "torch_dtype"):
        fields.pop(stale, None)
    written = dtype or parameters["wte.weight"].dtype
    fields |= asdict(config)
    fields |= {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "dtype": str(written).removeprefix("torch.")}
    _write_json(draft / "config.json", fields)


def _copy_companions(draft: Path, source: Path | None) -> Iterator[str]:
    copied = []
    for name in COMPANIONS if source is not None else ():
        assert source is not None
        if (source / name).is_file():
            (draft / name).write_bytes(_read(source / name))
            copied.append(name)
    yield f"copied as they are: {', '.join(copied)}" if copied else "no tokenizer files were beside the weights"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileAccessError(f"cannot read: {error.strerror}", where=path) from error


def _compare(
    draft: Path, config: GPT2Config, parameters: Mapping[str, Tensor], dtype: torch.dtype | None, layout: Layout
) -> Iterator[str]:
    """Read the draft back by the road a user takes, and hold every parameter to what was to be written."""
    again = read_checkpoint(draft) if layout == "hf" else read_named(draft, MAPS["linear"])
    if again.config != config:
        raise CheckpointError("the config reads back otherwise", where=draft, expected=config, got=again.config)
    changed = 0
    for name, tensor in parameters.items():
        wanted = cast(name, tensor, dtype)
        if not _same_bits(again.parameters[name], wanted):
            raise CheckpointError("the tensor reads back otherwise", where=f"{draft}, {name}", fix="check the disk")
        changed += 0 if wanted is tensor else int((wanted.to(tensor.dtype) != tensor).sum())
    numel = sum(each.numel() for each in parameters.values())
    yield f"read back: all {numel:,} values bit for bit as written"
    if changed:
        yield f"{changed:,} of {numel:,} values were rounded to {str(dtype).removeprefix('torch.')}"


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(whole), b.cpu().contiguous().view(whole))


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
