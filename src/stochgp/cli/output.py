"""Reports on stdout, and whether a result can be written: what is asked before anything heavy is loaded."""

import io
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


def check_can_write(out: str) -> None:
    """Refuses before the work what would fail after it."""
    path = Path(out)
    if path.is_dir():
        raise ValueError(f"{out}: is a folder, not a file")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"{out}: there is no folder {path.resolve().parent}")


def check_picture(out: str) -> None:
    """Refuses before the work a picture that could not be written after it."""
    check_can_write(out)
    lookup(Path(out).suffix, dict.fromkeys((".png", ".pdf", ".svg")), "type of picture")


def write_picture(figure: Any, out: str) -> None:
    """Whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(out).suffix[1:])
    Path(out).write_bytes(picture.getvalue())


def plain(value: Any) -> Any:
    """A JSON value."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return value
