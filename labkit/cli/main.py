"""Composes the commands and turns every error into one line and an exit code."""

import os
import sys
from typing import Annotated

import typer

from labkit import __version__
from labkit.cli import bench, checkpoint, faults, generate, invariants, lab, storage, tokenizer, trace, verify
from labkit.cli.console import complain
from labkit.cli.options import told
from labkit.errors import LabkitError

app = typer.Typer(
    name="labkit",
    epilog=(
        "Documentation: README.md, and in docs/ verification.md, traces.md, your-engine.md, invariants.md, "
        "checkpoints.md, storage.md, tokenizer.md, generation.md, notebooks.md."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
storage.register(app)
checkpoint.register(app)
bench.register(app)
tokenizer.register(app)
verify.register(app)
faults.register(app)
trace.register(app)
invariants.register(app)
generate.register(app)
lab.register(app)


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


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code, with every error told in one line on standard error."""
    try:
        code = app(arguments, standalone_mode=False, prog_name="labkit")
    except LabkitError as error:
        complain(told(error))
        return 2
    except typer.Exit as stop:
        return int(stop.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        show = getattr(error, "format_message", None)  # click's usage errors know their own text
        if show is not None:
            message = str(show())  # none where the help was shown in place of a missing command
            if message:
                complain(message)
            return 2
        if os.environ.get("LABKIT_TRACEBACK"):
            raise
        complain(f"internal error, {type(error).__name__}: {error}; set LABKIT_TRACEBACK=1 to see where")
        return 3
    return int(code or 0)
