"""The installed package is found from wherever Python is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORT = "import labkit; print(labkit.__file__, labkit.load_gpt2.__module__)"


@pytest.mark.parametrize("clone", ["empty folder", "link to the clone"])
def test_a_folder_named_labkit_in_the_current_directory_hides_nothing(clone: str, tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "labkit"
    if clone == "empty folder":
        folder.mkdir()
    else:
        folder.symlink_to(root, target_is_directory=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(root / "labkit" / "__init__.py"), "labkit.load"]
