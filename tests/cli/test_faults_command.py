"""``labkit faults``: the list of names, and what is said of a name that is none of them."""

import json
from pathlib import Path

import pytest

from labkit.cli.main import run
from labkit.verification.faults import FAULTS

Capture = pytest.CaptureFixture[str]


def test_the_list_has_every_fault_with_its_place_and_what_it_does(capsys: Capture) -> None:
    assert run(["faults", "--list"]) == 0
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert [row.split()[0] for row in rows] == list(FAULTS)
    assert next(row for row in rows if row.startswith("no-mask")).split(maxsplit=2)[1:] == [
        "h.{i}.attn.pattern",
        "the causal mask is left out",
    ]


def test_the_list_as_json(capsys: Capture) -> None:
    assert run(["faults", "--list", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["faults"]
    assert [row["name"] for row in rows] == list(FAULTS)
    assert rows[0] == {
        "name": "ids-off-by-one",
        "planted_at": "wte",
        "place": "model",
        "mistake": "each token is looked up one row too far down in wte",
    }


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("quick-gelu", "'sigmoid-gelu'"),
        ("gelu-erf:2", "did you mean 'erf-gelu'?"),
        ("wrong-epsilon", "'epsilon-1e-8'"),
        ("erf-gleu", "did you mean 'erf-gelu'?"),
        ("casual_mask", "'no-mask'"),
        ("zzzz", "no fault named 'zzzz'; `labkit faults --list`"),
    ],
)
def test_an_unknown_fault_is_told_with_near_names_and_the_list(name: str, near: str, capsys: Capture) -> None:
    assert run(["verify", "--plant", name]) == 2
    err = capsys.readouterr().err
    assert near in err
    assert err.endswith("`labkit faults --list` names all\n")


def test_every_command_that_plants_points_to_the_list(tmp_path: Path, capsys: Capture) -> None:
    for arguments in (
        ["faults", "--only", "nothing"],
        ["invariants", "--plant", "nothing"],
        ["trace", "-o", str(tmp_path / "a.safetensors"), "--engine", "labkit", "--plant", "nothing"],
    ):
        assert run(arguments) == 2
        assert "no fault named 'nothing'; `labkit faults --list` names all" in capsys.readouterr().err
