"""Leave-one-out and Vecchia: densities of rows given the rows nearest to them."""

from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from stochgp.learners.conditionals import N_NEIGHBOURS, AbstractConditionals, Prepared, kernel_of
from stochgp.models import AbstractGP
from stochgp.neighbours import SLACK, Neighbours, earlier_rows

N_SCORED, BESIDE_SCORED = 8, 56  # rows that a neighbourhood scores, and rows beside them


class LeaveOneOut(AbstractConditionals):
    """Leave-one-out density: every row is predicted from the rows nearest to it, all others taken into account.

        L(θ) = −Σρ_i log p(y_i | y_c(i)) / Σρ_i,   c(i) = m rows of highest correlation with row i, without itself and its group

    With `n_scored` R above 1 (block leave-one-out) a neighbourhood, a centre and the m rows nearest to it, scores the centre and the R − 1 rows nearest to it, each given all others:
    one factor scores all of them, and c(i) are then near rows, not always the nearest.

    It is no joint density, but the true θ minimises its expectation whatever c(i) is. A row of count ρ is left out whole. It is scored as one observation, of
    variance v_i + σ² s_i, that counts ρ times; as a neighbour of others it has the noise variance σ² s/ρ. It is too optimistic if test rows are farther from the
    training rows than these from each other (repeated measurements, later days), unless the rows come with their groups.

    `converged`: T²/P = C ∇Lᵀ Γ⁻¹ ∇L / P is below 0.01 on the last neighbours, Γ the covariance of the gradients of rows: θ is within a tenth of
    a standard error of the optimum. Or another step promises less than 0.0001 nats a row; or all passes were taken and the loss had settled, by
    less than 0.01 nats a row: see `ByLoss`.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, evaluator
        As of `AbstractLearner`; a step is a pass over the centres, epochs None = 12 rounds, fewer if the run converges. Rate (None = 0.1) and rules are of the
        mini-batches of 128 centres.
    n_neighbours, n_centres, n_scored : int
        m + 1 − R, the rows of a neighbourhood that are given to all that it scores; C, how many rows are scored, by C/R neighbourhoods whose centres are drawn once
        without replacement, all rows where there are fewer; R, 1 where groups have several rows.
    spread : float or None
        s of the prior ‖x − x₀‖²/(2 s² n) of the unconstrained parameters around their start, n = (Σρ)²/Σρ² of the centres, C for equal weights: it
        decides what the rows leave open. None = no prior.
    searches : int
        Rounds of mini-batches, each after a search of neighbours; the last search is after them, and scoring steps follow. 0 where θ is near its optimum.
    """

    joint: ClassVar[bool] = False

    n_neighbours: int = BESIDE_SCORED
    n_scored: int = N_SCORED

    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "C k"]:
        search = Neighbours(prepared.X, kernel_of(self, gp), SLACK)
        return search.others(prepared.centres, k, prepared.group)


# Each row from its nearest: of groups, and of few rows.
ROW_BY_ROW = LeaveOneOut(n_neighbours=N_NEIGHBOURS, n_scored=1)


class Vecchia(AbstractConditionals):
    """The likelihood of Vecchia (1988): rows in a random order, each predicted from the rows nearest to it among those before it.

        L(θ) = (1/n) Σ_i {−log p(y_i | y_c(i)) + ½[(ρ_i − 1) log(2πσ² s_i) + log ρ_i]},   c(i) = m earlier rows of high correlation with row i

    L is the NLML per datum of a proper Gaussian density of all n = Σρ_i data, exact with m = N − 1; by C of the N rows it is estimated without bias. Early
    rows have far neighbours: long distances count more than for `LeaveOneOut`. Groups play no part. `converged` as there.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, n_neighbours, n_centres, spread, searches, evaluator
        As of `LeaveOneOut`, but the n of the prior is C Σρ/N, the sum over all N rows.
    """

    joint: ClassVar[bool] = True
    n_scored: ClassVar[int] = 1

    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "C k"]:
        positions = np.empty_like(prepared.order)
        positions[prepared.order] = np.arange(len(prepared.order), dtype=np.int32)
        return earlier_rows(kernel_of(self, gp), prepared.X, prepared.order, positions[prepared.centres], k)
