"""The commands of the tokenizer: encode, decode, merges, parity, train-bpe, bench tokenize."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labkit.cli.bench import bench
from labkit.cli.console import progress, show, show_record, show_text, tell, write_json
from labkit.cli.prompts import parse_ids
from labkit.errors import ArgumentError, TextError
from labkit.outside import read_regular, safe
from labkit.words import counted

if TYPE_CHECKING:
    from labkit.tokenizer import Tokenizer
    from labkit.tokenizer.specials import SpecialTokens
    from labkit.tokenizer.train import TrainStep

Folder = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        "-t",
        metavar="FOLDER",
        help="A folder with the tokenizer's files (default: GPT-2's own vocabulary).",
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

VOCABULARY_HELP = (
    "Without --tokenizer GPT-2's own vocabulary is used. The embedded checkpoint, which verify and generate run by "
    "default, has another: --tokenizer labkit/data/tiny (`labkit doctor` shows where it lies)."
)
MOST_STEPPED = 2000  # pieces: showing the merges of each takes some milliseconds
LONGEST_STEPPED = 1000  # bytes: each step shows all symbols of its piece


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (encode, decode, merges):
        app.command(epilog=VOCABULARY_HELP)(command)
    app.command("parity")(parity)
    app.command("train-bpe")(train_bpe)
    bench.command("tokenize")(bench_tokenize)


def encode(
    text: Annotated[str | None, typer.Argument(help="The text; standard input unless given.")] = None,
    tokenizer: Folder = None,
    file: Source = None,
    json_to: Json = None,
    special_tokens: Special = "plain",
    allow: Annotated[list[str] | None, typer.Option(help="Allow this special token; others are refused.")] = None,
    *,
    table: Annotated[bool, typer.Option("--show", help="A table of tokens, bytes and places.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Encode --file into this .npy or .safetensors file, of any size.")
    ] = None,
) -> None:
    """The ids of a text."""
    loaded = load(tokenizer)
    if out is not None:
        encode_to_file(loaded, file, out, tuple(allow) if allow else special_tokens)
        return
    words = given_text(text, file)
    meaning = tuple(allow) if allow else special_tokens
    if json_to is not None:
        from labkit.report.tokenizer import encoding_to_json

        write_json(encoding_to_json(loaded.explain(words, special_tokens=meaning)), json_to)
    elif table:
        from labkit.report.tokenizer import render_encoding

        show(render_encoding(loaded.explain(words, special_tokens=meaning)))
    else:
        print(" ".join(map(str, loaded.encode(words, special_tokens=meaning))))


def encode_to_file(tokenizer: "Tokenizer", source: Path | None, target: Path, special_tokens: "SpecialTokens") -> None:
    """Encode one file into another."""
    if source is None:
        raise ArgumentError("--out needs --file")
    with progress() as say:
        result = tokenizer.encode_file(
            source,
            target,
            special_tokens=special_tokens,
            progress=lambda done, total: say(f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"),
        )
    print(
        f"{safe(result.path)}: {counted(result.tokens, 'id')} ({result.dtype}) from {counted(result.source_bytes, 'byte')}"
    )


def decode(
    ids: Annotated[list[str] | None, typer.Argument(help="The ids; standard input unless given.")] = None,
    tokenizer: Folder = None,
    file: Source = None,
    json_to: Json = None,
    errors: Annotated[
        Literal["replace", "strict", "ignore"], typer.Option(help="What to do with bytes that are not UTF-8.")
    ] = "replace",
) -> None:
    """The text of some ids; into a pipe or file its exact bytes, on a terminal with a newline after them."""
    loaded = load(tokenizer)
    words = " ".join(ids) if ids else given_text(None, file)
    listed = parse_ids(words) if words.strip() else []  # an empty text has no ids
    data = loaded.decode_bytes(listed)
    text = loaded.decode(listed, errors)
    if json_to is not None:
        write_json({"ids": listed, "text": text, "bytes": data.hex()}, json_to)
    elif sys.stdout.isatty():
        show_text(f"{text}\n")
    else:  # the bytes themselves, without a newline that no id stands for
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
    if len(pieces) > MOST_STEPPED:
        limit = f"at most {MOST_STEPPED:,} pieces"
        raise ArgumentError("the text is too long to show its merges", expected=limit, got=f"{len(pieces):,}")
    longest = max(pieces, key=lambda piece: len(piece.data), default=None)
    if longest is not None and len(longest.data) > LONGEST_STEPPED:
        where = f"the piece at character {longest.start}"
        limit = f"pieces of at most {LONGEST_STEPPED} bytes"
        raise ArgumentError("is too long to show every merge of", where=where, expected=limit, got=len(longest.data))
    every = [(piece, list(loaded.merge_steps(piece.data))) for piece in pieces]
    if json_to is not None:
        from labkit.report.tokenizer import piece_to_json, step_to_json

        rows = [{**piece_to_json(piece), "steps": [step_to_json(step) for step in steps]} for piece, steps in every]
        write_json({"pieces": rows}, json_to)
        return
    from labkit.report.tokenizer import render_merges

    for piece, steps in every:
        show(render_merges(piece, steps, loaded.encode_piece(piece.data)), "")


def parity(
    files: Annotated[list[Path], typer.Argument(help="UTF-8 files to compare on.")],
    tokenizer: Folder = None,
    json_to: Json = None,
) -> int:
    """Our ids beside tiktoken's and tokenizers' on your own text; a difference is shrunk to the smallest piece."""
    from labkit.tokenizer.parity import PEERS, compare_with_peer

    loaded = load(tokenizer)
    code, rows = 0, []
    for file in files:
        text = _decoded(read_regular(file, cap_nbytes=None), str(file))
        for peer in PEERS:
            with progress() as say:
                say(f"{file}: {peer}")
                report = compare_with_peer(loaded, text, peer)
            code = max(code, report.return_code)
            rows.append({"file": file, **asdict(report)})
            if json_to != "-":
                print(f"{safe(file)}: {safe(report)}")
    if json_to is not None:
        write_json(rows, json_to)
    return code


def train_bpe(
    files: Annotated[list[Path], typer.Argument(help="UTF-8 files to train on.")],
    vocab_size: Annotated[int, typer.Option(help="Tokens in all: special ones, 256 bytes, merges.")],
    target: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to make; it must not exist.")],
    minimum_count: Annotated[int, typer.Option(min=1, help="Merge no pair that occurs less often.")] = 2,
    special: Annotated[list[str] | None, typer.Option(help="Special tokens, in place of <|endoftext|>.")] = None,
) -> None:
    """Train a byte-level BPE and write vocab.json, merges.txt and tokenizer.json."""
    from labkit.tokenizer import Tokenizer
    from labkit.tokenizer.train import END_OF_TEXT, count_pieces, read_lines, train_steps, vocabulary_of

    names = tuple(special) if special else (END_OF_TEXT,)
    with progress() as say:
        say("counting pieces")
        pieces = count_pieces(read_lines(files))
        if not pieces:
            raise ArgumentError("the texts are empty, so there is nothing to learn merges from", where=files[0])
        steps = []
        for step in train_steps(
            pieces, vocabulary_size=vocab_size, special_tokens=names, minimum_count=minimum_count, runners_up=0
        ):
            steps.append(step)
            if step.rank % 100 == 0:
                say(
                    f"merge {step.rank}: {step.winner.left + step.winner.right!r} occurs {counted(step.winner.count, 'time')}"
                )
        trained = Tokenizer(vocabulary_of(steps, special_tokens=names))
        trained.save(target)
    told = f"{counted(trained.vocabulary_size, 'token')}, {counted(len(steps), 'merge')} learned from "
    print(f"{safe(target)}: {told}{counted(len(pieces), 'different piece')}{_last_merge(steps)}")


def _last_merge(steps: "Sequence[TrainStep]") -> str:
    if not steps:
        return ""
    from labkit.report.tokenizer import visible

    pair = steps[-1].winner
    joined = " + ".join(visible(part) for part in (pair.left, pair.right))
    return f"; the last merge, {joined}, joined a pair that stood {counted(pair.count, 'time')} in the texts"


def bench_tokenize(
    files: Annotated[list[Path] | None, typer.Argument(help="UTF-8 files; texts of this machine unless given.")] = None,
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which the sides take turns.")] = 7,
    json_to: Json = None,
) -> int:
    """The tokenizer beside tiktoken and tokenizers: exit 0 where every goal is reached, 1 where one is not."""
    from labkit.bench.tokenize import bench_tokenize as run

    with progress() as say:
        result = run(files or [], rounds=rounds, say=say)
    if json_to is not None:
        write_json(asdict(result) | {"return_code": result.return_code}, json_to)
    if json_to != "-":
        show_record(result)
    return result.return_code


def load(folder: Path | None) -> "Tokenizer":
    """The tokenizer of a folder, or GPT-2's; what was odd in its files is said on standard error."""
    from labkit.tokenizer import Tokenizer

    tokenizer = Tokenizer.gpt2() if folder is None else Tokenizer.from_folder(folder)
    tell(tokenizer.notes)
    return tokenizer


def given_text(text: str | None, file: Path | None) -> str:
    """The argument, the file, or standard input."""
    if text is not None and file is not None:
        raise ArgumentError("give a text or --file, not both")
    if text is not None:
        return text
    if file is not None and str(file) != "-":
        return _decoded(read_regular(file, cap_nbytes=None), str(file))
    if sys.stdin.isatty():
        raise ArgumentError("no text: give one as argument, with --file, or on standard input")
    return _decoded(sys.stdin.buffer.read(), "standard input")


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError("is not UTF-8", where=f"{where}, byte {error.start}", got=hex(data[error.start])) from None
