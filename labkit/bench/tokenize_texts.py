"""Texts to measure tokenizers on, made from what is installed: English, code, many scripts, and hostile ones.

In: nothing. Out: texts of a given size. No text is carried: docstrings are English, the standard library is code, and
babel's locale data, where it is installed, are short phrases in over a hundred languages.
"""

import ast
import base64
import random
import string
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SIZE: Final = 4_000_000  # bytes
ENGLISH_PACKAGES: Final = ("torch", "numpy", "transformers", "matplotlib")


def english(size: int = SIZE) -> str:
    """Docstrings, each once."""
    return _joined(_docstrings(), size, "\n\n")


def code(size: int = SIZE) -> str:
    """Source files of the standard library."""
    return _joined((text for text, _ in _sources(Path(sysconfig.get_path("stdlib")))), size, "\n")


def many_scripts(size: int = SIZE) -> str | None:
    """Phrases of babel's locales, language by language; None where babel is not installed."""
    if find_spec("babel") is None:
        return None
    return _joined(_phrases(), size, " ")


def hostile(length: int, *, seed: int = 0) -> dict[str, str]:
    """Texts that tokenizers find hard, of about ``length`` bytes each."""
    source = random.Random(seed)
    return {
        "one word of random letters": "".join(source.choices(string.ascii_lowercase, k=length)),
        "one letter over and over": "a" * length,
        "spaces": " " * length,
        "random bytes as Latin-1": source.randbytes(length // 2).decode("latin-1"),
        "base64": base64.b64encode(source.randbytes(length * 3 // 4)).decode("ascii"),
        "digits": "".join(source.choices(string.digits, k=length)),
    }


def _docstrings() -> Iterator[str]:
    seen: set[str] = set()
    roots = [Path(sysconfig.get_path("stdlib"))]
    for name in ENGLISH_PACKAGES:
        spec = find_spec(name)
        roots += [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for root in roots:
        for _, tree in _sources(root):
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = ast.get_docstring(node)
                    if text and text not in seen:
                        seen.add(text)
                        yield text


def _sources(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.relative_to(root).parts:
            continue
        try:
            text = path.read_text(encoding="utf-8")
            yield text, ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            continue  # test data of the library: broken on purpose


def _phrases() -> Iterator[str]:
    from babel import localedata

    for name in sorted(localedata.locale_identifiers()):
        if "_" not in name:
            yield from _strings(localedata.load(name, merge_inherited=False))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)


def _joined(parts: Iterator[str], size: int, between: str) -> str:
    """Parts until they hold ``size`` bytes."""
    chosen, total = [], 0
    for part in parts:
        chosen.append(part)
        total += len(part.encode("utf-8")) + len(between)
        if total >= size:
            break
    return between.join(chosen).encode("utf-8")[:size].decode("utf-8", "ignore")
