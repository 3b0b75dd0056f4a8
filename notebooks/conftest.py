"""nbval's own wait for an output is five seconds, and no option raises it; a cell's limit is --nbval-cell-timeout."""

import pytest

OUTPUT_SECONDS = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let every notebook cell be silent for as long as it may run."""
    for item in items:
        if hasattr(item, "output_timeout"):
            item.output_timeout = OUTPUT_SECONDS
