"""Makes unicode16.py, the frozen tables of letters, numbers and white space, by asking the two reference tokenizers.

    python -m labkit.tokenizer.probe_unicode           # compares the committed tables with what is installed
    python -m labkit.tokenizer.probe_unicode --write   # writes unicode16.py anew

tiktoken and tokenizers carry their Unicode tables compiled in; both must give the same answer for every scalar
value, or nothing is written. The ``regex`` module is not asked: its tables follow newer Unicode versions.
"""

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

TABLES = {"LETTERS": r"\p{L}", "NUMBERS": r"\p{N}", "SPACES": r"\s"}
SCALARS = [*range(0xD800), *range(0xE000, 0x110000)]


def ask_tiktoken(pattern: str) -> set[int]:
    """The scalar values that tiktoken's engine matches with a one-character pattern."""
    import tiktoken

    engine = tiktoken.Encoding(
        "probe", pat_str=pattern, mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={}
    )
    matched = engine.decode_bytes(engine.encode_ordinary("".join(map(chr, SCALARS))))
    return set(map(ord, matched.decode("utf-8")))


def ask_tokenizers(pattern: str) -> set[int]:
    """The scalar values that tokenizers' engine matches with a one-character pattern."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    split = Split(Regex(pattern), behavior="removed", invert=True)
    found: set[int] = set()
    for start in range(0, len(SCALARS), 4096):
        text = "".join(map(chr, SCALARS[start : start + 4096]))
        found.update(ord(character) for run, _ in split.pre_tokenize_str(text) for character in run)
    return found


def to_ranges(values: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted inclusive ranges.

    >>> to_ranges([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    ranges: list[tuple[int, int]] = []
    for value in sorted(values):
        if ranges and ranges[-1][1] == value - 1:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    return ranges


def render_ranges(ranges: Iterable[tuple[int, int]]) -> str:
    """Ranges as text, in hexadecimal.

    >>> render_ranges([(0x41, 0x5A), (0xAA, 0xAA)])
    '41-5A AA'
    """
    return " ".join(f"{low:X}-{high:X}" if high > low else f"{low:X}" for low, high in ranges)


def probe() -> dict[str, str]:
    """The three tables as text, agreed on by both reference tokenizers."""
    tables = {}
    for name, pattern in TABLES.items():
        ours, theirs = ask_tiktoken(pattern), ask_tokenizers(pattern)
        if ours != theirs:
            odd = sorted(ours ^ theirs)
            raise SystemExit(f"{name}: tiktoken and tokenizers differ at {len(odd)} code points, first U+{odd[0]:04X}")
        tables[name] = render_ranges(to_ranges(ours))
    return tables


def render_module(tables: dict[str, str]) -> str:
    """The source text of unicode16.py."""
    parts = [
        '"""Letters, numbers and white space as tiktoken and tokenizers see them (Unicode 16): inclusive ranges, '
        "in hexadecimal.\n\n"
        'Made by ``python -m labkit.tokenizer.probe_unicode --write``; not to be edited by hand.\n"""\n'
    ]
    for name, text in tables.items():
        parts.append(f'{name} = """\n{textwrap.fill(text, 118, break_on_hyphens=False)}\n"""\n')
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write or compare; the exit code is 1 where the committed tables differ from the installed tokenizers."""
    target = Path(__file__).with_name("unicode16.py")
    source = render_module(probe())
    if "--write" in arguments:
        target.write_text(source, encoding="utf-8")
        print(f"wrote {target.name}")
        return 0
    same = target.read_text(encoding="utf-8") == source
    print("unicode16.py agrees with tiktoken and tokenizers" if same else "unicode16.py differs from what is installed")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
