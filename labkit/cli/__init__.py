"""The command line: one front door, composed of a module per room.

Exit codes: 0 same or fine, 1 differs or defects found, 2 cannot tell or unusable input, 3 internal error,
130 interrupted.
"""

from labkit.cli.main import main as main
