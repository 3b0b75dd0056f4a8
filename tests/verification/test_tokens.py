"""Where greedy texts part, the margin decides: a fault or a coin flip."""

import pytest
import torch

from labkit.verification.reference import load_reference
from labkit.verification.tokens import compare_tokens, greedy_reference
from tests.oracles import random_checkpoint

PROMPT = (5, 17, 3)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("random")
    random_checkpoint.write(folder, seed=5)
    return load_reference(folder)


def test_greedy_reference_takes_the_largest_logit_each_time(truth: object) -> None:
    ids = list(PROMPT)
    for _ in range(6):
        ids.append(int(truth(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))  # type: ignore[operator]
    assert greedy_reference(truth, PROMPT, 6) == tuple(ids[3:])
    assert greedy_reference(truth, PROMPT, 0) == ()


def test_a_parting_within_rounding_is_a_coin_flip_and_beyond_it_a_fault(truth: object) -> None:
    expected = greedy_reference(truth, PROMPT, 3)
    logits = truth(input_ids=torch.tensor([[*PROMPT, expected[0]]])).logits[0, -1]  # type: ignore[operator]
    second = int(logits.topk(2).indices[1])
    margin = float(logits[expected[1]] - logits[second])
    parted = (expected[0], second, 0)
    for explained, verdict in ((margin * 0.51, "coin flip"), (margin * 0.49, "differs")):
        result = compare_tokens(parted, expected, PROMPT, truth, explained)
        assert (result.verdict, result.parted_at) == (verdict, 1)
        assert result.margin == pytest.approx(margin)
    assert compare_tokens(expected, expected, PROMPT, truth, 0.0).verdict == "same"
