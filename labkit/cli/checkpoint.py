"""The commands on checkpoints: inventory, convert, fetch, doctor."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli.console import complain, progress, show, show_record, write_json
from labkit.cli.options import dtype_of
from labkit.errors import ArgumentError, CheckpointError, LabkitError
from labkit.outside import safe, shown
from labkit.words import counted

if TYPE_CHECKING:
    from labkit.checkpoint.inventory import Inventory

Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to a file; - is standard output.")]
_CHECKED_IDS = 24
_CHECKED_TOKENS = 8
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.command()(inventory)
    app.command()(convert)
    app.command()(fetch)
    app.command()(doctor)


def inventory(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A checkpoint folder, or a safetensors file (default: the embedded checkpoint)."),
    ] = None,
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="Show every tensor and what it fills.")] = False,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="With each tensor's minimum, maximum, mean and deviation.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="A config.json to use in place of the folder's.")] = None,
    json: Json = None,
) -> int:
    """Parameters and bytes by kind and block, beside the formula: exit 0 as it should be, 1 not."""
    from dataclasses import replace

    from labkit.checkpoint import add_statistics, read_checkpoint
    from labkit.checkpoint.inventory import take_inventory
    from labkit.load import embedded
    from labkit.report.checkpoint import inventory_json, load_report_json, render_inventory, render_load_report

    place = embedded() if folder is None else folder
    found = take_inventory(place, config=config)
    found = replace(found, notes=(*found.notes, *_generation_notes(found)))
    report = None
    if (tensors or statistics) and found.problem is None:
        report = read_checkpoint(place, config=config).report
        report = add_statistics(report) if statistics else report
    if json is not None:
        write_json(inventory_json(found) | ({} if report is None else {"load_report": load_report_json(report)}), json)
    if json != "-":
        show(*([] if report is None else [render_load_report(report)]), render_inventory(found))
    return found.return_code


def _generation_notes(found: "Inventory") -> tuple[str, ...]:
    """What generating from the folder would leave out, or refuse, of its generation_config.json."""
    from labkit.generation.settings import checkpoint_settings

    try:
        return checkpoint_settings(found.folder, vocab_size=found.config.vocab_size).notes
    except LabkitError as error:
        return (str(error),)


def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint folder, a safetensors file, or a pickle.")],
    target: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    *,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16, float32 or float64 (default: as stored).")
    ] = None,
    shard_size: Annotated[str | None, typer.Option(help="Split over shards of at most this, such as 200MB.")] = None,
    layout: Annotated[
        str, typer.Option(help="hf (what transformers loads) or linear (matrices as nn.Linear has them).")
    ] = "hf",
    names: Annotated[
        str | None, typer.Option(help="Whose names the source has: nanogpt, mingpt, mingpt-2020, linear, or MAP.json.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A config.json, or the fields it lacks, for the source.")] = None,
    untie: Annotated[bool, typer.Option("--untie", help="Load a stored head although the config ties it.")] = False,
    zero_biases: Annotated[
        bool, typer.Option("--zero-biases", help="Fill biases the source lacks with zeros.")
    ] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read a pickle (tensors and plain values only).")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(help="Run the result in labkit and in transformers before it appears (layout hf only)."),
    ] = True,
) -> int:
    """Write a checkpoint anew: another dtype, shards, layout, or from another code base; whole or not at all."""
    with progress() as say:
        from labkit.checkpoint.export import save_snapshot

        if layout not in ("hf", "linear"):
            raise ArgumentError("no such layout", where="--layout", expected="hf, linear", got=layout)
        say("reading the source")
        checkpoint = _read(source, names, config, untie=untie, zero_biases=zero_biases, allow_pickle=allow_pickle)
        say("writing")
        number_type = None if dtype is None else dtype_of(dtype)
        export = save_snapshot(
            checkpoint.config,
            checkpoint.parameters,
            target,
            dtype=number_type,
            shard_nbytes=None if shard_size is None else parse_nbytes(shard_size),
            layout="hf" if layout == "hf" else "linear",
            companions=checkpoint.folder,
            check=_agreement(checkpoint, number_type, say) if check and layout == "hf" else None,
        )
    if check and layout == "linear":
        complain(
            "note: the written folder was compared, but not run, because only the layout hf can be; "
            f"`labkit convert {target} NEW_FOLDER --names linear` turns it back and runs it"
        )
    for note in checkpoint.report.notes:
        print(f"  {safe(note)}")
    show_record(export)
    return 0


def fetch(
    repository: Annotated[str, typer.Argument(help="The repository's name on the hub, such as openai-community/gpt2.")],
    *,
    dir: Annotated[Path | None, typer.Option("--dir", help="Where to put it (default: models/NAME).")] = None,  # noqa: A002
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    json: Json = None,
) -> int:
    """Fetch a GPT-2 from the hub, safetensors only, every hash checked; a second run downloads nothing."""
    import sys
    from dataclasses import asdict

    from labkit.hub.fetch import fetch as run

    fetched = run(repository, folder=dir, revision=revision, say=lambda step: print(safe(step), file=sys.stderr))
    if json is not None:
        write_json(asdict(fetched), json)
    if json != "-":
        show_record(fetched)
    return 0


def doctor(*, json: Json = None) -> int:
    """What is installed, what is found, and what each notebook still needs: exit 0 ready, 1 something is missing."""
    with progress() as say:
        from dataclasses import asdict

        from labkit.hub.doctor import examine
        from labkit.report.checkpoint_doctor import render_diagnosis

        say("looking around")
        diagnosis = examine(Path.cwd())
    if json is not None:
        write_json(asdict(diagnosis) | {"return_code": diagnosis.return_code}, json)
    if json != "-":
        show(render_diagnosis(diagnosis))
    return diagnosis.return_code


def parse_nbytes(text: str) -> int:
    """``200MB`` -> bytes; MB is a million bytes, MiB 2 to the 20.

    >>> parse_nbytes("200MB"), parse_nbytes("1.5 GiB")
    (200000000, 1610612736)
    """
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in _UNITS or float(found[1]) == 0:
        raise ArgumentError("not a size", where="--shard-size", expected="such as 200MB or 1GiB", got=shown(text))
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _read(
    source: Path, names: str | None, config: Path | None, *, untie: bool, zero_biases: bool, allow_pickle: bool
) -> Any:
    from labkit.checkpoint import read_checkpoint
    from labkit.checkpoint.config_file import read_config_fields
    from labkit.checkpoint.foreign import is_pickle, read_named, read_pickled
    from labkit.checkpoint.layouts import name_map

    fields = None if config is None else read_config_fields(config)
    if names is not None:
        return read_named(source, name_map(names), config=fields, allow_pickle=allow_pickle, zero_biases=zero_biases)
    if allow_pickle and is_pickle(source):
        return read_pickled(source, config=fields, untie=untie)
    return read_checkpoint(source, config=fields, untie=untie)


def _agreement(checkpoint: Any, dtype: Any, say: Any) -> Any:
    """The check before a folder appears: labkit's logits reload equal, and transformers agrees stage by stage."""

    def check(draft: Path) -> tuple[str, ...]:
        import torch

        from labkit.verification import verify

        config = checkpoint.config
        length = min(_CHECKED_IDS, max(config.n_positions - _CHECKED_TOKENS, 1))
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(config.vocab_size, (1, length), generator=generator)  # [batch, pos]
        say("running the result in labkit")
        _compare_logits(checkpoint, dtype, draft, ids)
        say("running the result in transformers")
        report = verify(draft, ids=ids.tolist(), tokens=min(_CHECKED_TOKENS, config.n_positions - length))
        if report.return_code != 0:
            raise CheckpointError(
                "transformers computes otherwise from the written folder",
                where=draft,
                got=f"{report.verdict}, first at {report.first_divergence}",
            )
        return (f"reloaded logits equal; transformers agrees at every stage over {counted(length, 'id')}",)

    return check


def _compare_logits(checkpoint: Any, dtype: Any, draft: Path, ids: Any) -> None:
    """Raise unless the written folder gives the logits that the source's values, cast to ``dtype``, give."""
    import torch

    from labkit.checkpoint.export import cast
    from labkit.load import Conversion, load_gpt2
    from labkit.model import GPT2

    widen = Conversion(torch.float32, torch.device("cpu"))
    parameters = {name: widen(name, cast(name, tensor, dtype)) for name, tensor in checkpoint.parameters.items()}
    if not torch.equal(load_gpt2(draft)(ids), GPT2(checkpoint.config, parameters)(ids)):
        raise CheckpointError("the logits of the written folder differ from the source's", where=draft)
