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
