"""Coverage-guided fuzzing of the reader against the official one; run by ``make fuzz``, needs the package atheris.

    python tests/storage/fuzz.py                       200,000 files
    python tests/storage/fuzz.py -runs=1000000 CORPUS  libFuzzer's own arguments

Starts from the crafted files. Fails on any exception but the reader's own, on a file that one reader accepts and the other
refuses outside the documented list, on a file that takes over 10 s, and on memory beyond 2 GB.
"""

import sys
import tempfile
from pathlib import Path

DEFAULTS = [
    "-runs=200000",
    "-max_len=2000",
    "-timeout=10",
    "-rss_limit_mb=2048",
    "-len_control=0",
    "-print_final_stats=1",
]


def write_seeds(folder: Path) -> None:
    """The crafted files, whole and as headers."""
    from labkit.storage.battery import crafted_files
    from labkit.storage.header import PREFIX_NBYTES
    from tests.storage.disagreements import WITNESSES

    seeds = [file.data for file in crafted_files()] + list(WITNESSES.values())
    for number, seed in enumerate(seed for seed in seeds if len(seed) < 2000):
        (folder / f"{number}-file").write_bytes(seed)
        (folder / f"{number}-header").write_bytes(seed[PREFIX_NBYTES:])


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["labkit.storage", "json"]):
        from labkit.storage.exact import read_exactly
        from tests.storage.test_disagreements import require_agreement

    def try_one(data: bytes) -> None:
        """The bytes as a whole file, and as a header of a file whose length is right."""
        require_agreement(data)
        require_agreement(len(data).to_bytes(8, "little") + data)
        read_exactly(data, len(data), "fuzz")

    given = sys.argv[1:]
    with tempfile.TemporaryDirectory() as corpus:
        write_seeds(Path(corpus))
        options = [default for default in DEFAULTS if not any(each.startswith(default.split("=")[0]) for each in given)]
        atheris.Setup(
            [sys.argv[0], *options, *given, *([] if any(Path(each).is_dir() for each in given) else [corpus])], try_one
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
