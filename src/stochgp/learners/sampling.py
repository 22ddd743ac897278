"""Selection of the rows of a mini-batch of a kernel GP."""

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Int, Int32

from stochgp.data.memory import MemorySource, independent_batches, shuffled_batches
from stochgp.learners.evaluators import Seed
from stochgp.neighbours import Neighbours, neighbours_bytes


def row_bytes(n_inputs: int) -> int:
    """Bytes of a row of a float32 batch on the device."""
    return 4 * (n_inputs + 2)


class AbstractSampling(eqx.Module):
    """Selection of the rows of a batch, a deterministic function of the seed and the step."""

    @abc.abstractmethod
    def prepare(self, source: MemorySource, batch_size: int, total_steps: int, seed: Seed) -> Any:
        """Compute constants before the first step; the host keeps them."""

    @abc.abstractmethod
    def batches(
        self, prepared: Any, first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        """The rows of the batches of steps first_step … first_step + n_steps − 1."""

    @abc.abstractmethod
    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """The memory of `prepare` and of its result."""


class Uniform(AbstractSampling):
    """Rows drawn uniformly: without replacement in shuffled epochs, or independently.

    Parameters
    ----------
    replace : bool
        True: rows are drawn independently, with replacement.
    """

    replace: bool = False

    def prepare(
        self, source: MemorySource, batch_size: int, total_steps: int, seed: Seed
    ) -> Int[np.ndarray, " N"]:
        return np.arange(source.size, dtype=np.int32)

    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """Bytes of the row numbers and of a shuffle of them."""
        return 16 * n_rows

    def batches(
        self, prepared: Int[np.ndarray, " N"], first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        draw = independent_batches if self.replace else shuffled_batches
        return draw(prepared, batch_size, first_step, n_steps, seed)


class NearestNeighbours(AbstractSampling):
    """Batches of a centre and its B − 1 nearest rows by Euclidean distance: standardise first.

    Centres are drawn without replacement, in shuffles of all rows. Neighbours of the drawn centres are searched once, before the first step.
    """

    def prepare(
        self, source: MemorySource, batch_size: int, total_steps: int, seed: Seed
    ) -> tuple[Int32[np.ndarray, "U B"], Int32[np.ndarray, " steps"]]:
        """Return neighbourhoods [U, B], one per distinct centre, and the index for each step."""
        drawn = _centres(source.size, total_steps, seed)
        position = np.zeros(source.size, np.int32)
        position[drawn] = 1
        centres = np.flatnonzero(position)
        position[centres] = np.arange(len(centres), dtype=np.int32)
        rows = Neighbours(source.inputs(np.float64)).around(centres, batch_size)
        return rows, position[drawn]

    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """Bytes of the rows in float64, the tree, the lists and the centres."""
        n_centres = min(n_rows, total_steps)
        rows = (8 * n_inputs + 16) * n_rows + 8 * total_steps
        return rows + neighbours_bytes(None, n_rows, n_inputs, n_centres, batch_size)

    def batches(
        self, prepared: tuple[Any, Any], first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        rows, order = prepared
        return rows[order[first_step : first_step + n_steps]]


def _centres(n_rows: int, n_steps: int, seed: Seed) -> Int32[np.ndarray, " steps"]:
    """Shuffles of all rows, one after the other, cut after `n_steps`."""
    rows, generator = np.arange(n_rows, dtype=np.int32), np.random.default_rng(seed)
    shuffles = [generator.permutation(rows) for _ in range(-(-n_steps // n_rows))]
    return np.concatenate(shuffles)[:n_steps]
