"""Measure what other safetensors readers make of the crafted files; prints the rows of ``labkit/storage/loaders.py``.

    python tests/storage/measure_loaders.py FOLDER               write the battery there
    python tests/storage/measure_loaders.py FOLDER LOADER        open every file with that loader, in a child process each

LOADER is safetensors, mlx, tinygrad or gguf; run it with a Python that has that package. A file is accepted when every
tensor it is said to hold could be read.
"""

import collections
import json
import subprocess
import sys
from pathlib import Path


def read(loader: str, path: str) -> list[list[object]]:
    """Name, dtype, shape and bytes (hex, the first 16) of every tensor, as the loader sees them."""
    if loader == "safetensors":
        from safetensors import deserialize

        return [
            [name, spec["dtype"], list(spec["shape"]), bytes(spec["data"])[:16].hex()]
            for name, spec in deserialize(Path(path).read_bytes())
        ]
    if loader == "mlx":
        import mlx.core as mx
        import numpy as np

        loaded = mx.load(path)
        return [
            [
                name,
                str(array.dtype).split(".")[-1],
                list(array.shape),
                np.array(array.view(mx.uint8)).tobytes()[:16].hex(),
            ]
            for name, array in loaded.items()
        ]
    if loader == "tinygrad":
        from tinygrad.nn.state import safe_load

        state = safe_load(path)
        return [
            [
                name,
                str(tensor.dtype).split(".")[-1],
                list(tensor.shape),
                bytes(tensor.to("PYTHON").realize().data())[:16].hex(),
            ]
            for name, tensor in state.items()
        ]
    from gguf.utility import SafetensorsLocal

    with SafetensorsLocal(Path(path)) as tensors:
        return [
            [name, tensor.dtype, list(tensor.shape), tensor.mmap_bytes().tobytes()[:16].hex()]
            for name, tensor in tensors.items()
        ]


def main() -> None:
    folder, *rest = sys.argv[1:]
    if len(rest) == 2:
        print(json.dumps(read(*rest)))
        return
    if not rest:
        from labkit.storage.battery import crafted_files

        for file in crafted_files():
            (Path(folder) / f"{file.name}.safetensors").write_bytes(file.data)
        (Path(folder) / "codes.json").write_text(json.dumps({file.name: file.code for file in crafted_files()}))
        return
    codes = json.loads((Path(folder) / "codes.json").read_text())
    verdicts = collections.defaultdict(dict)
    for name, code in codes.items():
        path = f"{folder}/{name}.safetensors"
        try:
            child = subprocess.run(
                [sys.executable, __file__, folder, rest[0], path], capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired:
            verdicts[code][name] = "hangs"
            continue
        if child.returncode == 0:
            verdicts[code][name] = json.loads(child.stdout.splitlines()[-1])
        else:
            verdicts[code][name] = "crashes" if child.returncode < 0 else "refuses"
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
