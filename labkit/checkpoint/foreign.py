"""Weights as other code bases keep them -> ``Checkpoint``: pickles (on request only) and nn.Linear state dicts.

In: a folder, a safetensors file or a pickle. Out: the same record that ``read_checkpoint`` gives, Conv1D weights [in, out].
Pickles are read with ``torch.load(weights_only=True)``, which builds tensors and plain containers and runs no code.
"""

import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.checkpoint.config_file import read_config_fields
from labkit.checkpoint.layouts import CONV1D, NameMap, check_names, infer_sizes
from labkit.checkpoint.names import unwrap
from labkit.checkpoint.plan import WEIGHT_DTYPES, Stored, plan_parameters
from labkit.checkpoint.read import PICKLES, check_tied, choose_config
from labkit.checkpoint.records import Checkpoint, LoadReport, TensorRow, Use
from labkit.config import parameter_shapes, parse_config
from labkit.errors import CheckpointError, ConfigError, FileAccessError, MissingFileError
from labkit.storage import open_snapshot

_NESTED = ("model", "state_dict", "model_state_dict")
"""Keys under which training scripts keep the state dict."""
_SIZES = {"block_size": "n_positions", "n_head": "n_head", "n_layer": "n_layer", "n_embd": "n_embd"}
"""nanoGPT's names of sizes, as its checkpoints keep them in ``model_args``."""
_CODES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}


@dataclass(frozen=True, kw_only=True)
class StateDict:
    """Named tensors, the file they came from, and the sizes a training script kept beside them."""

    where: str
    file: str
    tensors: Mapping[str, Tensor]
    sizes: Mapping[str, Any]  # nanoGPT's model_args, else empty


def read_state_dict(source: str | Path, *, allow_pickle: bool = False) -> StateDict:
    """The tensors of ``source``, under the names it has; a pickle is opened only where that is allowed.

    Raises ``CheckpointError`` for a pickle that is not allowed or holds more than tensors and plain values.
    """
    path = Path(source)
    pickled = _pickle_of(path)
    if pickled is None:
        with open_snapshot(path) as snapshot:
            return StateDict(where=str(path), file=path.name, tensors=dict(snapshot), sizes={})
    if not allow_pickle:
        raise CheckpointError(
            "the weights are there only as a pickle, which runs code while it is read",
            where=pickled,
            fix="if you trust its source, allow it: --allow-pickle reads tensors and plain values only",
        )
    if pickled.suffix == ".json":
        return _read_pickled_shards(pickled)
    found = _unpickle(pickled)
    arguments = found.get("model_args", {})
    return StateDict(
        where=str(path),
        file=pickled.name,
        tensors=_tensors(found, pickled),
        sizes=arguments if isinstance(arguments, dict) else {},
    )


def read_pickled(source: str | Path, *, config: Mapping[str, Any] | None = None, untie: bool = False) -> Checkpoint:
    """A pickle with GPT-2's own names and Conv1D layout (``pytorch_model.bin``), mapped as strictly as a snapshot."""
    state = read_state_dict(source, allow_pickle=True)
    stored = [
        Stored(name=name, dtype=_code(tensor), shape=tuple(tensor.shape), shard=state.file)
        for name, tensor in state.tensors.items()
    ]
    wanted, notes = choose_config(_folder(Path(source)), config, stored)
    plan = plan_parameters(stored, wanted, where=state.where, untie=untie)
    if plan.compare_head is not None:
        wte, head = plan.compare_head
        check_tied(state.tensors[wte], state.tensors[head], state.where)
    left = {each.name: each for each in plan.left_out}
    parameter_of = {name: parameter for parameter, name in plan.sources.items()}
    rows = tuple(
        _row(
            each,
            parameter_of.get(each.name),
            use=left[each.name].use if each.name in left else "parameter",
            reason=left[each.name].reason if each.name in left else "",
        )
        for each in stored
    )
    return Checkpoint(
        config=plan.config,
        parameters={parameter: state.tensors[name] for parameter, name in plan.sources.items()},
        report=LoadReport(
            folder=state.where,
            mode="owned",
            rows=rows,
            notes=(*notes, *plan.notes, f"read from the pickle {state.file}, tensors and plain values only"),
        ),
        folder=_folder(Path(source)),
    )


def read_named(
    source: str | Path,
    names: NameMap,
    *,
    config: Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    zero_biases: bool = False,
) -> Checkpoint:
    """A state dict of another code base, turned to GPT-2's names and layout by ``names``.

    ``config`` holds config.json fields; what it leaves out comes from sizes kept beside the weights, then from shapes.
    ``zero_biases`` fills biases that the code base does not have with zeros, which compute the same.
    """
    state, wrappers = _unwrapped(read_state_dict(source, allow_pickle=allow_pickle), names)
    where = state.where
    fields, notes = _fields(Path(source), state, names, config)
    notes += [f"the wrapper '{each}' was stripped from names" for each in wrappers]
    head = names.of("lm_head.weight")
    if "tie_word_embeddings" not in fields:
        tied = not head or head[0] not in state.tensors or _equal(state, names.of("wte.weight")[0], head[0])
        fields["tie_word_embeddings"] = tied
        notes.append(f"tie_word_embeddings is {str(tied).lower()}, as the stored head and wte say")
    wanted = parse_config(fields, where=where)
    biases = [parameter for parameter in parameter_shapes(wanted) if parameter.endswith(".bias")]
    no_biases = zero_biases or state.sizes.get("bias") is False
    left = check_names(state.tensors, names, wanted, where=where, optional=biases if no_biases else ())
    parameters: dict[str, Tensor] = {}
    rows = []
    for parameter, shape in parameter_shapes(wanted).items():
        sources = names.of(parameter)
        if no_biases and parameter in biases and sources[0] not in state.tensors:
            parameters[parameter] = torch.zeros(shape, dtype=parameters["wte.weight"].dtype)
            continue
        turned = names.linear and parameter.endswith(CONV1D)
        parameters[parameter] = _assemble(state, parameter, sources, shape, transposed=turned)
        rows += [_state_row(state, each, parameter, transposed=turned) for each in sources]
    filled = sum(1 for parameter in biases if names.of(parameter)[0] not in state.tensors)
    if filled:
        notes.append(f"{filled} biases are not stored and were set to zero, which computes the same")
    rows += [_left_row(state, each, use="tied head" if each in head else "causal mask") for each in left]
    report = LoadReport(folder=where, mode="owned", rows=tuple(rows), notes=(f"name map {names.name}", *notes))
    return Checkpoint(config=wanted, parameters=parameters, report=report, folder=_folder(Path(source)))


def _pickle_of(path: Path) -> Path | None:
    """The pickle that ``path`` is or holds; None where there are safetensors."""
    if path.is_file():
        return None if path.suffix == ".safetensors" else path
    if not path.is_dir():
        raise MissingFileError("no such file or folder", where=path, fix="check the path")
    if any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists():
        return None
    found = next((path / name for name in PICKLES if (path / name).exists()), None)
    if found is None:
        raise MissingFileError("no weights here", where=path, expected=f"model.safetensors or {', '.join(PICKLES)}")
    return found


def _read_pickled_shards(index: Path) -> StateDict:
    tensors: dict[str, Tensor] = {}
    weight_map = read_config_fields(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError("the index has no weight_map", where=index)
    for shard in sorted({str(each) for each in weight_map.values()}):
        if Path(shard).name != shard:
            raise CheckpointError("the shard lies outside the folder", where=index, got=repr(shard))
        tensors |= _tensors(_unpickle(index.parent / shard), index.parent / shard)
    if set(tensors) != set(weight_map):
        differ = sorted(set(tensors) ^ set(weight_map))
        raise CheckpointError("index and shards name different tensors", where=index, got=", ".join(differ[:3]))
    return StateDict(where=str(index.parent), file=index.name, tensors=tensors, sizes={})


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of pickle protocols it may not know; then it fails
            found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise MissingFileError("no such file", where=path) from error
    except OSError as error:
        raise FileAccessError(f"cannot be read: {error.strerror}", where=path) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            "the pickle holds more than tensors and plain values, or is broken", where=path, got=reason[:200]
        ) from error
    if not isinstance(found, dict):
        raise CheckpointError("the pickle is not a state dict", where=path, got=type(found).__name__)
    return found


def _tensors(found: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    for key in _NESTED:
        if isinstance(found.get(key), dict):
            found = found[key]
            break
    tensors = {str(name): each for name, each in found.items() if isinstance(each, Tensor)}
    if len(tensors) < len(found) or not tensors:
        other = sorted(str(name) for name in found if name not in tensors)
        raise CheckpointError(
            "not a state dict: there is more than tensors in it",
            where=path,
            got=", ".join(other[:4]),
            expected=f"tensors, or a state dict under one of {', '.join(_NESTED)}",
        )
    return tensors


def _unwrapped(state: StateDict, names: NameMap) -> tuple[StateDict, list[str]]:
    """The state dict with what wrapping modules put into names taken off, unless the map itself has it."""
    found: dict[str, None] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.tensors.items():
        inner, wrappers = (name, ()) if names.names(name) else unwrap(name)
        if inner in tensors:
            raise CheckpointError("two tensors differ only in wrappers", where=f"{state.where}, tensor {name!r}")
        tensors[inner] = tensor
        found |= dict.fromkeys(wrappers)
    return replace(state, tensors=tensors), list(found)


def _fields(
    source: Path, state: StateDict, names: NameMap, config: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[str]]:
    """config.json fields, from what is given, else the folder's config.json, else sizes kept beside the weights."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}
    fields: dict[str, Any] = dict(infer_sizes(shapes, names, where=state.where))
    fields |= {name: state.sizes[key] for key, name in _SIZES.items() if key in state.sizes}
    beside = _folder(source) / "config.json"
    fields |= read_config_fields(beside) if beside.is_file() else {}
    fields |= config or {}
    if "n_head" not in fields:
        fix = 'give it: --config FILE with {"n_head": 12}'
        raise ConfigError("n_head is stated nowhere, and no shape tells it", where=state.where, fix=fix)
    if "activation_function" in fields:
        return fields, []
    fields["activation_function"] = names.activation_function
    return fields, [f"activation_function is {names.activation_function}, as {names.name} computes; --config overrides"]


def _assemble(
    state: StateDict, parameter: str, sources: tuple[str, ...], shape: tuple[int, ...], *, transposed: bool
) -> Tensor:
    parts = [state.tensors[each] for each in sources]
    tensor = torch.cat(parts, dim=0 if transposed or parts[0].dim() == 1 else 1) if len(parts) > 1 else parts[0]
    if parameter == "wpe.weight" and tensor.dim() == 3 and tensor.shape[0] == 1:
        tensor = tensor[0]  # [pos, n_embd]
    if transposed and tensor.dim() == 2:
        tensor = tensor.t()  # [in, out]
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            "the shape is wrong",
            where=f"{state.where}, tensor {', '.join(sources)} for {parameter}",
            expected=list(shape[::-1] if transposed else shape),
            got=[list(each.shape) for each in parts] if len(parts) > 1 else list(parts[0].shape),
            fix="check the map's layout, and the config",
        )
    if tensor.dtype not in _CODES:
        where = f"{state.where}, tensor {', '.join(sources)}"
        raise CheckpointError(
            "the dtype is not one of a weight", where=where, expected=", ".join(WEIGHT_DTYPES), got=tensor.dtype
        )
    return tensor


def _equal(state: StateDict, first: str, second: str) -> bool:
    a, b = state.tensors.get(first), state.tensors.get(second)
    return a is not None and b is not None and a.shape == b.shape and torch.equal(a, b)


def _code(tensor: Tensor) -> str:
    return _CODES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def _row(stored: Stored, parameter: str | None, *, use: Use, reason: str) -> TensorRow:
    return TensorRow(
        name=stored.name,
        shard=stored.shard,
        begin=None,
        end=None,
        dtype=stored.dtype,
        shape=stored.shape,
        use=use,
        parameter=parameter,
        transposed=False,
        reason=reason,
    )


def _state_row(state: StateDict, name: str, parameter: str, *, transposed: bool) -> TensorRow:
    return replace(_row(_stored(state, name), parameter, use="parameter", reason=""), transposed=transposed)


def _left_row(state: StateDict, name: str, *, use: Use) -> TensorRow:
    return _row(_stored(state, name), None, use=use, reason="left out by the name map")


def _stored(state: StateDict, name: str) -> Stored:
    tensor = state.tensors[name]
    return Stored(name=name, dtype=_code(tensor), shape=tuple(tensor.shape), shard=state.file)


def _folder(source: Path) -> Path:
    return source.parent if source.is_file() else source


def is_pickle(source: str | Path) -> bool:
    """Whether ``source`` is a pickle, or a folder whose weights are there only as one."""
    return _pickle_of(Path(source)) is not None
