"""Tensors' names, dtypes and shapes + config -> which tensor fills which parameter, or the reason why not.

Everything is checked here, on headers alone, before the first byte of a weight is touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from labkit.checkpoint.names import ParsedName, block_of, parse_name
from labkit.checkpoint.records import Use
from labkit.config import GPT2Config, parameter_shapes
from labkit.errors import CheckpointError, UnknownNameError
from labkit.words import counted

WEIGHT_DTYPES = ("F32", "F16", "BF16", "F64")
"""Codes that a parameter may be stored in."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a header says of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A tensor that fills no parameter, and why."""

    name: str
    use: Use
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The mapping, checked and complete."""

    config: GPT2Config
    sources: Mapping[str, str]  # parameter -> tensor name, in the parameters' order
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    compare_head: tuple[str, str] | None  # wte's and lm_head's tensors, to be equal while the head is tied


def plan_parameters(stored: Sequence[Stored], config: GPT2Config, *, where: str, untie: bool = False) -> Plan:
    """Assign every tensor; raises ``CheckpointError`` naming tensor, shapes, shard and config field.

    With ``untie`` a stored head is loaded as it is although the config ties it.
    """
    by_name = {each.name: each for each in stored}
    parsed = [parse_name(each.name) for each in stored]
    _refuse_unknown(parsed, by_name, config, where)
    candidates = _one_each(parsed, by_name, where)
    _check_blocks(candidates, config, where)
    notes = _name_notes(parsed)
    sources, config, compare, head_notes = _head(candidates, config, where, untie=untie)
    shapes = parameter_shapes(config)
    for parameter in shapes:
        if parameter not in sources:
            raise _missing(parameter, sources, where)
    for parameter, shape in shapes.items():
        _check_tensor(parameter, shape, by_name[sources[parameter]], config, where)
    if compare is not None:
        _check_tensor("lm_head.weight", shapes["wte.weight"], by_name[compare[1]], config, where)
    left = _left_out(parsed, compare)
    return Plan(
        config=config,
        sources={parameter: sources[parameter] for parameter in shapes},
        left_out=left,
        notes=(*notes, *head_notes, *_left_notes(left)),
        compare_head=compare,
    )


def _refuse_unknown(
    parsed: Sequence[ParsedName], by_name: Mapping[str, Stored], config: GPT2Config, where: str
) -> None:
    unknown = [each for each in parsed if each.kind == "unknown"]
    if not unknown:
        return
    first = unknown[0]
    known = list(parameter_shapes(replace(config, tie_word_embeddings=False)))
    near = UnknownNameError.near("parameter", first.bare, known).fix
    more = f" (and {len(unknown) - 1} more such tensors)" if len(unknown) > 1 else ""
    raise CheckpointError(
        f"GPT-2 has no parameter for this tensor{more}",
        where=f"{where}, {by_name[first.name].shard}, tensor {first.name!r}",
        fix=near,
    )


def _one_each(parsed: Sequence[ParsedName], by_name: Mapping[str, Stored], where: str) -> dict[str, str]:
    candidates: dict[str, str] = {}
    for each in parsed:
        if each.kind != "parameter":
            continue
        if each.bare in candidates:
            raise CheckpointError(
                f"two tensors for the parameter {each.bare}",
                where=f"{where}, {by_name[each.name].shard}",
                got=f"{candidates[each.bare]!r} and {each.name!r}",
                fix="keep one of them",
            )
        candidates[each.bare] = each.name
    return candidates


def _check_blocks(candidates: Mapping[str, str], config: GPT2Config, where: str) -> None:
    blocks = sorted({block for bare in candidates if (block := block_of(bare)) is not None})
    wanted = range(config.n_layer)
    held = ", ".join(f"h.{block}." for block in blocks) or "none"
    for block in blocks:
        if block not in wanted:
            raise CheckpointError(
                f"the files hold block h.{block}. but n_layer is {config.n_layer}",
                where=where,
                expected=f"blocks h.0. to h.{config.n_layer - 1}.",
                got=held,
                fix="correct n_layer in config.json",
            )
    for block in wanted:
        if block not in blocks:
            raise CheckpointError(
                f"block h.{block}. is missing while n_layer is {config.n_layer}",
                where=where,
                expected=f"blocks h.0. to h.{config.n_layer - 1}.",
                got=held,
                fix="correct n_layer in config.json or find the missing tensors",
            )


def _head(
    candidates: Mapping[str, str], config: GPT2Config, where: str, *, untie: bool
) -> tuple[dict[str, str], GPT2Config, tuple[str, str] | None, tuple[str, ...]]:
    """The sources with the head settled, the config they mean, what must be equal, and what to say."""
    sources = dict(candidates)
    wte, head = sources.get("wte.weight"), sources.get("lm_head.weight")
    if not config.tie_word_embeddings:
        if head is None:
            raise CheckpointError(
                "lm_head.weight is missing while tie_word_embeddings is false",
                where=where,
                fix="set tie_word_embeddings to true in config.json if the head is wte, or find the head's tensor",
            )
        return sources, config, None, ()
    if head is None:
        if untie:
            raise CheckpointError("untie=True but no lm_head.weight is stored", where=where, fix="leave untie out")
        return sources, config, None, ("the head is tied: no lm_head.weight is stored, wte.weight is used",)
    if wte is None:
        sources["wte.weight"] = sources.pop("lm_head.weight")
        return sources, config, None, (f"wte.weight is not stored: it is taken from {head!r}, tied to it",)
    if untie:
        note = "tie_word_embeddings is true, but lm_head.weight is loaded as stored (untie=True)"
        return sources, replace(config, tie_word_embeddings=False), None, (note,)
    del sources["lm_head.weight"]
    return sources, config, (wte, head), ()


def _missing(parameter: str, sources: Mapping[str, str], where: str) -> CheckpointError:
    fix = "the file is incomplete; find the checkpoint's other shards or save it again"
    if parameter == "wte.weight":
        fix = "neither wte.weight nor lm_head.weight is stored; " + fix
    near = (
        [name for name in sources if block_of(name) == block_of(parameter)][:3]
        if block_of(parameter) is not None
        else []
    )
    return CheckpointError(
        "no tensor fills this parameter",
        where=f"{where}, parameter {parameter}",
        got=f"its block has {', '.join(near)} …" if near else None,
        fix=fix,
    )


def _check_tensor(parameter: str, shape: tuple[int, ...], tensor: Stored, config: GPT2Config, where: str) -> None:
    place = f"{where}, {tensor.shard}, tensor {tensor.name!r}"
    if tensor.dtype not in WEIGHT_DTYPES:
        raise CheckpointError(
            "the dtype is not one of a weight",
            where=place,
            expected=", ".join(WEIGHT_DTYPES),
            got=tensor.dtype,
            fix="dequantize or cast the checkpoint",
        )
    if tensor.shape == shape:
        return
    raise CheckpointError(
        "the shape is wrong",
        where=place,
        expected=f"{list(shape)} by {_field_of(parameter, config)}",
        got=list(tensor.shape),
        fix=_shape_fix(parameter, shape, tensor.shape, config),
    )


def _field_of(parameter: str, config: GPT2Config) -> str:
    if parameter in ("wte.weight", "lm_head.weight"):
        return f"vocab_size = {config.vocab_size}, n_embd = {config.n_embd}"
    if parameter == "wpe.weight":
        return f"n_positions = {config.n_positions}, n_embd = {config.n_embd}"
    if ".mlp." in parameter:
        return f"n_embd = {config.n_embd}, n_inner = {config.n_inner if config.n_inner else 'null (4 n_embd)'}"
    return f"n_embd = {config.n_embd}"


def _shape_fix(parameter: str, shape: tuple[int, ...], got: tuple[int, ...], config: GPT2Config) -> str:
    if len(shape) == 2 and got == shape[::-1]:
        return (
            "this is nn.Linear's layout [out, in], GPT-2's files hold Conv1D's [in, out]; "
            "`labkit convert FOLDER NEW_FOLDER --names linear` turns it"
        )
    if len(got) != len(shape):
        return "the number of axes differs: this is another parameter or another model"
    if parameter in ("wte.weight", "lm_head.weight") and got[1] == shape[1]:
        return f"the table has {got[0]} rows; if the tokenizer agrees, correct vocab_size in config.json to {got[0]}"
    if parameter == "wpe.weight" and got[1] == shape[1]:
        return f"the table has {got[0]} rows; correct n_positions in config.json to {got[0]}"
    return "config.json belongs to another model, or the tensor does"


def _name_notes(parsed: Sequence[ParsedName]) -> tuple[str, ...]:
    notes = []
    for wrapper in dict.fromkeys(wrapper for each in parsed for wrapper in each.wrappers):
        count = sum(wrapper in each.wrappers for each in parsed)
        notes.append(f"the wrapper '{wrapper}' was stripped from {count} of {len(parsed)} names")
    named = [each for each in parsed if each.kind == "parameter" and each.bare != "lm_head.weight"]
    prefixed = sum(each.prefixed for each in named)
    if 0 < prefixed < len(named):
        notes.append(f"names are mixed: {prefixed} with 'transformer.' and {len(named) - prefixed} bare")
    return tuple(notes)


def _left_out(parsed: Sequence[ParsedName], compare: tuple[str, str] | None) -> tuple[LeftOut, ...]:
    reasons: dict[str, str] = {
        "causal mask": "a buffer; the mask is made from the positions",
        "cross-attention": "used only beside an encoder",
        "other head": "a head of another class",
    }
    left = []
    for each in parsed:
        if each.kind != "parameter" and each.kind != "unknown":
            left.append(LeftOut(name=each.name, use=each.kind, reason=reasons[each.kind]))
        elif compare is not None and each.name == compare[1]:
            left.append(LeftOut(name=each.name, use="tied head", reason="equal to wte.weight bit for bit"))
    return tuple(left)


def _left_notes(left: Sequence[LeftOut]) -> tuple[str, ...]:
    notes = []
    for use in dict.fromkeys(each.use for each in left):
        names = [each.name for each in left if each.use == use]
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        reason = next(each.reason for each in left if each.use == use)
        notes.append(f"{use}: {counted(len(names), 'tensor')} left out ({shown}): {reason}")
    return tuple(notes)
