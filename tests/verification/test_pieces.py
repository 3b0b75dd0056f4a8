"""Judged in pieces or whole, a long prompt gets the same results, places and findings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit.load import load_gpt2
from labkit.verification import pieces
from labkit.verification.chain import Inputs, build_chain, left_padded
from labkit.verification.faults import parse_fault
from labkit.verification.pieces import Prefix, pieces_of
from labkit.verification.precision import Precision
from labkit.verification.standard import Case, Standard
from tests.oracles import random_checkpoint

POS, HEADS = 24, 4
ONE_HEAD = POS * POS
GENERATOR = torch.Generator().manual_seed(5)
ROWS = torch.randint(97, (2, POS), generator=GENERATOR).tolist()
Taps = dict[str, Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random")
    random_checkpoint.write(path, seed=21, n_embd=48, n_head=HEADS, n_positions=32)
    return path


@pytest.fixture(scope="module")
def standard(folder: Path) -> Standard:
    return Standard(folder, load_gpt2(folder).config, Precision())


def _planted(text: str) -> Callable[[Path, Inputs], Taps]:
    def run(folder: Path, inputs: Inputs) -> Taps:
        model = load_gpt2(folder)
        if text:
            fault, block = parse_fault(text)
            model = fault.plant(model, block)
        mask, positions = inputs.attention_mask, inputs.position_ids
        return dict(model.run(inputs.ids, taps="all", attention_mask=mask, position_ids=positions).taps)

    return run


def _changed(tap: str, at: tuple[int, ...], by: float) -> Callable[[Path, Inputs], Taps]:
    def run(folder: Path, inputs: Inputs) -> Taps:
        taps = _planted("")(folder, inputs)
        taps[tap] = taps[tap].clone()
        taps[tap][at] += by
        return taps

    return run


def _short(tap: str, axis: int) -> Callable[[Path, Inputs], Taps]:
    def run(folder: Path, inputs: Inputs) -> Taps:
        taps = _planted("")(folder, inputs)
        taps[tap] = taps[tap].narrow(axis, 0, taps[tap].shape[axis] - 1)
        return taps

    return run


CANDIDATES = {
    "clean": _planted(""),
    "no mask": _planted("no-mask:1"),
    "no scale": _planted("scale-missing:0"),
    "softmax over queries": _planted("softmax-over-queries:1"),
    "last head, last position": _changed("h.1.attn.pattern", (0, HEADS - 1, POS - 1, 3), 1e-3),
    "third head of the mixed values": _changed("h.0.attn.z", (0, 2, POS - 2, 5), 1e-2),
    "scores of the second head": _changed("h.2.attn.scores", (0, 1, 9, 4), 1e-2),
    "last row of the logits": _changed("logits", (0, POS - 1, 90), 1e-2),
    "not a number": _changed("h.1.attn.z", (0, 3, 7, 2), torch.nan),
    "a head too few": _short("h.1.attn.scores", 1),
    "a row of logits too few": _short("logits", 1),
}


def _judge(standard: Standard, taps: Taps, inputs: Inputs, numel: int, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(pieces, "PIECE_NUMEL", numel)
    return standard.judge(taps, inputs)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", CANDIDATES)
def test_pieces_change_nothing(
    folder: Path, standard: Standard, name: str, monkeypatch: pytest.MonkeyPatch, *, padded: bool
) -> None:
    """Pieces of one head and of a few rows, beside everything at once."""
    inputs = left_padded([ROWS[0], ROWS[1][:17]]) if padded else Inputs(torch.tensor(ROWS[:1]))
    taps = CANDIDATES[name](folder, inputs)
    whole = _judge(standard, taps, inputs, 1 << 30, monkeypatch)
    cut = _judge(standard, taps, inputs, 2 * ONE_HEAD, monkeypatch)
    for one, other in zip(whole.stages, cut.stages, strict=True):
        assert (one.name, one.verdict, one.cause, one.shape) == (other.name, other.verdict, other.cause, other.shape)
        if one.cause:
            assert (one.worst, one.difference.worst) == (other.worst, other.difference.worst), one.name
            assert (one.local_worst, one.used) == (other.local_worst, pytest.approx(other.used, rel=1e-6)), one.name
    assert [(f.where, f.cause, f.kind) for f in whole.findings] == [(f.where, f.cause, f.kind) for f in cut.findings]
    assert cut.controls == replace(whole.controls, planted=cut.controls.planted, chain_error=cut.controls.chain_error)
    assert cut.controls.failures == ()


def test_every_part_is_in_one_piece(standard: Standard, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Inputs(torch.tensor(ROWS[:1]))
    stages = build_chain(standard.config, standard.weights, inputs)
    sizes = {"heads": HEADS, "vocabulary": 97}
    monkeypatch.setattr(pieces, "PIECE_NUMEL", 3 * ONE_HEAD)
    for tap in ("h.0.attn.scores", "h.2.attn.pattern", "h.1.attn.z"):
        found = pieces_of(stages[tap], stages[tap].inputs, inputs, **sizes)
        assert [each.part for each in found] == [slice(0, 3), slice(3, 6)]
        assert torch.cat([each.taps({"t": torch.arange(HEADS)[None]})["t"] for each in found], 1).tolist() == [
            [0, 1, 2, 3]
        ]
    assert [each.part for each in pieces_of(stages["logits"], ("ln_f",), inputs, **sizes)] == [
        slice(0, 17),
        slice(17, 34),
    ]
    (only,) = pieces_of(stages["h.0.attn.scores"], ("h.0.ln_1",), inputs, **sizes)
    assert only.whole
    (only,) = pieces_of(stages["h.0.mlp.pre"], ("h.0.ln_2",), inputs, **sizes)
    assert only.whole


def test_the_first_positions_are_a_forward_of_their_own(folder: Path) -> None:
    model, inputs = load_gpt2(folder), Inputs(torch.tensor(ROWS[:1]))
    prefix = Prefix(7, Inputs(inputs.ids[:, :7]))
    cut = prefix.taps(model.run(inputs.ids, taps="all").taps)
    for name, value in model.run(inputs.ids[:, :7], taps="all").taps.items():
        torch.testing.assert_close(cut[name], value, rtol=1e-4, atol=1e-5)
