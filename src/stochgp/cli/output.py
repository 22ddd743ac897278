"""Reports on stdout, and whether a result can be written: what is asked before anything heavy is loaded."""

import json
import math
import numbers
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stochgp.names import lookup


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """Names and values on stdout: lines for what is known, or one JSON object (None and numbers that are not finite as null)."""
    if as_json:
        sys.stdout.write(
            json.dumps({name: plain(value) for name, value in report.items()}, ensure_ascii=False) + "\n"
        )
        return
    known = {name: value for name, value in report.items() if value is not None}
    width = max(len(name) for name in known)
    for name, value in known.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        sys.stdout.write(f"{name:{width}}  {text}\n")


def check_picture(out: str, *inputs: str) -> None:
    """Refuses before the work a picture that could not be written after it, or that would replace one of the input files."""
    from stochgp.storage.writing import check_can_write

    check_can_write(out, inputs)
    lookup(Path(out).suffix, dict.fromkeys((".png", ".pdf", ".svg")), "type of picture")


def write_picture(figure: Any, out: str) -> None:
    """Whole or not at all."""
    from stochgp.storage.writing import replacing

    with replacing(out) as partial:
        figure.savefig(partial, format=Path(out).suffix[1:])


def plain(value: Any) -> Any:
    """A JSON value."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return value
