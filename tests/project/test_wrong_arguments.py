"""What a call cannot honour is told by an error of labkit's own, and nothing is guessed: a table of wrong arguments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import labkit
from labkit.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConfigError,
    FileAccessError,
    LabkitError,
    TextError,
    UnknownNameError,
)
from labkit.generation import Settings, generate_batch, greedy, stream
from labkit.generation.dtype_study import dtype_study
from labkit.load import embedded
from labkit.storage import open_snapshot, save_snapshot
from labkit.verification.invariants.engine import check_logits
from labkit.verification.kill_matrix import kill_matrix
from labkit.verification.trace_record import record_trace

Call = Callable[[], object]
Row = tuple[Call, type[LabkitError], str]
IDS = torch.tensor([[1, 2, 3]])


def tokenizer() -> labkit.Tokenizer:
    return labkit.Tokenizer.from_folder(embedded())


def odd(value: object) -> Any:
    """A value of a type that the signature does not have."""
    return value


VERIFY: dict[str, Row] = {
    "ids with a fraction": (
        lambda: labkit.verify(ids=odd([[1.5]])),
        ArgumentTypeError,
        "ids: not rows of whole numbers",
    ),
    "ids of one row": (lambda: labkit.verify(ids=odd([1, 2])), ArgumentTypeError, "ids: not rows of whole numbers"),
    "ids a text": (lambda: labkit.verify(ids=odd(["a"])), ArgumentTypeError, "ids: not rows of whole numbers"),
    "ids null": (lambda: labkit.verify(ids=odd([None])), ArgumentTypeError, "ids: not rows of whole numbers"),
    "ids a flag": (lambda: labkit.verify(ids=odd([[True]])), ArgumentTypeError, "ids: not rows of whole numbers"),
    "ids of floats": (lambda: labkit.verify(ids=odd(torch.ones(1, 2))), ArgumentTypeError, "ids: not rows"),
    "ids huge": (lambda: labkit.verify(ids=[[10**30]]), LabkitError, "prompt 1: id 0 is beyond the vocabulary"),
    "faults with ids beyond": (
        lambda: kill_matrix(ids=[[2048]], faults=["erf-gelu"], floors="skip"),
        LabkitError,
        "prompt 1: id 0 is beyond the vocabulary",
    ),
    "faults with a prompt too long": (
        lambda: kill_matrix(ids=[[1] * 5000], faults=["erf-gelu"], floors="skip"),
        ArgumentError,
        "longer than the model's context",
    ),
    "a prompt as one text": (lambda: labkit.verify(prompts="abc"), ArgumentTypeError, "prompts: not a list of texts"),
    "a prompt of bytes": (
        lambda: labkit.verify(prompts=odd([b"a"])),
        ArgumentTypeError,
        "prompts: not a list of texts",
    ),
    "prompts and ids": (lambda: labkit.verify(prompts=["a"], ids=[[1]]), ArgumentError, "were both given"),
    "tokens a text": (
        lambda: labkit.verify(ids=[[1]], tokens=odd("x")),
        ArgumentTypeError,
        "tokens: not a whole number",
    ),
    "plant a number": (lambda: labkit.verify(plant=odd(5)), ArgumentTypeError, "a fault is named by a text"),
    "dtype a list": (lambda: labkit.verify(dtype=odd([])), LabkitError, "unknown dtype"),
    "folder a number": (lambda: labkit.verify(odd(5)), ArgumentTypeError, "folder: not a path"),
    "folder of bytes": (lambda: labkit.verify(odd(b"x")), ArgumentTypeError, "folder: not a path"),
    "steps a text": (lambda: record_trace(ids=[[1]], steps=odd("x")), ArgumentTypeError, "steps: not a whole number"),
    "taps a number": (lambda: record_trace(ids=[[1]], taps=odd(5)), ArgumentTypeError, "a tap is named by a text"),
}


def raising(_ids: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError("by zero")


ENGINE: dict[str, Row] = {
    "an engine that raises": (
        lambda: labkit.verify_callable(raising, ids=[[1, 2]]),
        ArgumentError,
        r"raising, prompt 1: the engine raised ZeroDivisionError: by zero .got ids \[1, 2\]",
    ),
    "sparse logits": (
        lambda: labkit.verify_callable(lambda ids: torch.zeros(*ids.shape, 9).to_sparse(), ids=[[1]]),
        ArgumentTypeError,
        "not logits .expected a dense tensor",
    ),
    "float8 logits": (
        lambda: labkit.verify_callable(lambda ids: torch.zeros(*ids.shape, 9).to(torch.float8_e5m2), ids=[[1]]),
        ArgumentTypeError,
        "got torch.strided of torch.float8_e5m2",
    ),
    "whole-number logits": (
        lambda: check_logits(torch.zeros(1, 3, 9).long(), IDS, "it"),
        ArgumentTypeError,
        "not logits",
    ),
    "no engine": (lambda: labkit.verify_callable(odd(5)), ArgumentTypeError, "not an engine"),
}

MODEL: dict[str, Row] = {
    "folder a number": (lambda: labkit.load_gpt2(odd(5)), ArgumentTypeError, "folder: not a path .*got 5"),
    "folder with a NUL": (lambda: labkit.load_gpt2("a\0b"), ArgumentError, "cannot hold a NUL"),
    "config a number": (lambda: labkit.load_gpt2(config=odd(5)), ArgumentTypeError, "config: not a path"),
    "config with odd keys": (lambda: labkit.load_gpt2(config=odd({5: 6})), ConfigError, "a field's name is not a text"),
    "device meta": (lambda: labkit.load_gpt2(device="meta"), ArgumentError, "device: it holds no values"),
    "device without end": (lambda: labkit.load_gpt2(device="cuda:" + "9" * 5000), ArgumentTypeError, "no such device"),
    "n_head 0": (lambda: labkit.GPT2Config(n_head=0), ConfigError, "n_head is not a size"),
    "n_head a text": (lambda: labkit.GPT2Config(n_head=odd("a")), ConfigError, "n_head is not a size"),
    "heads that do not divide": (lambda: labkit.GPT2Config(n_embd=10, n_head=3), ConfigError, "does not divide"),
    "taps a number": (lambda: labkit.load_gpt2().run([1], taps=odd(5)), ArgumentTypeError, "a tap is named by a text"),
    "taps of numbers": (lambda: labkit.load_gpt2().run([1], taps=odd([5])), ArgumentTypeError, "a tap is named"),
    "replace a number": (
        lambda: labkit.load_gpt2().run([1], replace=odd(5)),
        ArgumentTypeError,
        "replace: not a mapping",
    ),
    "replace by a number": (
        lambda: labkit.load_gpt2().run([1], replace=odd({"wte": 5})),
        ArgumentTypeError,
        "tap wte: nothing to replace with",
    ),
    "generate without a model": (lambda: labkit.generate(odd(None), "a"), ArgumentTypeError, "model: not a model"),
    "a batch as one text": (
        lambda: generate_batch(labkit.load_gpt2(), "abc"),
        ArgumentTypeError,
        "prompts: not a list of prompts",
    ),
}

TOKENIZER: dict[str, Row] = {
    "errors unknown": (
        lambda: tokenizer().decode([1], odd("zz")),
        TextError,
        "no such way of treating errors: 'zz'",
    ),
    "errors of the incremental decoder": (
        lambda: tokenizer().incremental_decoder(errors=odd("zz")),
        TextError,
        "no such way of treating errors: 'zz'",
    ),
    "missing bytes unknown": (
        lambda: labkit.Tokenizer.from_folder(embedded(), missing_bytes=odd("zz")),
        UnknownNameError,
        "way of treating missing bytes named 'zz'",
    ),
    "surrogates unknown": (
        lambda: tokenizer().encode("a", surrogates=odd("zz")),
        UnknownNameError,
        "way of treating surrogates named 'zz'",
    ),
    "special tokens a number": (
        lambda: tokenizer().encode("a", special_tokens=odd(5)),
        ArgumentTypeError,
        "special_tokens: no way of treating",
    ),
    "special tokens of lists": (
        lambda: tokenizer().encode("a", special_tokens=odd([["a"]])),
        UnknownNameError,
        "no special token named",
    ),
    "an id with a fraction": (
        lambda: tokenizer().decode(odd(torch.tensor([1.5]))),
        ArgumentTypeError,
        "position 0: an id must be a whole number",
    ),
    "folder a number": (lambda: labkit.Tokenizer.from_folder(odd(5)), ArgumentTypeError, "folder: not a path"),
    "source a number": (lambda: tokenizer().encode_file(odd(5), "a.npy"), ArgumentTypeError, "source: not a path"),
    "target a number": (lambda: tokenizer().encode_file("a", odd(5)), ArgumentTypeError, "target: not a path"),
    "source a device": (lambda: tokenizer().encode_file("/dev/zero", "a.npy"), FileAccessError, "not a regular file"),
    "saved to a number": (lambda: tokenizer().save(odd(5)), ArgumentTypeError, "folder: not a path"),
}

ONE = {"a": torch.ones(2)}
STORAGE: dict[str, Row] = {
    "tensors a list": (lambda: labkit.save_safetensors(odd([1]), "a"), ArgumentTypeError, "tensors must be a mapping"),
    "tensors null": (lambda: labkit.save_safetensors(odd(None), "a"), ArgumentTypeError, "tensors must be a mapping"),
    "metadata a list": (
        lambda: labkit.save_safetensors(ONE, "a", metadata=odd([1])),
        ArgumentTypeError,
        "metadata must be a mapping",
    ),
    "shared unknown": (
        lambda: labkit.save_safetensors(ONE, "a", shared=odd("zz")),
        UnknownNameError,
        "way of treating shared memory named 'zz'",
    ),
    "a masked array": (
        lambda: labkit.save_safetensors({"a": np.ma.array([1.0, 2.0], mask=[0, 1])}, "a"),
        ArgumentTypeError,
        "a masked array would lose its own",
    ),
    "path a number": (lambda: labkit.save_safetensors(ONE, odd(5)), ArgumentTypeError, "path: not a path"),
    "path null": (lambda: labkit.save_safetensors(ONE, odd(None)), ArgumentTypeError, "path: not a path"),
    "path with a NUL": (lambda: labkit.save_safetensors(ONE, "a\0b"), ArgumentError, "cannot hold a NUL"),
    "path the root": (lambda: labkit.save_safetensors(ONE, "/"), FileAccessError, "it is a folder"),
    "opened a number": (lambda: labkit.open_safetensors(odd(5)), ArgumentTypeError, "path: not a path"),
    "opened a NUL": (lambda: labkit.open_safetensors("a\0b"), ArgumentError, "cannot hold a NUL"),
    "snapshot a number": (lambda: open_snapshot(odd(5)), ArgumentTypeError, "path: not a path"),
    "snapshot saved to a number": (lambda: save_snapshot(ONE, odd(5)), ArgumentTypeError, "folder: not a path"),
}

TABLES = {"verify": VERIFY, "engine": ENGINE, "model": MODEL, "tokenizer": TOKENIZER, "storage": STORAGE}


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, rows in TABLES.items() for name in rows])
def test_a_wrong_argument_is_told(table: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, kind, told = TABLES[table][name]
    with pytest.raises(kind, match=told):
        call()
    assert list(tmp_path.iterdir()) == []


BYTES: dict[str, Callable[[Any], object]] = {
    "a prompt": lambda data: labkit.generate(labkit.load_gpt2(), data, tokens=1),
    "prompts": lambda data: generate_batch(labkit.load_gpt2(), data, tokens=1),
    "a row of prompts": lambda data: generate_batch(labkit.load_gpt2(), ["a", data], tokens=1),
    "a stream's prompt": lambda data: stream(labkit.load_gpt2(), data, tokens=1),
    "ids to go on with": lambda data: greedy(labkit.load_gpt2(), data, 1),
    "a stop id": lambda data: labkit.generate(labkit.load_gpt2(), "a", tokens=1, stop_ids=data),
    "a stop": lambda data: labkit.generate(labkit.load_gpt2(), "a", tokens=1, stop=data),
    "settings' stop ids": lambda data: Settings(stop_ids=data),
    "settings' stop": lambda data: Settings(stop=data),
    "a model's ids": lambda data: labkit.load_gpt2()(data),
    "a model's rows of ids": lambda data: labkit.load_gpt2().run([data]),
    "a mask": lambda data: labkit.load_gpt2().run([[1, 2]], attention_mask=odd([data])),
    "positions": lambda data: labkit.load_gpt2().run([[1, 2]], position_ids=odd([data])),
    "ids to decode": lambda data: tokenizer().decode(data),
    "ids to bytes": lambda data: tokenizer().decode_bytes(data),
    "ids one by one": lambda data: tokenizer().incremental_decoder().feed(data),
    "a text to encode": lambda data: tokenizer().encode(data),
    "a study's ids": lambda data: dtype_study(ids=data, tokens=1),
    "a study's text": lambda data: dtype_study(text=data, tokens=1),
}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_neither_text_nor_ids(name: str, kind: Callable[[bytes], object]) -> None:
    told = "bytes are neither a text nor ids|a text must be a str|not a whole number|not a text to stop at"
    with pytest.raises(LabkitError, match=told):
        BYTES[name](kind(b"\x01\x01"))


def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(ArgumentTypeError, match=r"only dense tensors with values can be written .got nested"):
        labkit.save_safetensors({"a": nested}, "never")


def test_the_cause_of_an_engine_that_raised_is_kept() -> None:
    with pytest.raises(ArgumentError) as caught:
        labkit.verify_callable(raising, ids=[[1, 2]])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_rows_of_tensors_and_arrays_are_ids() -> None:
    for rows in (torch.tensor([[5, 6]]), np.array([[5, 6]]), [torch.tensor([5, 6])], [np.array([5, 6], np.uint16)]):
        assert labkit.verify(ids=odd(rows), tokens=0).prompts[0].ids == (5, 6)
