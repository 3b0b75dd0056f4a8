"""Plain values -> JSON text that every reader takes: infinities and NaN become strings, nothing is lost quietly."""

import json
import math
from pathlib import Path
from typing import Any


def json_text(value: Any) -> str:
    """Indented JSON of plain values, tuples and paths; ``inf`` and ``nan`` are written as strings.

    >>> print(json_text({"used": float("inf"), "at": (0, 1)}))
    {
      "used": "inf",
      "at": [
        0,
        1
      ]
    }
    """
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
