"""`files`: feature GPs for files that are larger than memory, with a limit of 1 GB.

The rows of the simulated borehole function are in eight files. `peak` is the largest resident memory of the
process. `rmse_noise` is the root mean squared error to the function, divided by the standard deviation of the
noise. Linux and macOS only.
"""

import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from benchmarks.datasets.functions import FUNCTIONS
from measuring import store
from measuring.harness import apart, choice
from measuring.tables import table

LIMIT, FILES, BLOCK, TEST_ROWS = 10**9, 8, 1 << 18, 100_000


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    cases = (("parquet", 10**6), ("parquet", 10**7), ("csv.gz", 10**7), ("parquet", 3 * 10**7))
    cases = (("parquet", 200_000), ("csv.gz", 200_000)) if quick else cases
    return [{"memory_limit": LIMIT, "function": "borehole", "type": kind, "n_rows": n} for kind, n in cases]


def run(cell: store.Cell) -> dict[str, Any]:
    """Write the files, and fit in another process, so that `peak` excludes writing."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("STOCHGP_SCRATCH")) as folder:
        _write(Path(folder), cell["type"], cell["n_rows"])
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        return {"file_bytes": size} | apart("benchmarks.files", "measure", folder)["results"]


def measure(folder: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    import stochgp
    from stochgp import budget

    begun = time.perf_counter()
    model: Any = stochgp.FeatureGPRegressor(memory_limit=LIMIT, random_state=0).fit(folder, "y")
    seconds = time.perf_counter() - begun
    test = _rows(TEST_ROWS, (99, 99), noise=False)
    error = model.predict(test.drop_columns(["y"])) - test["y"].to_numpy()
    return {
        "seconds": seconds,
        "peak": budget.peak_resident(),
        "rmse_noise": float(np.sqrt(np.mean(error**2)) / FUNCTIONS["borehole"].noise_std),
        "sample": choice(model, "learning_rows", model.n_rows_),
        "closing_rows": choice(model, "closing_rows", model.n_rows_),
        "steps": model.n_iter_,
    }


def page(records: list[store.Record]) -> list[str]:
    rows = [
        [r["type"], r["n_rows"], round(r["file_bytes"] / 1e6), round(r["seconds"]), round(r["peak"] / 1e6)]
        + [round(r["rmse_noise"], 4), r["sample"], r["closing_rows"]]
        for r in store.rows(records)
    ]
    return [
        table("type | rows | files MB | fit s | peak MB | RMSE / noise | learned from | posterior of", rows)
    ]


def _write(folder: Path, kind: str, n_rows: int) -> None:
    """Write the rows to eight files, block by block."""
    schema, n_file = _rows(1, (0, 0)).schema, n_rows // FILES
    writer_of = {"parquet": pa_parquet.ParquetWriter, "csv.gz": pa_csv.CSVWriter}[kind]
    for file in range(FILES):
        path = folder / f"{file}.{kind}"
        sink = pa.CompressedOutputStream(path, "gzip") if kind == "csv.gz" else pa.OSFile(str(path), "wb")
        with sink, writer_of(sink, schema) as writer:
            for number in range(-(-n_file // BLOCK)):
                writer.write_table(_rows(min(BLOCK, n_file - number * BLOCK), (file, number)))


def _rows(n_rows: int, seed: tuple[int, ...], *, noise: bool = True) -> pa.Table:
    """Return uniform inputs, and y."""
    function, generator = FUNCTIONS["borehole"], np.random.default_rng(seed)
    low, high = np.array(function.low), np.array(function.high)
    X = low + (high - low) * generator.random((n_rows, len(low)))
    y = function.value(X) + noise * function.noise_std * generator.standard_normal(n_rows)
    return pa.table({name: X[:, j] for j, name in enumerate(function.inputs)} | {"y": y})
