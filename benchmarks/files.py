"""`files`: feature GPs learned from files of more rows than memory, each in a fresh process under a memory limit of 1 GB.

The rows are of the simulated borehole function, in eight files of a folder. `peak` is the process's largest resident memory, `rmse_noise`
the root mean squared error to the function without noise, as a fraction of the noise's standard deviation. Linux and macOS only.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from measuring.places import ROOT

KEYS = ("type", "n_rows")
CASES = (("parquet", 10**6), ("parquet", 10**7), ("csv.gz", 10**7), ("parquet", 3 * 10**7))
QUICK_CASES = (("parquet", 200_000), ("csv.gz", 200_000))
LIMIT = 10**9
FILES, BLOCK, TEST_ROWS = 8, 1 << 18, 100_000


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per type of file and number of rows."""
    rows = []
    for kind, n_rows in QUICK_CASES if quick else CASES:
        with tempfile.TemporaryDirectory(dir=os.environ.get("STOCHGP_SCRATCH")) as folder:
            report(f"writing {n_rows} rows as {kind}")
            write(Path(folder), kind, n_rows)
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
            command = [sys.executable, "-m", "benchmarks.files", folder]
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        rows.append({"type": kind, "n_rows": n_rows, "file_bytes": size, **json.loads(found.stdout)})
        report(json.dumps(rows[-1]))
    return {"settings": {"memory_limit": LIMIT, "function": "borehole"}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Headings and rows for people; memory in megabytes (10⁶ bytes)."""
    headings = [
        "type",
        "rows",
        "files MB",
        "fit s",
        "peak MB",
        "RMSE / noise",
        "learned from",
        "posterior of",
    ]
    return headings, [
        [
            row["type"],
            row["n_rows"],
            round(row["file_bytes"] / 1e6),
            round(row["seconds"]),
            round(row["peak"] / 1e6),
        ]
        + [round(row["rmse_noise"], 4), row["sample"], row["closing_rows"]]
        for row in result["rows"]
    ]


def write(folder: Path, kind: str, n_rows: int) -> None:
    """The rows in eight files, drawn block by block."""
    for file in range(FILES):
        path, remaining = folder / f"{file}.{kind}", n_rows // FILES
        with (
            pa.CompressedOutputStream(path, "gzip")
            if kind == "csv.gz"
            else pa.OSFile(str(path), "wb") as sink
        ):
            writer = None
            for number in range(-(-remaining // BLOCK)):
                part = rows_of(min(BLOCK, remaining - number * BLOCK), (file, number))
                if writer is None:
                    kinds = {"parquet": pa_parquet.ParquetWriter, "csv.gz": pa_csv.CSVWriter}
                    writer = kinds[kind](sink, part.schema)
                writer.write_table(part)
            if writer is not None:
                writer.close()


def rows_of(n_rows: int, seed: tuple[int, ...], *, noise: bool = True) -> pa.Table:
    """Inputs uniform on the box, and y."""
    from benchmarks.datasets.functions import FUNCTIONS

    function, generator = FUNCTIONS["borehole"], np.random.default_rng(seed)
    low, high = np.array(function.low), np.array(function.high)
    X = low + (high - low) * generator.random((n_rows, len(low)))
    y = function.value(X) + noise * function.noise_std * generator.standard_normal(n_rows)
    return pa.table({name: X[:, j] for j, name in enumerate(function.inputs)} | {"y": y})


def measure(folder: str) -> dict:
    """One fit in this process."""
    warnings.simplefilter("ignore")
    import stochgp
    from benchmarks.datasets.functions import FUNCTIONS
    from stochgp import budget

    begun = time.perf_counter()
    model = stochgp.FeatureGPRegressor(memory_limit=LIMIT, random_state=0).fit(folder, "y")
    seconds = time.perf_counter() - begun
    test = rows_of(TEST_ROWS, (99, 99), noise=False)
    error = model.predict(test.drop_columns(["y"])) - test["y"].to_numpy()
    closing = model.plan_.get("closing_rows", {"choice": model.n_rows_})["choice"]
    return {
        "seconds": seconds,
        "peak": budget.peak_resident(),
        "rmse_noise": float(np.sqrt(np.mean(error**2)) / FUNCTIONS["borehole"].noise_std),
        "sample": model.plan_["learning_rows"]["choice"],
        "closing_rows": closing,
        "history": len(model.history_),
        "steps": model.n_iter_,
    }


if __name__ == "__main__":
    json.dump(measure(sys.argv[1]), sys.stdout)
