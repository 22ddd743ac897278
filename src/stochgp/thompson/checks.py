"""What a sampler is given, checked: boxes, candidates, points and observations."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stochgp.data import Fingerprints
from stochgp.data.fingerprint_rows import Inputs
from stochgp.data.standardise import refuse_not_finite
from stochgp.data.target_rows import read_targets
from stochgp.families.kernel_choice import inputs_of
from stochgp.kernels import AbstractKernel
from stochgp.parameters import Frozen
from stochgp.thompson.maximise import Box

OUTSIDE = 1e-6  # of the width of the box: what lies outside by less is rounding


def check_points(bounds: Any, candidates: Any, batch_size: Any) -> None:
    """Raises ValueError unless there is one of a box and candidates, and `batch_size` is a whole number of at least 1."""
    if (bounds is None) == (candidates is None):
        raise ValueError("give either bounds, a box, or candidates, the points that there are")
    if isinstance(batch_size, bool) or int(batch_size) != batch_size or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number of at least 1")


def read_box(bounds: Any) -> Box:
    """From [D, 2] lower and upper ends. Raises ValueError, naming the input, where one is not finite or not above the other."""
    found = np.asarray(bounds, np.float64)
    if found.ndim != 2 or found.shape[1] != 2 or len(found) == 0:
        raise ValueError(
            f"bounds must be [D, 2], a lower and an upper end for each input, but got {found.shape}"
        )
    bad = ~(np.isfinite(found).all(axis=1) & (found[:, 0] < found[:, 1]))
    if bad.any():
        d = int(np.argmax(bad))
        raise ValueError(
            f"bounds of input {d + 1} are {found[d].tolist()}; the lower end must be below the upper one"
        )
    return Box(found[:, 0].copy(), found[:, 1].copy())


def read_candidates(candidates: Any) -> Float[np.ndarray, "C D"]:
    """Raises ValueError unless they are finite rows."""
    found = np.asarray(candidates, np.float64)
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(f"candidates must be rows [C, D], but got {found.shape}")
    refuse_not_finite(found)
    return found


def packed_candidates(kernel: Any, candidates: Float[np.ndarray, "C D"] | None) -> Fingerprints | None:
    """The candidates as fingerprints, packed together, where the kernel is one of fingerprints; None for any other.

    Raises ValueError for a box, whose points are no fingerprints, and for candidates that are no counts.
    """
    found = inputs_of(kernel)
    if found is not Inputs.NUMBERS and candidates is None:
        raise ValueError(
            "the Tanimoto kernel compares fingerprints, of which no box is full: give candidates in place of bounds"
        )
    return None if found is not Inputs.FINGERPRINTS else Fingerprints.pack(candidates)


def read_points(X: Any, box: Box) -> Float[np.ndarray, "n D"]:
    """Points in the box. Raises ValueError, naming the first that is not."""
    found = np.asarray(X, np.float64)
    D = len(box.lower)
    if found.ndim != 2 or found.shape[1] != D:
        raise ValueError(f"points must be rows [n, {D}], but got {found.shape}")
    refuse_not_finite(found)
    slack = OUTSIDE * box.width
    out = (found < box.lower - slack) | (found > box.upper + slack)
    if out.any():
        row, d = (int(i) for i in np.argwhere(out)[0])
        raise ValueError(
            f"point {row + 1} lies outside the box: its input {d + 1} is {found[row, d]:g}, the bounds are "
            f"[{box.lower[d]:g}, {box.upper[d]:g}]"
        )
    return np.clip(found, box.lower, box.upper)


def read_indices(indices: Any, n_candidates: int) -> Int[np.ndarray, " n"]:
    """Numbers of candidates. Raises ValueError for anything else."""
    found = np.asarray(indices)
    if found.ndim != 1 or not (np.issubdtype(found.dtype, np.integer) or found.size == 0):
        raise ValueError(
            f"with candidates, X must be their numbers [n], but got {found.dtype} of shape {found.shape}"
        )
    bad = (found < 0) | (found >= n_candidates)
    if bad.any():
        raise ValueError(
            f"{int(found[np.argmax(bad)])} is not the number of one of the {n_candidates} candidates"
        )
    return found.astype(np.int64)


def read_observations(y: Any, n_points: int) -> Float[np.ndarray, " n"]:
    """One finite number for each point. Raises ValueError for another count and, with the first row, for NaN and infinity."""
    shape = np.shape(y)
    if shape not in ((n_points,), (n_points, 1)):
        raise ValueError(f"y must have one value for each of the {n_points} points, but got {shape}")
    return read_targets(np.reshape(y, n_points)) if n_points else np.zeros(0)


def check_hyperparameters(kernel: Any, noise_variance: Any, learner: Any) -> None:
    """Without a learner the kernel and the noise must be given. Raises ValueError where they are not."""
    if learner is not None:
        return
    if not isinstance(kernel, AbstractKernel | Frozen):
        raise ValueError(
            f'kernel is {kernel!r}: give a kernel with its hyperparameters, or a learner that finds them (learner="auto")'
        )
    if noise_variance is None:
        raise ValueError(
            'noise_variance is None: give the variance of the noise, or a learner that finds it (learner="auto")'
        )
