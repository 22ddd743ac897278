"""`tanimoto`: seconds of a block of Tanimoto similarities, 512 × 41,913 molecules of 1,024 bits (those that RDKit reads), against its bulk routine.

The same molecules (the NCI screen, Morgan bits of radius 2), the same pairs, in one process, in turns; all cores for both, as each uses them:
RDKit's routine takes one molecule against all and runs on one core. float32 beside RDKit's float64. The similarities agree to float32.
With fpsketch installed, its sketches' error stands beside that of our hashes, both of 1,024 numbers.
"""

import importlib.util
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from measuring.timing import alternate

KEYS = ("side",)
ROWS, COLUMNS, N_BITS, N_FEATURES = 512, 41_913, 1024, 1024
PAIRS = 10_000


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """A row for each side, and one for each kind of random features."""
    import jax
    import jax.numpy as jnp

    from stochgp import kernels

    n_columns, n_rows = (2_000, 64) if quick else (COLUMNS, ROWS)
    vectors, packed = _molecules(n_columns)
    words = jnp.asarray(packed.words)
    kernel = kernels.Tanimoto(packed=True)
    matrix = jax.jit(lambda X, Z: kernel.matrix(X, Z))
    sides = {
        "stochgp": lambda: matrix(words[:n_rows], words).block_until_ready(),
        "rdkit": lambda: _bulk(vectors, n_rows),
    }
    worst = float(np.abs(np.asarray(sides["stochgp"]()) - sides["rdkit"]()).max())
    report(f"largest difference {worst:.2g}, {packed.nbytes / len(packed):.0f} bytes a molecule")
    seconds = alternate(sides, blocks=2 if quick else 4, epochs=2)
    rows = [
        {
            "side": side,
            "seconds": median(times),
            "least_seconds": min(times),
            "error": worst if side == "stochgp" else 0.0,
        }
        for side, times in seconds.items()
    ]
    rows += _features(packed, report)
    settings = {
        "rows": n_rows,
        "columns": n_columns,
        "bits": N_BITS,
        "bytes_a_molecule": packed.nbytes / len(packed),
    }
    return {"settings": settings, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Seconds, and errors: the largest of similarities, the root mean square of random features."""
    return ["side", "seconds", "least", "error"], [
        [r["side"], round(r["seconds"], 4), round(r["least_seconds"], 4), f"{r['error']:.2g}"]
        for r in result["rows"]
    ]


def _molecules(n: int) -> tuple[list[Any], Any]:
    """(RDKit's bit vectors, the packed rows)."""
    from rdkit import Chem, rdBase
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    from benchmarks.datasets.molecule_sets import read_molecule_file
    from stochgp.data import Fingerprints

    generator = GetMorganGenerator(radius=2, fpSize=N_BITS)
    with rdBase.BlockLogs():
        read = [Chem.MolFromSmiles(text) for text in read_molecule_file("hiv")["smiles"].to_pylist()[:n]]
    molecules = [molecule for molecule in read if molecule is not None]
    vectors = [generator.GetFingerprint(molecule) for molecule in molecules]
    bits = np.array(
        [np.frombuffer(bytes(vector.ToBitString(), "ascii"), np.uint8) - ord("0") for vector in vectors]
    )
    return vectors, Fingerprints.from_bytes(np.packbits(bits, axis=1), N_BITS)


def _bulk(vectors: list[Any], n_rows: int) -> np.ndarray:
    from rdkit import DataStructs

    return np.array([DataStructs.BulkTanimotoSimilarity(vector, vectors) for vector in vectors[:n_rows]])


def _features(packed: Any, report: Callable[[str], object]) -> list[dict]:
    """Root-mean-square errors of random features' products over pairs of molecules."""
    import jax
    import jax.numpy as jnp

    from stochgp import features, kernels

    rng = np.random.default_rng(0)
    some = packed[rng.permutation(len(packed))[:400]]
    words = jnp.asarray(some.words)
    left, right = (rng.integers(0, len(some), PAIRS) for _ in range(2))
    T = np.asarray(kernels.Tanimoto(packed=True).matrix(words, words))[left, right]
    phi = features.TanimotoHashes.init(
        kernels.Tanimoto(packed=True), words.shape[1], N_FEATURES, key=jax.random.key(0)
    )
    Phi = np.asarray(jax.jit(lambda X: phi(X))(words), np.float64)
    errors = {"hashes": np.sum(Phi[left] * Phi[right], axis=1) - T}
    if importlib.util.find_spec("fpsketch") is None:
        report("fpsketch is not installed: pip install fpsketch")
    else:
        errors["fpsketch"] = _sketched(some)[left, right] - T
    return [
        {"side": side, "seconds": 0.0, "least_seconds": 0.0, "error": float(np.sqrt(np.mean(error**2)))}
        for side, error in errors.items()
    ]


def _sketched(packed: Any) -> np.ndarray:
    """Similarities from fpsketch's count sketches: the ratio s·z / (‖s‖² + ‖z‖² − s·z), which is no product of features."""
    import fpsketch

    counts = packed.counts()
    rows = np.split(counts.indices, counts.indptr[1:-1])
    elements = [dict.fromkeys(row.tolist(), 1) for row in rows]
    S = np.asarray(fpsketch.encode_sparse(elements, N_FEATURES))
    products, norms = S @ S.T, np.sum(S**2, axis=1)
    return products / (norms[:, None] + norms[None, :] - products)
