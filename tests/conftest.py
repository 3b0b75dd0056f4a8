"""What every test shares: hypothesis profiles, one torch thread, and the project's folders."""

import os
from pathlib import Path

import hypothesis
import pytest

# On a busy machine threads that wait for one another make the smallest operation take tens of milliseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

hypothesis.settings.register_profile(
    "labkit",
    max_examples=int(os.environ.get("LABKIT_EXAMPLES", "100")),
    deadline=None,
    derandomize="LABKIT_RANDOM" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("labkit")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def embedded() -> Path:
    """The embedded checkpoint's folder."""
    return ROOT / "labkit" / "data" / "tiny"


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """The folder of shared cases beside the project; tests of them are skipped where it is absent."""
    cases = SHARED / "cases"
    if not cases.is_dir():
        pytest.skip("../shared/cases is not beside this clone")
    return cases


ALLOWED_SKIPS = {
    "the released GPT-2 is not here": "its weights are not part of the project",
    "no CUDA device": "needs such hardware",
    "no MPS device": "needs such hardware",
    "../shared/cases": "cases beside the clone; the project carries its own",
    "no C compiler": "the engine in C is documentation, the package needs no compiler",
    "no Rust compiler": "the same for the one in Rust",
    "no Chromium browser here": ".ci/run installs one where it can, and then requires it",
    "Linux": "counts memory or mounts a disk as only Linux does",
    "does not let root mount": "a sandbox may forbid mounting a small disk",
    "needs POSIX users": "file modes of another system",
    "reads no checkpoint": "this notebook has no CHECKPOINT to vary",
}
"""Part of a skip's reason -> why it may happen. On CI any other skip fails the run: a skip must not hide a lack."""

_skipped: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember why a test was skipped."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.add(report.longrepr[2])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """On CI, a skip that is not on the list fails the run."""
    unlisted = [reason for reason in sorted(_skipped) if not any(part in reason for part in ALLOWED_SKIPS)]
    if unlisted and os.environ.get("CI"):
        print("\nskips that are not on the list in tests/conftest.py:", *unlisted, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
