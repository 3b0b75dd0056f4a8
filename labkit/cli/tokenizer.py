"""The commands of the tokenizer: encode, decode, merges."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labkit.cli.console import complain
from labkit.errors import ArgumentError, FileAccessError, MissingFileError, TextError

if TYPE_CHECKING:
    from labkit.tokenizer import Tokenizer

Folder = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", "-t", metavar="FOLDER", help="A folder with the tokenizer's files; GPT-2's unless given."
    ),
]
Source = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read from a file; - is standard input.")
]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to a file; - is standard output.")]
Special = Annotated[
    Literal["plain", "huggingface", "tiktoken"],
    typer.Option(
        help="Special tokens in the text: plain text, ids as Hugging Face finds them, or an error (tiktoken)."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("encode")(encode)
    app.command("decode")(decode)
    app.command("merges")(merges)


def encode(
    text: Annotated[str | None, typer.Argument(help="The text; standard input unless given.")] = None,
    tokenizer: Folder = None,
    file: Source = None,
    json_to: Json = None,
    special_tokens: Special = "plain",
    allow: Annotated[list[str] | None, typer.Option(help="Allow this special token; others are refused.")] = None,
    show: Annotated[bool, typer.Option("--show", help="A table of tokens, bytes and places.")] = False,  # noqa: FBT002
) -> None:
    """The ids of a text."""
    loaded = load(tokenizer)
    words = given_text(text, file)
    meaning = tuple(allow) if allow else special_tokens
    if json_to is not None:
        from labkit.report.tokenizer import encoding_to_json

        write_json(encoding_to_json(loaded.explain(words, special_tokens=meaning)), json_to)
    elif show:
        from rich.console import Console

        from labkit.report.tokenizer import render_encoding

        Console().print(render_encoding(loaded.explain(words, special_tokens=meaning)))
    else:
        print(" ".join(map(str, loaded.encode(words, special_tokens=meaning))))


def decode(
    ids: Annotated[list[str] | None, typer.Argument(help="The ids; standard input unless given.")] = None,
    tokenizer: Folder = None,
    file: Source = None,
    json_to: Json = None,
    errors: Annotated[
        Literal["replace", "strict", "ignore"], typer.Option(help="What to do with bytes that are not UTF-8.")
    ] = "replace",
) -> None:
    """The text of some ids."""
    loaded = load(tokenizer)
    listed = parse_ids(" ".join(ids) if ids else given_text(None, file))
    data = loaded.decode_bytes(listed)
    text = loaded.decode(listed, errors)
    if json_to is not None:
        write_json({"ids": listed, "text": text, "bytes": data.hex()}, json_to)
    elif sys.stdout.isatty():
        print(text)
    else:
        sys.stdout.buffer.write(text.encode("utf-8"))
        sys.stdout.buffer.flush()


def merges(
    text: Annotated[str | None, typer.Argument(help="The text; standard input unless given.")] = None,
    tokenizer: Folder = None,
    file: Source = None,
    json_to: Json = None,
) -> None:
    """Every merge of a text, piece by piece: candidates, ranks, winners."""
    loaded = load(tokenizer)
    pieces = loaded.pieces(given_text(text, file))
    every = [(piece, list(loaded.merge_steps(piece.data))) for piece in pieces]
    if json_to is not None:
        from labkit.report.tokenizer import piece_to_json, step_to_json

        rows = [{**piece_to_json(piece), "steps": [step_to_json(step) for step in steps]} for piece, steps in every]
        write_json({"pieces": rows}, json_to)
        return
    from rich.console import Console

    from labkit.report.tokenizer import render_merges

    console = Console()
    for piece, steps in every:
        ids = loaded.encode_piece(piece.data)
        console.print(render_merges(piece, steps, ids))
        console.print()


def load(folder: Path | None) -> "Tokenizer":
    """The tokenizer of a folder, or GPT-2's; what was odd in its files is said on standard error."""
    from labkit.tokenizer import Tokenizer

    tokenizer = Tokenizer.gpt2() if folder is None else Tokenizer.from_folder(folder)
    for note in tokenizer.notes:
        complain(f"note: {note}")
    return tokenizer


def given_text(text: str | None, file: Path | None) -> str:
    """The argument, the file, or standard input."""
    if text is not None and file is not None:
        raise ArgumentError("give a text or --file, not both")
    if text is not None:
        return text
    if file is not None and str(file) != "-":
        return _decoded(read_bytes(file), str(file))
    if sys.stdin.isatty():
        raise ArgumentError("no text: give one as argument, with --file, or on standard input")
    return _decoded(sys.stdin.buffer.read(), "standard input")


def read_bytes(path: Path) -> bytes:
    """A file's bytes."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError("there is no such file", where=path) from None
    except OSError as error:
        raise FileAccessError(f"cannot be read ({error.strerror})", where=path) from None


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError("is not UTF-8", where=f"{where}, byte {error.start}", got=hex(data[error.start])) from None


def parse_ids(text: str) -> list[int]:
    """Whole numbers between white space, commas or brackets.

    >>> parse_ids("[15496, 11]")
    [15496, 11]
    """
    ids = []
    for word in text.translate({ord(c): " " for c in ",[]"}).split():
        if not word.removeprefix("-").isdecimal():
            raise ArgumentError("is no id", where=repr(word), expected="whole numbers")
        ids.append(int(word))
    return ids


def write_json(fields: dict[str, Any] | Iterable[Any], target: str) -> None:
    """JSON on standard output, or in a file."""
    text = json.dumps(fields, ensure_ascii=False, indent=1)
    if target == "-":
        print(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise FileAccessError(f"cannot be written ({error.strerror})", where=target) from None
