"""Standard errors of parameters that minimise a mean of losses of dependent rows."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

MIN_CELLS, MAX_CELLS = 32, 128
FLAT = 1e-3  # of the squared length of a parameter, in directions in which the loss does not bend
CELL = 4  # times the neighbours of a row, at least that many centres in a cell where there are enough


class StandardErrors(NamedTuple):
    """Of a run's θ̂, by G cells of rows: 95 % intervals are θ̂ ± t e, t the .975 quantile of Student's t with G − 1 degrees of freedom.

    Parameters
    ----------
    parameters, loss : tree, float
        e of the unconstrained parameters that train; that of the loss as an estimate of the loss of new rows.
    degrees_of_freedom : int
        G − 1.
    """

    parameters: Any
    loss: float
    degrees_of_freedom: int


def cells_of(
    X: Float[np.ndarray, "C D"], n_neighbours: int, group: Int[np.ndarray, " C"] | None = None
) -> Int[np.ndarray, " C"]:
    """A cell for each centre, so that centres of different cells have few neighbours in common: its group, or a box of inputs.

    Boxes are halved at the median of their widest input, to 32, 64 or 128 of them: about C/(4m).
    """
    if group is not None:
        return np.unique(group, return_inverse=True)[1]
    wanted = np.clip(len(X) // (CELL * max(n_neighbours, 1)), MIN_CELLS, MAX_CELLS)
    boxes = [np.arange(len(X))]
    while len(boxes) < wanted:
        boxes = [half for box in boxes for half in _halves(X, box)]
    cells = np.empty(len(X), np.int64)
    for number, box in enumerate(boxes):
        cells[box] = number
    return cells


def godambe(hessian: Float[np.ndarray, "P P"], spread: Float[np.ndarray, "P P"]) -> Float[np.ndarray, " P"]:
    """√diag(H⁻¹ J H⁻¹): standard errors of θ̂, J the covariance of the mean gradient (Godambe 1960).

    Infinite where the loss is flat, as of a noise variance that went to 0. Only for a likelihood of independent rows J is H/N, and H⁻¹ J H⁻¹ the inverse
    information.
    """
    values, vectors = np.linalg.eigh(hessian)
    known = values > len(values) * np.finfo(float).eps * max(values[-1], 0.0)
    inverse = vectors[:, known] / values[known] @ vectors[:, known].T
    errors = np.sqrt(np.maximum(np.diagonal(inverse @ spread @ inverse), 0))
    return np.where(np.sum(vectors[:, ~known] ** 2, axis=1) > FLAT, np.inf, errors)


def named(errors: Any) -> dict[str, Any]:
    """{name of a parameter: the standard errors of its unconstrained numbers, None for infinite ones} of a tree of them."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(errors, eqx.is_inexact_array_like))
    return {_name(path): _listed(np.asarray(leaf, np.float64)) for path, leaf in leaves}


def _listed(values: np.ndarray) -> Any:
    shown = [float(f"{x:.3g}") if np.isfinite(x) else None for x in values.ravel()]
    return shown if values.ndim else shown[0]


def _name(path: Any) -> str:
    parts = [str(getattr(part, "name", getattr(part, "idx", getattr(part, "key", part)))) for part in path]
    return ".".join(part for part in parts if part != "raw")


def _halves(X: Float[np.ndarray, "C D"], box: Int[np.ndarray, " B"]) -> tuple[np.ndarray, np.ndarray]:
    widest = int(np.argmax(np.ptp(X[box], axis=0))) if len(box) else 0
    order = box[np.argsort(X[box, widest], kind="stable")]
    return order[: len(order) // 2], order[len(order) // 2 :]
