"""The stepper's views equal the algorithm's own steps, and its state goes round."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from labkit.errors import ArgumentError
from labkit.tokenizer import Tokenizer, to_symbols
from labkit.widgets import MergeStepper
from labkit.widgets.merge_view import merge_view

GPT2 = Tokenizer.gpt2()


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=24))
def test_every_state_is_a_step_of_the_algorithm(text: str) -> None:
    for number, piece in enumerate(GPT2.pieces(text)):
        view = merge_view(text, number, GPT2)
        steps = list(GPT2.merge_steps(piece.data))
        assert len(view["states"]) == len(steps) + 1
        for state, step in zip(view["states"], steps, strict=False):
            assert [symbol["text"] for symbol in state["symbols"]] == [to_symbols(each) for each in step.before]
            assert [each["rank"] for each in state["candidates"]] == [each.rank for each in step.candidates]
            assert state["places"] == list(step.places)
        last = view["states"][-1]
        assert [symbol["id"] for symbol in last["symbols"]] == GPT2.encode_piece(piece.data)
        assert bytes.fromhex("".join(s["bytes"] for s in last["symbols"]).replace(" ", "")) == piece.data


def test_world_merges_by_rank() -> None:
    stepper = MergeStepper(" world")
    ranks = [state["candidates"][0]["rank"] for state in stepper.views[0]["states"][:-1]]
    assert ranks == [10, 17, 79, 220, 739]


def test_a_new_text_from_the_page_gives_a_new_view() -> None:
    stepper = MergeStepper("a")
    stepper.set_state({"panels": [{"text": "日本", "piece": 0, "step": 1}]})  # what a comm message does
    assert [piece["ids"] for piece in stepper.views[0]["pieces"]] == [[33768, 98, 17312, 105]]
    assert repr(stepper) == "MergeStepper('日本', piece 0, step 1 of 2)"


def test_moving_the_slider_sends_no_new_view() -> None:
    stepper = MergeStepper(" world")
    sent: list[object] = []
    stepper.observe(lambda change: sent.append(change), names="views")
    stepper.set_state({"panels": [{"text": " world", "piece": 0, "step": 3}]})
    assert sent == []


def test_what_goes_wrong_is_shown_and_the_next_text_clears_it() -> None:
    stepper = MergeStepper("a")
    stepper.set_state({"panels": [{"text": "x" * 300, "piece": 0, "step": 0}]})
    assert "too long to step through" in stepper.error
    stepper.set_state({"panels": [{"text": "b", "piece": 0, "step": 0}]})
    assert stepper.error == ""


def test_an_error_of_ours_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("labkit.widgets.merge_stepper.merge_view", broken)
    assert MergeStepper("a").error == "internal error, RuntimeError: boom"


def test_an_empty_text_has_no_pieces() -> None:
    stepper = MergeStepper("")
    assert stepper.error == ""
    assert stepper.views[0]["pieces"] == []
    assert "<table>" not in stepper.twin()


def test_the_twin_says_every_merge_and_escapes_what_was_typed() -> None:
    twin = MergeStepper("<b>x</b>").twin()
    assert "<b>x</b>" not in twin
    assert "&lt;b&gt;x&lt;/b&gt;" in twin
    assert "<td>220</td>" in MergeStepper(" world").twin()


def test_the_bundle_holds_a_twin_and_a_short_repr() -> None:
    data, _metadata = MergeStepper(" world")._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert len(data["text/plain"]) < 120


def test_two_texts_side_by_side() -> None:
    stepper = MergeStepper("lowest", beside=" lowest")
    assert [view["text"] for view in stepper.views] == ["lowest", " lowest"]


def test_state_goes_round() -> None:
    stepper = MergeStepper("naïve 日本", piece=1, step=1)
    assert json.loads(stepper.state)["text"] == "naïve 日本"
    assert repr(MergeStepper.from_state(stepper.state)) == repr(stepper)


@pytest.mark.parametrize("state", ["", "{}", "[1]", '{"format": "labkit-merges-1", "text": 3, "piece": 0, "step": 0}'])
def test_a_string_that_is_no_state_is_refused(state: str) -> None:
    with pytest.raises(ArgumentError, match="state"):
        MergeStepper.from_state(state)


def test_a_cell_run_again_shows_what_was_there() -> None:
    MergeStepper("a", key="again").panels = [{"text": "b", "piece": 0, "step": 0}]
    assert MergeStepper("a", key="again").panels[0]["text"] == "b"
    assert MergeStepper("a", key="other").panels[0]["text"] == "a"
    assert MergeStepper("a").panels[0]["text"] == "a"
