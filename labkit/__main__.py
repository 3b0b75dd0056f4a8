"""``python -m labkit``: the command line of whichever Python runs it, where no script is on the path."""

from labkit.cli.entry import main

if __name__ == "__main__":
    main()
