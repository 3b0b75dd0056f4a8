"""Windows on a running forward: values in order, errors handed over, nothing left running."""

import threading
import time
from collections.abc import Callable

import pytest
import torch

from labkit.config import GPT2Config
from labkit.verification.chain import Inputs, build_chain
from labkit.verification.reference import build_reference, parameters_of
from labkit.verification.streams import last_use, streamed, until_block_ends
from tests.oracles import random_checkpoint

Record = Callable[[str, torch.Tensor], None]


@pytest.fixture(scope="module")
def stages() -> dict[str, object]:
    model = random_checkpoint.build(n_layer=2)
    exact = build_reference(model.config.to_dict(), parameters_of(model))
    config = GPT2Config(vocab_size=97, n_positions=32, n_embd=24, n_layer=2, n_head=3)
    return dict(build_chain(config, parameters_of(exact), Inputs(torch.tensor([[1, 2, 3]]))))


def test_values_come_by_name_and_are_dropped_when_told(stages: dict[str, object]) -> None:
    def forward(record: Record) -> None:
        for number, name in enumerate(stages):
            record(name, torch.tensor(float(number)))

    with streamed(stages, forward) as (window,):  # type: ignore[arg-type]
        assert float(window["embed"]) == 2.0
        assert float(window["wte"]) == 0.0
        window.forget({"wte"})
        assert float(window["logits"]) == len(stages) - 1
        with pytest.raises(KeyError):
            window["wte"]
    assert threading.active_count() == 1 or not any("_run" in t.name for t in threading.enumerate())


@pytest.mark.parametrize("ahead", [True, False])
def test_a_forward_runs_ahead_by_one_tap_or_not_at_all(stages: dict[str, object], *, ahead: bool) -> None:
    computed: list[str] = []

    def forward(record: Record) -> None:
        for name in stages:
            computed.append(name)
            record(name, torch.zeros(1))

    with streamed(stages, forward, ahead=ahead) as (window,):  # type: ignore[arg-type]
        names = list(stages)
        for number, name in enumerate(names[:6]):
            window[name]
            time.sleep(0.02)
            assert len(computed) <= number + (3 if ahead else 1)
        window[names[-1]]
        assert computed == names
        with pytest.raises(KeyError):
            window["nothing"]
    with streamed(stages, forward, ahead=ahead):  # type: ignore[arg-type]
        pass  # ends although nothing was asked for


def test_an_error_in_the_forward_reaches_the_reader_and_an_early_end_stops_the_forward(
    stages: dict[str, object],
) -> None:
    ended = threading.Event()

    def failing(record: Record) -> None:
        record("wte", torch.zeros(1))
        raise ValueError("no more")

    def endless(record: Record) -> None:
        try:
            while True:
                record("wte", torch.zeros(1))
        finally:
            ended.set()

    with streamed(stages, failing, endless) as (broken, running):  # type: ignore[arg-type]
        assert float(running["wte"]) == 0.0
        with pytest.raises(ValueError, match="no more"):
            broken["embed"]
    assert ended.wait(timeout=5)


def test_what_is_forgotten_is_never_asked_for_again(stages: dict[str, object]) -> None:
    everything = set(stages)
    done = last_use(stages, everything)  # type: ignore[arg-type]
    assert set().union(*done.values()) == everything
    gone: set[str] = set()
    for tap, stage in stages.items():
        assert not gone & {tap, *stage.inputs}  # type: ignore[attr-defined]
        gone |= done[tap]
    kept = until_block_ends(done)
    assert set().union(*kept.values()) == everything
    assert not kept["h.0.attn.q"]
    assert "h.0.ln_1" in kept["h.0.resid_post"]
    assert "h.0.resid_post" in kept["h.1.resid_post"]
