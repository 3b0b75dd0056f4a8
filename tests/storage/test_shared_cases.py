"""Every file and snapshot of ../shared/cases gets its verdict, in both modes; skipped where the folder is not there."""

import json
import warnings
from pathlib import Path

from labkit.errors import FormatError
from labkit.storage import StorageWarning, open_safetensors, open_snapshot, read_header

MODES = ("mapped", "copy")


def test_files(shared_cases: Path) -> None:
    cases = json.loads((shared_cases / "safetensors" / "manifest.json").read_text())["cases"]
    assert len(cases) == 201
    wrong = []
    for case in cases:
        path = shared_cases / "safetensors" / case["file"]
        outcomes = {outcome(path, mode) for mode in MODES} | {header_outcome(path)}
        if outcomes != {case["verdict"]}:
            wrong.append((case["name"], case["verdict"], outcomes))
    assert wrong == []


def test_snapshots(shared_cases: Path) -> None:
    cases = json.loads((shared_cases / "shards" / "manifest.json").read_text())["cases"]
    assert len(cases) == 17
    wrong = []
    for case in cases:
        folder = shared_cases / "shards" / case["dir"]
        for mode in MODES:
            try:
                with open_snapshot(folder, mode=mode) as snapshot:
                    verdict = "accept" if len(snapshot) == 16 else "reject"
            except FormatError as error:
                verdict = "reject" if str(folder) in str(error) else "refused without naming the folder"
            if verdict != case["verdict"]:
                wrong.append((case["name"], mode, verdict))
    assert wrong == []


def outcome(path: Path, mode: str) -> str:
    try:
        with open_safetensors(path, mode=mode) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", StorageWarning)
            for name in file:
                file.bytes(name)
    except FormatError as error:
        return "reject" if str(path) in str(error) else "refused without naming the file"
    return "accept"


def header_outcome(path: Path) -> str:
    try:
        read_header(path)
    except FormatError:
        return "reject"
    return "accept"
