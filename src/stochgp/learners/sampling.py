"""Selection of the rows of a mini-batch, a deterministic function of the seed and the step."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Int, Int32

from stochgp.data.memory import MemorySource, independent_batches, shuffled_batches
from stochgp.learners.evaluators import Seed
from stochgp.neighbours import Neighbours, neighbours_bytes


class Uniform(eqx.Module):
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
        """Compute constants before the first step; the host keeps them."""
        return np.arange(source.size, dtype=np.int32)

    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """Bytes of the row numbers and of a shuffle of them."""
        return 16 * n_rows

    def batches(
        self, prepared: Any, first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        """Return the rows of the batches of steps first_step … first_step + n_steps − 1."""
        draw = independent_batches if self.replace else shuffled_batches
        return draw(prepared, batch_size, first_step, n_steps, seed)


class NearestNeighbours(eqx.Module):
    """Batches of a centre and its B − 1 nearest rows by Euclidean distance: standardise first.

    Centres are drawn without replacement, in shuffles of all rows. Neighbours of the drawn centres are searched once, before the first step.
    """

    def prepare(
        self, source: MemorySource, batch_size: int, total_steps: int, seed: Seed
    ) -> tuple[Int32[np.ndarray, "U B"], Int[np.ndarray, " steps"]]:
        """Return neighbourhoods [U, B], one per distinct centre, and the index for each step."""
        rows, generator = np.arange(source.size, dtype=np.int32), np.random.default_rng(seed)
        shuffles = [generator.permutation(rows) for _ in range(-(-total_steps // source.size))]
        centres, order = np.unique(np.concatenate(shuffles)[:total_steps], return_inverse=True)
        others = Neighbours(source.inputs(np.float64)).others(centres, batch_size - 1)
        return np.column_stack([centres.astype(np.int32), others]), order

    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """Bytes of the rows in float64, the tree, the lists and the centres."""
        rows = (8 * n_inputs + 16) * n_rows + 16 * total_steps
        n_centres = min(n_rows, total_steps)
        return rows + neighbours_bytes(None, n_rows, n_inputs, n_centres, batch_size)

    def batches(
        self, prepared: tuple[Any, Any], first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        """Return the rows of the batches of these steps."""
        rows, order = prepared
        return rows[order[first_step : first_step + n_steps]]
