"""``labkit generate``: text on standard output as it comes, everything about it on standard error."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labkit.cli.bench import bench
from labkit.cli.console import progress, show_record, show_text, tell, write_json
from labkit.cli.options import OPTIONS, dtype_of
from labkit.cli.prompts import EMBEDDED_HELP, Folder, parse_ids, stand_in_rows
from labkit.errors import ArgumentError, FileAccessError
from labkit.outside import read_regular, safe
from labkit.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from labkit.generation import Stream
    from labkit.generation.roofline import Roofline
    from labkit.model import GPT2

FEWEST_MEASURED = 8
"""Tokens of a run below which its time says nothing of a token's."""
MOST_LISTED = 10
"""Numbers of blank lines that a note names."""


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    settings = "Options left out are as generation_config.json says, else plain greedy."
    app.command(epilog=f"{settings} {EMBEDDED_HELP}")(generate)
    app.command("dtype-study")(dtype_study)
    bench.command("generate")(bench_generate)


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The text to go on with (- reads standard input).")] = None,
    *,
    ids: Annotated[
        list[str] | None, typer.Option(help="Token ids in place of a text, as 1,2,3; several times for a batch.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder (default: the embedded one).")] = None,
    tokens: Annotated[int | None, typer.Option(help="At most this many new tokens (20).")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Stops act after so many.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; above 0 draws.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest that reach p together.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Draw from those at least p times the likeliest.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 makes repeats less likely.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same text again on the same device.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    stop_id: Annotated[list[int] | None, typer.Option(help="End at this id; may be given several times.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    cache: Annotated[
        bool,
        typer.Option(
            help="Without: the whole text is run again for every token (in bfloat16 and float16 rounding may part the texts)."
        ),
    ] = True,
    lookup: Annotated[
        bool, typer.Option(help="Several greedy ids a pass where the text repeats; the same ids.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads (default: by the model's size).")] = None,
    window: Annotated[str, typer.Option(help="At n_positions: refuse or slide.")] = "refuse",
    batch_file: Annotated[Path | None, typer.Option(help="A prompt a line, continued together.")] = None,
    json: Annotated[str | None, typer.Option(help="Write the result as JSON to this file (- for output).")] = None,
    benchmark: Annotated[bool, typer.Option(help="Measure tokens/s beside transformers instead.")] = False,
) -> int:
    """Go on with a text: exit 0, or 2 where the input cannot be used."""
    if benchmark and tokens is not None and tokens < FEWEST_MEASURED:
        least = f"{FEWEST_MEASURED} or more beside --benchmark"
        raise ArgumentError("out of range", where="tokens", expected=least, got=tokens)
    given = read_prompts(prompt, batch_file, ids, needed=not benchmark)
    prompts = [each.value for each in given]
    with progress() as say:
        say("loading the model")
        import torch

        from labkit.generation import stream_batch
        from labkit.generation.threads import check_threads, sensible_threads
        from labkit.load import load_gpt2

        if threads is not None:
            check_threads(threads)
        network = load_gpt2(model, dtype=dtype_of(dtype), device=device, mode="owned")  # huge pages, for speed
        torch.set_num_threads(sensible_threads(network) if threads is None else threads)
        options: dict[str, Any] = {
            "tokens": tokens,
            "min_tokens": min_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
            "stop": stop or None,
            "stop_ids": stop_id or None,
            "cache": cache,
            "window": window,
            "lookup": lookup,
        }
        if benchmark:
            from labkit.bench.generate import bench_generate as measure

            unused = {**options, "tokens": None, "cache": None, "no_cache": not cache, "window": window != "refuse"}
            unused |= {"dtype": dtype != "float32", "threads": threads, "further prompts": prompts[1:]}
            tell(_unmeasured(unused))
            folder = model or network.load_report.folder
            first = stream_batch(network, prompts, **options).results()[0].prompt_ids if prompts else None
            return _show_bench(measure(folder, device=device, tokens=tokens or 48, prompt=first, say=say), json)
        run = stream_batch(network, prompts, **options)
    together = batch_file is not None or len(prompts) > 1
    if batch_file is not None:
        tell(_blank_lines(batch_file, given))
    try:
        if json == "-" or together:
            with progress() as say:
                for count, _ in enumerate(run.steps(), start=1):
                    say(f"{counted(count, 'token')} of each prompt, {run.tokens_per_second:.1f} tokens/s")
        else:
            _show(run)
    finally:
        if json != "-" and together:
            for each, result in zip(given, run.results(), strict=True):
                show_text(f"==> {each.place} <==\n{result}\n")
        _tell(network, run)
    if json is not None:
        from dataclasses import asdict

        rows = zip(given, run.results(), strict=True)
        write_json([{**asdict(result), "line": each.line} for each, result in rows], json)
    return 0


def dtype_study(
    folder: Folder = None,
    *,
    text: Annotated[str | None, typer.Option(help="The text to study (- reads standard input).")] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids in place of a text, as 1,2,3.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens to compare.")] = 40,
    dtype: Annotated[list[str] | None, typer.Option(help="bfloat16, float16 or float64; several times.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    json: Annotated[str | None, typer.Option(help="Write the study as JSON to this file (- for output).")] = None,
) -> int:
    """What bfloat16 and float16 change: logits, depths, greedy text, perplexity; float32 beside them."""
    if text is not None and ids is not None:
        raise ArgumentError("--text and --ids were both given", fix="give one of them")
    words = None if text is None else _read_text(text)
    row = None if ids is None else parse_ids(ids)
    with progress() as say:
        from dataclasses import asdict

        from labkit.generation.dtype_study import dtype_study as study

        chosen = [dtype_of(name) for name in dtype or ["bfloat16", "float16"]]
        if words is None and row is None:
            row = next(iter(stand_in_rows(folder) or []), None)
        result = study(folder, text=words, ids=row, dtypes=chosen, tokens=tokens, device=device, say=say)
    if json is not None:
        write_json(asdict(result), json)
    if json != "-":
        show_record(result)
    return 0


def bench_generate(
    folder: Annotated[
        Path | None, typer.Argument(help="Checkpoint folder (default: the embedded one and a random GPT-2 small).")
    ] = None,
    *,
    tokens: Annotated[int, typer.Option(min=FEWEST_MEASURED, help="Tokens a run at most.")] = 48,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the fastest of each side counts.")] = 8,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    clock: Annotated[
        Literal["wall", "processor"], typer.Option(help="processor: one thread's own time, for a busy machine.")
    ] = "wall",
    json: Annotated[str | None, typer.Option(help="Write JSON to this file (- for output).")] = None,
) -> int:
    """Tokens a second beside transformers and beside memory's limit: exit 0 with every goal reached, 1 short of one."""
    with progress() as say:
        from labkit.bench.generate import bench_generate as measure

        results = measure(folder, device=device, tokens=tokens, repeats=repeats, clock=clock, say=say)
    return _show_bench(results, json)


def _show_bench(results: "Sequence[Roofline]", json: str | None) -> int:
    from dataclasses import asdict

    if json != "-":
        for each in results:
            show_record(each)
    if json is not None:
        goals = [{"goal": goal, "reached": reached} for each in results for goal, reached in each.goals()]
        write_json({"benches": [asdict(each) for each in results], "goals": goals}, json)
    return max(each.return_code for each in results)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text or a row of ids to go on with, and the place it was given at."""

    value: str | list[int]
    place: str = "prompt"
    line: int | None = None  # of the batch file, counted from 1


def read_prompts(
    prompt: str | None, batch_file: Path | None, ids: "Sequence[str] | None" = None, *, needed: bool = True
) -> list[Prompt]:
    """The prompt, standard input where it is ``-``, the lines of the file, or rows of ids; none unless ``needed``."""
    given = [
        name
        for name, value in (("a prompt", prompt), ("--batch-file", batch_file), ("--ids", ids or None))
        if value is not None
    ]
    if not given and not needed:
        return []
    if len(given) != 1:
        raise ArgumentError(
            f"{' and '.join(given)} were both given" if given else "no prompt",
            fix='give one: labkit generate "It is a truth", labkit generate - < FILE, --batch-file FILE, or --ids 1,2,3',
        )
    if ids:
        return [Prompt(value=parse_ids(row), place=f"row {number}") for number, row in enumerate(ids, 1)]
    return [Prompt(value=_read_text(prompt))] if prompt is not None else _read_lines(batch_file)


def _read_lines(path: Path | None) -> list[Prompt]:
    assert path is not None
    try:
        text = read_regular(path, what="file of prompts").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileAccessError("the prompts cannot be read", where=path, got=error) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]  # other ends of lines are characters of a prompt
    prompts = [
        Prompt(value=line, place=f"line {number}", line=number) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise ArgumentError("the file holds no prompt", where=path, expected="a prompt a line")
    return prompts


def _blank_lines(path: Path, given: "Sequence[Prompt]") -> list[str]:
    """What to say of the lines between prompts, and before them, that hold none."""
    numbers = {each.line for each in given}
    blank = [str(number) for number in range(1, max(number or 0 for number in numbers)) if number not in numbers]
    if not blank:
        return []
    lines = f"line {blank[0]} is" if len(blank) == 1 else f"lines {_listed(blank)} are"
    return [f"{path}: {lines} blank and no prompt; results are numbered by line"]


def _listed(words: "Sequence[str]") -> str:
    more = f" and {len(words) - MOST_LISTED} more" if len(words) > MOST_LISTED else ""
    return ", ".join(words[:MOST_LISTED]) + more


def _unmeasured(options: "Mapping[str, Any]") -> list[str]:
    """What to say of options that the benchmark does not heed: it decodes greedily in every dtype, in ways of its own."""
    given = [name for name, value in options.items() if value is not None and value is not False and value != []]
    idle = [name if " " in name else OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in given]
    told = "the benchmark decodes greedily, with the cache and without, with look-up and in every dtype"
    return [f"without effect beside --benchmark: {', '.join(idle)}, because {told}"] if idle else []


def _read_text(text: str) -> str:
    """The text, or standard input where it is ``-``."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError("standard input is not UTF-8", where=f"byte {error.start}") from error


def _show(run: "Stream") -> None:
    """Prompt and text as they come; where there is no tokenizer, the new ids."""
    prompt = run.result().prompt
    show_text("" if prompt is None else prompt)
    try:
        for number, token in enumerate(run):
            show_text(token.text if prompt is not None else f"{' ' if number else ''}{token.id}")
    finally:
        show_text("\n")


def _tell(network: "GPT2", run: "Stream") -> None:
    results = run.results()
    count = sum(len(each.ids) for each in results)
    place = f"{str(network.dtype).removeprefix('torch.')} on {network.device}"
    if network.device.type == "cuda":
        import torch

        place += f", TF32 {'on' if torch.backends.cuda.matmul.allow_tf32 else 'off'}"
    speed = f"{counted(count, 'token')} in {run.seconds:.2f} s, {run.tokens_per_second:.1f} tokens/s"
    lines = [f"{speed if count else 'no token was generated'}, {place}"]
    lines.append(f"settings: {run.sourced}")
    ended = {each.stopped_by for each in results} - {"tokens"}
    lines += [f"ended by {', '.join(sorted(ended))}"] if ended else []
    for line in (*lines, *run.notes):
        print(safe(line), file=sys.stderr)
