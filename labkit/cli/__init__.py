"""The command line: one front door, composed of a module per room.

Exit codes: 0 same or fine, 1 differs or defects found, 2 cannot tell or unusable input, 3 internal error,
130 interrupted (129, 143: by SIGHUP, SIGTERM), 141 nobody read the output to its end.
"""

from labkit.cli.entry import main as main
