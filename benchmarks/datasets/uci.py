"""Regression sets of the `uci_datasets` collection, with its ten fixed 90/10 splits.

For each set, the collection (GitHub: treforevans/uci_datasets, MIT) has data.csv.gz with the target in the
last column, and test_mask.csv.gz with one 0/1 column per split (1 = test).
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from stochgp.names import did_you_mean

from .dataset import Dataset, data_folders, find_file

N_SPLITS = 10
DATA_FILE, MASK_FILE = "data.csv.gz", "test_mask.csv.gz"
SOURCE = "https://github.com/treforevans/uci_datasets/raw/master/uci_datasets"


class UCISet(NamedTuple):
    """The numbers of rows and inputs of a set, and the SHA-256 of its two files."""

    rows: int
    inputs: int
    data: str | None = None
    mask: str | None = None


UCI_SETS = {
    "pol": UCISet(15_000, 26, "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04", "c5540259aabe58f5c7a534ed6f5141f8c1157d5de592e45884b7fced6091e981"),
    "elevators": UCISet(16_599, 18, "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b", "9fe662eacca95ae2c9301cbc4c4134e55d58e903cb0cfb683771ffdd2d248eb5"),
    "bike": UCISet(17_379, 17, "411f76ae426c0e348a2629dcf6b3b29102c7db465eae780a3454c39db1dfac4f", "cf13dc25e80c03019cf2b01666f9cc29b03ea222f5c519536023ea56669bf337"),
    "kin40k": UCISet(40_000, 8, "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba", "d15fd645d0e81a9a17ce2d0b8dde470bb2efba4d5f417459965abe4b237e2aea"),
    "protein": UCISet(45_730, 9, "f709d0107c3ee90ab019b9e5d77fc2ae182158958cb70b1903236a51334fd01b", "22afe05e8d17c428558d78a77efeecc08d58004b6c95741d1c533c3207c69fe9"),
    "keggdirected": UCISet(48_827, 20, "51b7bb56e3f3eae36273cdd5a549c042bdf0ec10948a6f8e6b01a1d6912212cd", "b8a7fc902444fdbc5866e8bf314e4778a303d675ef5267c83c5c25b70dacd357"),
}  # fmt: skip


def load_uci(name: str, split: int) -> Dataset:
    """Load set `name` with the test rows of split 0 … 9.

    Files are searched in the folders uci/NAME of `data_folders`, and otherwise downloaded into the user's
    cache.

    Raises ValueError for an unknown set or split, for files that cannot be found, downloaded or read, and for
    files of another set.
    """
    if name not in UCI_SETS:
        raise ValueError(f"uci:{name}: no such set; {did_you_mean(name, UCI_SETS)}")
    if split not in range(N_SPLITS):
        raise ValueError(f"uci:{name}: split {split} does not exist; the splits are 0 to {N_SPLITS - 1}")
    known, folders = UCI_SETS[name], data_folders("uci", name)
    find = lambda file, digest: find_file(f"uci:{name}", file, folders, f"{SOURCE}/{name}/{file}", digest)
    test = _read(find(MASK_FILE, known.mask), columns=[split]).column(0).to_numpy().astype(bool)
    data = _read(find(DATA_FILE, known.data))
    if data.num_columns != known.inputs + 1 or not data.num_rows == len(test) == known.rows:
        raise ValueError(
            f"uci:{name}: expected {known.rows} rows of {known.inputs} inputs and a target, got {data.num_rows} rows "
            f"of {data.num_columns} columns and a mask of {len(test)}"
        )
    names = tuple(f"x{j}" for j in range(known.inputs))
    return Dataset(*_divide(data, ~test), *_divide(data, test), names, "y", f"uci:{name}:{split}")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}"


def _read(path: Path, columns: list[int] | None = None) -> pa.Table:
    """Return all or some columns of a csv.gz without header, as float64."""
    try:
        table = pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(autogenerate_column_names=True),
            convert_options=pa_csv.ConvertOptions(include_columns=[f"f{j}" for j in columns or ()]),
        )
        return table.cast(pa.schema([(column, pa.float64()) for column in table.column_names]))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: cannot be read; truncated or damaged? ({_reason(error)})") from error


def _divide(data: pa.Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [n, D] and target [n] of the chosen rows."""
    X = np.empty((int(rows.sum()), data.num_columns - 1), np.float64)
    for j in range(X.shape[1]):
        X[:, j] = data.column(j).to_numpy()[rows]
    return X, data.column(data.num_columns - 1).to_numpy()[rows]
