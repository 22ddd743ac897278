"""Which rows make a mini-batch of a kernel GP."""

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int, Int32

from stochgp.data.streams import AbstractSource, independent_batches, shuffled_batches
from stochgp.learners.evaluators import Seed
from stochgp.neighbours import Neighbours, neighbours_bytes

CHUNK_ROWS = 1 << 16
HEAVY = 2.0  # times that a batch would have a row


def row_bytes(n_inputs: int) -> int:
    """Of a row of a float32 batch on the device."""
    return 4 * (n_inputs + 2)


class AbstractSampling(eqx.Module):
    """How the rows of a batch are chosen: a deterministic function of the seed and the step."""

    @abc.abstractmethod
    def prepare(self, source: AbstractSource, batch_size: int, total_steps: int, seed: Seed) -> Any:
        """What is computed once before the first step; the host keeps it."""

    @abc.abstractmethod
    def batches(
        self, prepared: Any, first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        """The rows of the batches of steps first_step … first_step + n_steps − 1."""

    def factors(self, prepared: Any, batch_size: int) -> Float[np.ndarray, " B"] | None:
        """Factors of the weights of a batch, with which N/B times its sum is unbiased of that of all rows; None = 1."""
        return None

    @abc.abstractmethod
    def need_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """The memory that `prepare` takes, and that of its result."""


class Uniform(AbstractSampling):
    """Rows drawn uniformly: without replacement in shuffled epochs, or independently.

    Parameters
    ----------
    replace : bool
        True: rows are drawn independently, with replacement.
    """

    replace: bool = False

    def prepare(
        self, source: AbstractSource, batch_size: int, total_steps: int, seed: Seed
    ) -> Int[np.ndarray, " N"]:
        return np.arange(source.size, dtype=np.int32)

    def need_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """The numbers of the rows, and a shuffle of them."""
        return 16 * n_rows

    def batches(
        self, prepared: Int[np.ndarray, " N"], first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        draw = independent_batches if self.replace else shuffled_batches
        return draw(prepared, batch_size, first_step, n_steps, seed)


class HeavyInAll(AbstractSampling):
    """Uniform, without replacement in shuffled epochs, but heavy rows are in every batch, which lowers the variance of its sum.

    Row i is heavy if B draws in proportion to the weights would have it more than HEAVY times, heavier rows excluded. A batch of all H heavy
    rows and B − H of the N − H others has N/B Σ c_i ρ_i g_i as an unbiased estimate of Σ ρ_i g_i, c = B/N for the H and
    (B/N)(N − H)/(B − H) for the others. Without heavy rows it is `Uniform`, bit for bit.
    """

    def prepare(
        self, source: AbstractSource, batch_size: int, total_steps: int, seed: Seed
    ) -> tuple[Int32[np.ndarray, " H"], Int32[np.ndarray, " rest"]]:
        """(Numbers of the rows that every batch has, and of the others, of which it takes some)."""
        rows = np.arange(source.size, dtype=np.int32)
        heavy = rows[:0] if batch_size >= source.size else heavy_rows(source.weights(), batch_size)
        return heavy, np.delete(rows, heavy)

    def need_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """The numbers of the rows, a shuffle of them, their weights and the order of these."""
        return 32 * n_rows

    def batches(
        self, prepared: tuple[Any, Any], first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        heavy, others = prepared
        some = shuffled_batches(others, batch_size - len(heavy), first_step, n_steps, seed)
        return np.concatenate([np.tile(heavy, (n_steps, 1)), some], axis=1)

    def factors(self, prepared: tuple[Any, Any], batch_size: int) -> Float[np.ndarray, " B"] | None:
        H, L = map(len, prepared)
        if H == 0:
            return None
        drawn = batch_size - H
        return np.repeat([batch_size / (H + L), batch_size / (H + L) * L / drawn], [H, drawn])


def heavy_rows(count: Float[np.ndarray, " N"], batch_size: int) -> Int32[np.ndarray, " H"]:
    """The rows of `HeavyInAll`, the heaviest first; at most half a batch."""
    order = np.argsort(-count, kind="stable")[: batch_size // 2]
    rest = np.cumsum(np.sort(count), dtype=np.float64)[::-1][: len(order)]  # of each and those lighter
    light = count[order] * (batch_size - np.arange(len(order))) <= HEAVY * rest
    return order[: int(np.argmax(light)) if light.any() else len(order)].astype(np.int32)


class NearestNeighbours(AbstractSampling):
    """A centre and its B − 1 nearest rows, in Euclidean distance of the inputs as the source gives them: standardise them.

    Centres are drawn without replacement, in shuffles of all rows. Neighbours of the drawn centres are searched once, before the first step.
    """

    def prepare(
        self, source: AbstractSource, batch_size: int, total_steps: int, seed: Seed
    ) -> tuple[Int32[np.ndarray, "U B"], Int32[np.ndarray, " steps"]]:
        """(A centre and its B − 1 nearest rows, once for each row that is a centre; which of these neighbourhoods each step takes)."""
        drawn = _centres(source.size, total_steps, seed)
        position = np.zeros(source.size, np.int32)
        position[drawn] = 1
        centres = np.flatnonzero(position)
        position[centres] = np.arange(len(centres), dtype=np.int32)
        rows = Neighbours(host_inputs(source, np.float64)).around(centres, batch_size)
        return rows, position[drawn]

    def need_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """The rows in float64, the tree, the lists, the centres."""
        n_centres = min(n_rows, total_steps)
        rows = (8 * n_inputs + 16) * n_rows + 8 * total_steps
        return rows + neighbours_bytes(None, n_rows, n_inputs, n_centres, batch_size)

    def batches(
        self, prepared: tuple[Any, Any], first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        rows, order = prepared
        return rows[order[first_step : first_step + n_steps]]


def host_inputs(source: AbstractSource, dtype: Any = None) -> Float[np.ndarray, "N D"]:
    """The inputs of all rows, in the dtype of the source, or in `dtype`."""
    first = np.asarray(source.take(np.arange(min(1, source.size))).X)
    X = np.empty((source.size, source.n_inputs), first.dtype if dtype is None else dtype)
    for start in range(0, source.size, CHUNK_ROWS):
        rows = np.arange(start, min(start + CHUNK_ROWS, source.size))
        X[rows] = np.asarray(source.take(rows).X)
    return X


def _centres(n_rows: int, n_steps: int, seed: Seed) -> Int32[np.ndarray, " steps"]:
    """Shuffles of all rows, one after the other, cut after `n_steps`."""
    rows, generator = np.arange(n_rows, dtype=np.int32), np.random.default_rng(seed)
    shuffles = [generator.permutation(rows) for _ in range(-(-n_steps // n_rows))]
    return np.concatenate(shuffles)[:n_steps]
