"""A snapshot folder -> ``Checkpoint``: strict both ways, checked in full before the first weight is touched.

In: a folder with model.safetensors or an index and its shards, and config.json. Out: every parameter as a tensor in
its stored dtype, and a report of the whole mapping.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from labkit.checkpoint.config_file import infer_config, read_config
from labkit.checkpoint.names import parse_name
from labkit.checkpoint.plan import Plan, Stored, plan_parameters
from labkit.checkpoint.records import Checkpoint, LoadReport, TensorRow, Use
from labkit.checkpoint.vocabulary import vocabulary_notes
from labkit.config import GPT2Config, config_notes, parse_config
from labkit.errors import CheckpointError, MissingFileError, UnknownNameError
from labkit.outside import path_of
from labkit.storage import Snapshot, open_snapshot

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "ckpt.pt", "model.ckpt")
"""Files that hold weights as pickled Python, which runs code while it is read."""

Mode = Literal["mapped", "owned"]
"""``mapped``: parameters are views of the file; ``owned``: each is copied into memory of its own."""


def read_checkpoint(
    folder: str | Path,
    *,
    mode: Mode = "mapped",
    config: GPT2Config | Mapping[str, Any] | str | Path | None = None,
    untie: bool = False,
    convert: Callable[[str, Tensor], Tensor] | None = None,
) -> Checkpoint:
    """Read a GPT-2 snapshot, every tensor used or named as left out, every parameter filled.

    ``config`` (a record, the fields of a config.json, or a file) is used in place of the folder's own. ``untie`` loads
    a stored head although the config ties it to wte. ``convert`` (parameter name, tensor -> tensor) is applied to each
    tensor as it is read, so that no more than one stands in memory twice.

    Raises ``MissingFileError``, ``ConfigError``, ``FormatError`` (of files) and ``CheckpointError`` (of the mapping).

    >>> from labkit.load import embedded
    >>> checkpoint = read_checkpoint(embedded())
    >>> checkpoint.parameters["wte.weight"].shape[0] == checkpoint.config.vocab_size
    True
    """
    path = path_of(folder, "folder")
    if mode not in ("mapped", "owned"):
        raise UnknownNameError.near("mode", mode, ("mapped", "owned"))
    _refuse_pickle_only(path)
    with open_snapshot(path, mode="mapped" if mode == "mapped" else "copy") as snapshot:
        stored = stored_tensors(snapshot)
        wanted, notes = choose_config(path, config, stored)
        plan = plan_parameters(stored, wanted, where=str(path), untie=untie)
        if plan.compare_head is not None:
            wte, head = plan.compare_head
            check_tied(snapshot[wte], snapshot[head], str(path))
        report = LoadReport(
            folder=str(path),
            mode=mode,
            rows=_rows(snapshot, plan),
            notes=(*snapshot.notes, *notes, *plan.notes, *vocabulary_notes(path, plan.config.vocab_size)),
        )
        parameters = {}
        for parameter, name in plan.sources.items():
            tensor = snapshot[name]
            parameters[parameter] = tensor if convert is None else convert(parameter, tensor)
    return Checkpoint(config=plan.config, parameters=parameters, report=report, folder=path)


def stored_tensors(snapshot: Snapshot) -> list[Stored]:
    """What the headers say of every tensor of the snapshot."""
    return [
        Stored(name=name, dtype=entry.dtype, shape=tuple(entry.shape), shard=shard.name)
        for name, (shard, entry) in snapshot.entries.items()
    ]


def _refuse_pickle_only(path: Path) -> None:
    if path.is_file() and path.suffix == ".safetensors":
        return
    if not path.is_dir():
        what = "a file, not a folder" if path.exists() else "no such folder"
        raise MissingFileError(what, where=path, fix="give the folder that holds config.json and model.safetensors")
    if any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists():
        return
    for name in PICKLES:
        if (path / name).exists():
            raise CheckpointError(
                "the weights are there only as a pickle, which runs code while it is read",
                where=path / name,
                fix=f"if you trust its source: labkit convert {path} NEW_FOLDER --allow-pickle",
            )


def choose_config(
    path: Path, given: GPT2Config | Mapping[str, Any] | str | Path | None, stored: list[Stored]
) -> tuple[GPT2Config, tuple[str, ...]]:
    """The given config, or the folder's, or one inferred from the tensors' shapes; and what to say about it."""
    if isinstance(given, GPT2Config):
        return given, ("the config was given by the caller",)
    if isinstance(given, Mapping):
        config = parse_config(given, where="the given config")
        return config, ("the config was given by the caller", *config_notes(given))
    dtypes = {each.dtype for each in stored if parse_name(each.name).kind == "parameter"}
    if given is not None:
        config, notes = read_config(path_of(given, "config"), dtypes)
        return config, (f"the config is {given}", *notes)
    beside = (path.parent if path.is_file() else path) / "config.json"
    if beside.exists():
        return read_config(beside, dtypes)
    return infer_config({each.name: each.shape for each in stored}, where=str(path))


def check_tied(wte: Tensor, head: Tensor, where: str) -> None:
    """Raise ``CheckpointError`` unless a stored head [vocab, n_embd] is wte bit for bit."""
    if wte.dtype == head.dtype and _same_values(wte, head):
        return
    if wte.dtype == head.dtype:
        rows = (wte != head).any(dim=1).nonzero()  # [rows that differ, 1]
        found = (
            f"{len(rows)} of {wte.shape[0]} rows differ, the first is row {int(rows[0])}"
            if len(rows)
            else "zeros' signs"
        )
    else:
        found = f"dtypes {wte.dtype} and {head.dtype}"
    raise CheckpointError(
        "tie_word_embeddings is true, but lm_head.weight and wte.weight are stored and differ",
        where=where,
        got=found,
        fix="if the flag is stale, untie=True loads the stored head; if the head is, remove lm_head.weight",
    )


def _same_values(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _rows(snapshot: Snapshot, plan: Plan) -> tuple[TensorRow, ...]:
    parameter_of = {name: parameter for parameter, name in plan.sources.items()}
    left = {each.name: each for each in plan.left_out}
    rows = []
    for name, (shard, entry) in snapshot.entries.items():
        begin, end = snapshot.headers[shard].span(name)
        parameter = parameter_of.get(name)
        use: Use = "parameter" if parameter else left[name].use
        reason = "" if parameter else left[name].reason
        rows.append(
            TensorRow(
                name=name,
                shard=shard.name,
                begin=begin,
                end=end,
                dtype=entry.dtype,
                shape=tuple(entry.shape),
                use=use,
                parameter=parameter,
                transposed=False,
                reason=reason,
            )
        )
    return tuple(rows)
