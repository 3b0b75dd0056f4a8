"""Composes the commands and turns every error into one line and an exit code."""

import inspect
import os
import sys
from typing import Annotated

import typer

from labkit import __version__
from labkit.cli import bench, checkpoint, explain, faults, generate, invariants, lab, storage, tokenizer, trace, verify
from labkit.cli.console import complain
from labkit.cli.entry import Stopped
from labkit.cli.options import GivenOnce, spelled, told, told_usage
from labkit.cli.places import placed
from labkit.cli.streams import ReaderGoneError
from labkit.errors import LabkitError

INTERRUPTED = 130
NOBODY_READS = 141  # as the shell has it for a program that SIGPIPE ended

app = typer.Typer(
    name="labkit",
    epilog=(
        "\b\nDocumentation: README.md, and in docs/ verification.md, traces.md,\n"
        "your-engine.md, invariants.md, checkpoints.md, storage.md, tokenizer.md,\n"
        "generation.md, notebooks.md."  # in lines of its own, because a name is broken at its hyphen otherwise
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of options in a terminal of 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)
storage.register(app)
checkpoint.register(app)
bench.register(app)
tokenizer.register(app)
verify.register(app)
faults.register(app)
trace.register(app)
explain.register(app)
invariants.register(app)
generate.register(app)
lab.register(app)
for each in (*app.registered_commands, *bench.bench.registered_commands):
    assert each.callback is not None
    each.short_help = inspect.getdoc(each.callback)  # whole: what is not given here is cut in the list of commands
    each.callback = spelled(placed(each.callback))
    each.cls = GivenOnce


def show_version(wanted: bool) -> None:  # noqa: FBT001  (typer calls it so)
    """Print the version and end, where it was asked for."""
    if wanted:
        typer.echo(f"labkit {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Verify, inspect and run GPT-2 checkpoints."""


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code, with every error told in one line on standard error."""
    try:
        return _invoke(arguments)
    except LabkitError as error:
        complain(told(error))
        return 2
    except (KeyboardInterrupt, typer.Abort) as stop:
        complain(str(stop) or "interrupted")
        return stop.code if isinstance(stop, Stopped) else INTERRUPTED
    except (ReaderGoneError, BrokenPipeError):
        return NOBODY_READS
    except OSError as error:
        if os.environ.get("LABKIT_TRACEBACK"):
            raise
        complain(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
        return 2
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's
            message = told_usage(error)
            if message:
                complain(message)
            return 2
        if os.environ.get("LABKIT_TRACEBACK"):
            raise
        complain(f"internal error, {type(error).__name__}: {error}; set LABKIT_TRACEBACK=1 to see where")
        return 3


def _invoke(arguments: list[str]) -> int:
    """The command's code, once all it printed is out; not by ``app()``, which ends in codes of its own."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("labkit", list(arguments)) as context:
            code = command.invoke(context)
    except typer.Exit as stop:
        code = stop.exit_code
    sys.stdout.flush()
    return int(code or 0)
