"""One element of one tap -> the arithmetic that makes it, down to the bytes of every weight that it reads.

In: a checkpoint, a prompt or a trace of any engine, and an element such as ``h.0.attn.q[0, 1, 3, 7]``. Out: an
``Explanation``: a sum of products, each with its factors, where each weight lies in its file, and what the run holds
at that place. With a trace the factors are the engine's own recorded values, so that a product worked out by hand, or
printed by the engine's debugger, can be held against this one line by line.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from labkit.errors import ArgumentError, OutOfRangeError, TraceError
from labkit.load import folder_of, load_gpt2
from labkit.model import GPT2
from labkit.model.operations import activation
from labkit.model.taps import extra_tap_names, match_taps, tap_axes, tap_names
from labkit.outside import shown
from labkit.verification.chain import Inputs
from labkit.verification.explanation import Bytes, Explanation, Factor, Term, total_of
from labkit.verification.precision import unit_roundoff
from labkit.verification.prompts import check_room, choose_prompts
from labkit.verification.trace import open_trace
from labkit.words import counted

THIRDS = ("q", "k", "v")
"""The parts of c_attn's output, in order."""


def explain(
    element: str,
    folder: str | Path | None = None,
    *,
    prompt: str | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    trace: str | Path | None = None,
) -> Explanation:
    """The arithmetic of ``element``, a tap's name with an index on every axis, in ``folder`` (default: the embedded one).

    The factors come from labkit's float32 run of ``prompt`` or ``ids``, or from the engine's ``trace``. Raises
    ``ArgumentError`` for an element that cannot be read, ``UnknownNameError`` for no tap, ``OutOfRangeError`` for no
    place in it, ``TraceError`` where the trace lacks what the element is made of.

    >>> made = explain("h.0.attn.q[0, 1, 2, 7]", ids=[[5, 6, 7]])
    >>> made.formula
    'h.0.attn.c_attn.bias[39] + sum over n of h.0.ln_1[0, 2, n] * h.0.attn.c_attn.weight[n, 39]'
    >>> len(made.terms), abs(made.value - made.held) < 1e-6, str(made.terms[0].factors[0].place)
    (193, True, 'model.safetensors 5204 (F32)')
    """
    name, index = parse_element(element)
    path = folder_of(folder)
    if trace is not None:
        if prompt is not None or ids is not None:
            raise ArgumentError("a trace brings its own prompt", fix="leave prompt and ids out")
        with open_trace(trace) as opened:
            model = load_gpt2(path, dtype=opened.metadata.precision.weight)
            unit = unit_roundoff(opened.metadata.precision.compute)
            return _Bench(model, opened, opened.inputs(), opened.metadata.engine, unit).explain(name, index)
    model = load_gpt2(path)
    chosen, _ = choose_prompts(path, model.config, None if prompt is None else [prompt], ids)
    check_room(chosen[:1], model.config)
    rows = torch.tensor([chosen[0].ids])  # [batch, pos]
    taps = model.run(rows, taps=[*tap_names(model.config), *extra_tap_names(model.config)]).taps
    return _Bench(model, taps, Inputs(rows), "labkit", unit_roundoff(torch.float32)).explain(name, index)


def parse_element(element: str) -> tuple[str, tuple[int, ...]]:
    """A tap's name and the index.

    >>> parse_element("h.0.ln_1[0, 3, -1]")
    ('h.0.ln_1', (0, 3, -1))
    """
    matched = re.fullmatch(r"\s*([A-Za-z0-9_.]{1,80})\s*\[\s*([-0-9,\s]{1,200})\]\s*", element)
    numbers = matched[2].strip().rstrip(",").split(",") if matched else []
    if matched is None or not all(re.fullmatch(r"\s*-?\d{1,9}\s*", each) for each in numbers):
        raise ArgumentError(
            "not an element of a tap",
            where="element",
            expected="a tap's name and a number for each axis, such as 'h.0.attn.q[0, 1, 3, 7]'",
            got=shown(element),
        )
    return matched[1], tuple(int(each) for each in numbers)


class _Bench:
    """The parameters, the taps and the inputs from which every element is explained."""

    def __init__(self, model: GPT2, taps: Mapping[str, Tensor], inputs: Inputs, engine: str, unit: float) -> None:
        self._config = model.config
        self._parameters = model.parameters_by_name
        self._taps, self._inputs, self._engine, self._unit = taps, inputs, engine, unit
        assert model.load_report is not None
        self._rows = {row.parameter: row for row in model.load_report.parameters}

    def explain(self, name: str, index: tuple[int, ...]) -> Explanation:
        (name,) = match_taps(name, self._config)
        index = self._checked(name, index)
        formula, before, terms = self._maker(name)(name, index)
        held = self._tap(name, *index).value if name in self._taps else None
        return Explanation(
            element=_label(name, index),
            axes=tap_axes(name)[-len(index) :],
            engine=self._engine,
            formula=formula,
            before=tuple(before),
            terms=tuple(terms),
            held=held,
            unit=self._unit,
        )

    def _maker(self, name: str) -> Callable[[str, tuple[int, ...]], "_Made"]:
        stage = name.split(".", 2)[2] if name.startswith("h.") else name
        makers = {
            "wte": self._gathered,
            "wpe": self._gathered,
            "embed": self._embedded,
            "ln_1": self._normed,
            "ln_2": self._normed,
            "ln_f": self._normed,
            "attn.c_attn": self._packed,
            "attn.q": self._headed,
            "attn.k": self._headed,
            "attn.v": self._headed,
            "attn.scores": self._scored,
            "attn.pattern": self._softened,
            "attn.z": self._mixed,
            "attn.merged": self._merged,
            "attn.out": self._projected,
            "resid_mid": self._added,
            "mlp.pre": self._projected,
            "mlp.post": self._activated,
            "mlp.out": self._projected,
            "resid_post": self._added,
            "logits": self._unembedded,
        }
        return makers[stage]

    # What is read

    def _tap(self, name: str, *index: int) -> Factor:
        if name not in self._taps:
            raise TraceError(
                "the trace does not hold what the element is made of", where=name, fix=f"record {name} as well"
            )
        self._check_shape(name)
        return Factor(label=_label(name, index), value=float(self._taps[name][index]))

    def _check_shape(self, name: str) -> None:
        shape, sizes = tuple(self._taps[name].shape), self._sizes(name)
        if shape != sizes and not (name == "wpe" and shape == (self._inputs.ids.shape[0], *sizes)):
            fix = "run labkit lint-trace on the file"
            raise TraceError("the tensor's shape is wrong", where=name, expected=list(sizes), got=list(shape), fix=fix)

    def _weight(self, name: str, *index: int) -> Factor:
        value = float(self._parameters[name][index])
        return Factor(label=_label(name, index), value=value, place=self._place(name, index))

    def _place(self, name: str, index: tuple[int, ...]) -> Bytes:
        row = self._rows[name]
        assert row.begin is not None
        assert row.end is not None
        size = (row.end - row.begin) // row.numel
        begin = row.begin + size * _flat(row.shape, index)
        return Bytes(file=row.shard, begin=begin, end=begin + size, dtype=row.dtype)

    def _checked(self, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
        axes, sizes = tap_axes(name), self._sizes(name)
        if name == "wpe" and len(index) == 3:
            axes, sizes = ("batch", *axes), (self._inputs.ids.shape[0], *sizes)
        if len(index) != len(axes):
            expected = f"{len(axes)}: {', '.join(axes)} of {list(sizes)}"
            raise ArgumentError("not a number for each axis", where=name, expected=expected, got=len(index))
        for axis, size, number in zip(axes, sizes, index, strict=True):
            if not -size <= number < size:
                where, expected = f"{name}, axis {axis}", f"0 to {size - 1}"
                raise OutOfRangeError("no such place", where=where, expected=expected, got=number)
        return tuple(number % size for size, number in zip(sizes, index, strict=True))

    def _sizes(self, name: str) -> tuple[int, ...]:
        config, (batch, pos) = self._config, self._inputs.ids.shape
        sizes = {"batch": batch, "pos": pos, "pos_q": pos, "pos_k": pos, "head": config.n_head}
        sizes |= {"head_dim": config.head_dim, "n_embd": config.n_embd, "n_inner": config.inner}
        sizes |= {"3*n_embd": 3 * config.n_embd, "vocab": config.vocab_size}
        return tuple(sizes[axis] for axis in tap_axes(name))

    # What is made of it, stage by stage

    def _gathered(self, name: str, index: tuple[int, ...]) -> "_Made":
        batch, pos = index[0] if len(index) == 3 else 0, index[-2]
        positions = self._inputs.positions  # [pos] or [batch, pos]
        place = int(positions[pos] if positions.dim() == 1 else positions[batch, pos])
        number = int(self._inputs.ids[batch, pos]) if name == "wte" else place
        weight = self._weight(f"{name}.weight", number, index[-1])
        which = "token id" if name == "wte" else "position"
        return f"{weight.label}, the row of {which} {number}", (), [Term(factors=(weight,))]

    def _embedded(self, _name: str, index: tuple[int, ...]) -> "_Made":
        shared = "wpe" not in self._taps or self._taps["wpe"].dim() == 2
        return _sum(self._tap("wte", *index), self._tap("wpe", *(index[1:] if shared else index)))

    def _added(self, name: str, index: tuple[int, ...]) -> "_Made":
        block = name.rpartition(".")[0]
        stream, branch = (
            (self._stream(int(block[2:])), f"{block}.attn.out")
            if name.endswith("resid_mid")
            else (f"{block}.resid_mid", f"{block}.mlp.out")
        )
        return _sum(self._tap(stream, *index), self._tap(branch, *index))

    def _stream(self, block: int) -> str:
        """The residual stream that enters a block."""
        return "embed" if block == 0 else f"h.{block - 1}.resid_post"

    def _normed(self, name: str, index: tuple[int, ...]) -> "_Made":
        block = name.rpartition(".")[0]
        if name == "ln_f":
            source = self._stream(self._config.n_layer)
        else:
            source = self._stream(int(block[2:])) if name.endswith("ln_1") else f"{block}.resid_mid"
        batch, pos, n = index
        x = self._tap(source, *index)  # [] of [batch, pos, n_embd]
        row = self._taps[source][batch, pos].double()  # [n_embd]
        mean, variance = float(row.mean()), float(row.var(correction=0))
        epsilon = self._config.layer_norm_epsilon
        scaled = Factor(
            label="(x - mean) / sqrt(variance + epsilon)", value=(x.value - mean) / math.sqrt(variance + epsilon)
        )
        weight, bias = self._weight(f"{name}.weight", n), self._weight(f"{name}.bias", n)
        over = f"of {_label(source, (batch, pos))} over n_embd"
        before = (
            Factor(label=f"x: {x.label}", value=x.value),
            Factor(label=f"mean {over}", value=mean),
            Factor(label=f"variance {over}, divided by N", value=variance),
            Factor(label="epsilon", value=epsilon),
            scaled,
        )
        terms = [Term(factors=(scaled, weight)), Term(factors=(bias,))]
        return f"{scaled.label} * {weight.label} + {bias.label}", before, terms

    def _product(self, source: Callable[[int], Factor], count: int, weight: str, column: int, read: str) -> "_Made":
        """A column of a Conv1D: what feeds input n, how many there are, and its label."""
        bias = self._weight(f"{weight}.bias", column)
        terms = [Term(factors=(source(n), self._weight(f"{weight}.weight", n, column))) for n in range(count)]
        formula = f"{bias.label} + sum over n of {read} * {weight}.weight[n, {column}]"
        return formula, (), [Term(factors=(bias,)), *terms]

    def _packed(self, name: str, index: tuple[int, ...]) -> "_Made":
        batch, pos, column = index
        normed = f"{name.split('.attn')[0]}.ln_1"
        return self._product(
            lambda n: self._tap(normed, batch, pos, n),
            self._config.n_embd,
            name,
            column,
            f"{normed}[{batch}, {pos}, n]",
        )

    def _headed(self, name: str, index: tuple[int, ...]) -> "_Made":
        batch, head, pos, place = index
        config = self._config
        column = THIRDS.index(name[-1]) * config.n_embd + head * config.head_dim + place
        return self._packed(f"{name[:-1]}c_attn", (batch, pos, column))

    def _scored(self, name: str, index: tuple[int, ...]) -> "_Made":
        batch, head, query, key = index
        block = name.removesuffix(".scores")
        scale = Factor(label="scale", value=self._config.scaling(block=int(name.split(".")[1])))
        terms = [
            Term(factors=(self._tap(f"{block}.q", batch, head, query, n), self._tap(f"{block}.k", batch, head, key, n), scale))
            for n in range(self._config.head_dim)
        ]  # fmt: skip
        formula = f"scale * sum over n of {block}.q[{batch}, {head}, {query}, n] * {block}.k[{batch}, {head}, {key}, n]"
        return formula, (scale,), terms

    def _softened(self, name: str, index: tuple[int, ...]) -> "_Made":
        batch, head, query, key = index
        allowed = self._inputs.allowed  # [batch or 1, 1, pos_q, pos_k]
        seen = allowed[batch % allowed.shape[0], 0, query].nonzero().flatten().tolist()
        if key not in seen:
            return "exactly 0: the query may not look at this key", (), []
        source = name.replace("pattern", "scores")
        scores = {each: self._tap(source, batch, head, query, each) for each in seen}
        largest = max(each.value for each in scores.values())
        powers = {each: math.exp(score.value - largest) for each, score in scores.items()}
        whole = total_of(list(powers.values()))
        own = Factor(label=f"exp({scores[key].label} - largest)", value=powers[key])
        before = (
            *scores.values(),
            Factor(label="largest", value=largest),
            Factor(
                label=f"sum of exp(score - largest) over the {counted(len(seen), 'key')} that the query sees",
                value=whole,
            ),
        )
        return f"{own.label} / sum", before, [Term(factors=(own, Factor(label="1 / sum", value=1 / whole)))]

    def _mixed(self, name: str, index: tuple[int, ...]) -> "_Made":
        batch, head, query, place = index
        block = name.removesuffix(".z")
        terms = [
            Term(factors=(self._tap(f"{block}.pattern", batch, head, query, key), self._tap(f"{block}.v", batch, head, key, place)))
            for key in range(self._inputs.ids.shape[1])
        ]  # fmt: skip
        read = f"{block}.pattern[{batch}, {head}, {query}, n] * {block}.v[{batch}, {head}, n, {place}]"
        return f"sum over keys n of {read}", (), terms

    def _from_head(self, block: str, batch: int, pos: int, column: int) -> Factor:
        """An element of the merged heads, as z has it."""
        head, place = divmod(column, self._config.head_dim)
        return self._tap(f"{block}.z", batch, head, pos, place)

    def _merged(self, name: str, index: tuple[int, ...]) -> "_Made":
        z = self._from_head(name.removesuffix(".merged"), *index)
        return f"{z.label}: the heads lie side by side", (), [Term(factors=(z,))]

    def _projected(self, name: str, index: tuple[int, ...]) -> "_Made":
        batch, pos, column = index
        block, config = name.rpartition(".")[0], self._config
        if name.endswith("attn.out"):
            read = f"{block}.z[{batch}, n // {config.head_dim}, {pos}, n % {config.head_dim}]"
            return self._product(
                lambda n: self._from_head(block, batch, pos, n), config.n_embd, f"{block}.c_proj", column, read
            )
        source, count, weight = (
            (f"{block.removesuffix('.mlp')}.ln_2", config.n_embd, f"{block}.c_fc")
            if name.endswith("pre")
            else (f"{block}.post", config.inner, f"{block}.c_proj")
        )
        read = f"{source}[{batch}, {pos}, n]"
        return self._product(lambda n: self._tap(source, batch, pos, n), count, weight, column, read)

    def _activated(self, name: str, index: tuple[int, ...]) -> "_Made":
        pre, function = self._tap(name.replace("post", "pre"), *index), self._config.activation_function
        value = float(activation(function)(torch.tensor(pre.value, dtype=torch.float64)))
        made = Factor(label=f"{function}({pre.label})", value=value)
        return made.label, (pre,), [Term(factors=(made,))]

    def _unembedded(self, _name: str, index: tuple[int, ...]) -> "_Made":
        batch, pos, token = index
        table = "wte.weight" if self._config.tie_word_embeddings else "lm_head.weight"
        terms = [
            Term(factors=(self._tap("ln_f", batch, pos, n), self._weight(table, token, n)))
            for n in range(self._config.n_embd)
        ]
        return f"sum over n of ln_f[{batch}, {pos}, n] * {table}[{token}, n]", (), terms


_Made = tuple[str, Sequence[Factor], Sequence[Term]]
"""A formula, what is worked out before, and the terms."""


def _sum(first: Factor, second: Factor) -> _Made:
    return f"{first.label} + {second.label}", (), [Term(factors=(first,)), Term(factors=(second,))]


def _label(name: str, index: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, index))}]"


def _flat(shape: tuple[int, ...], index: tuple[int, ...]) -> int:
    """The element's number in row-major order."""
    number = 0
    for place, size in zip(index, shape, strict=True):
        number = number * size + place
    return number
