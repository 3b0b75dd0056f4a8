"""The installed command: signals and streams are put in order before anything else is imported, and end it quietly."""

import os
import signal
import sys
from types import FrameType

_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_RETRY = 0.02  # seconds until a signal that came during an import is looked at again


class Stopped(KeyboardInterrupt):
    """A signal that ends the command, raised wherever it stands so that everything is cleaned up."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {name}")
        self.code = 128 + number


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        _catch_signals()
        from labkit.cli.streams import mend_streams, settle_streams

        mend_streams()
        from labkit.cli.main import run

        code = run(sys.argv[1:])
        _leave_signals()
        settle_streams()
    except Stopped as stop:  # while importing, or once more while the first was told
        code = stop.code
        print(f"labkit: {stop}", file=sys.stderr)
    sys.exit(code)


def _catch_signals() -> None:
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, and a script for its background jobs
            signal.signal(number, _stop)


def _leave_signals() -> None:
    """The result is out: Ctrl-C has nothing left to interrupt, the others end Python at once."""
    for number in _ENDING:
        if signal.getsignal(number) is _stop:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise ``Stopped``; during an import wait for its end, because a C++ library aborts when its own is broken off."""
    if os.name == "posix" and _importing(frame):
        signal.signal(signal.SIGALRM, lambda _alarm, later: _stop(number, later))
        signal.setitimer(signal.ITIMER_REAL, _RETRY)
        return
    raise Stopped(number)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
            return True
        frame = frame.f_back
    return False
