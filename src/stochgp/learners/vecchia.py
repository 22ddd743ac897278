"""Vecchia: the likelihood of rows in an order, each given the nearest ones before it."""

from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from stochgp.learners.conditionals import AbstractConditionals, Prepared, kernel_of
from stochgp.models import AbstractGP
from stochgp.neighbours import earlier_rows


class Vecchia(AbstractConditionals):
    """The likelihood of Vecchia (1988): rows in a random order, each predicted from the rows nearest to it among those before it.

        L(θ) = (1/n) Σ_i {−log p(y_i | y_c(i)) + ½[(ρ_i − 1) log(2πσ² s_i) + log ρ_i]},   c(i) = m earlier rows of high correlation with row i

    L is the NLML per datum of a proper Gaussian density of all n = Σρ_i data, exact with m = N − 1; by C of the N rows it is estimated without bias. Early
    rows have far neighbours: long distances count more than for `LeaveOneOut`. Groups play no part. `converged` as there.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, n_neighbours, n_centres, spread, searches, judge
        As of `LeaveOneOut`, but the n of the prior is C Σρ/N, the sum over all N rows.
    """

    joint: ClassVar[bool] = True
    n_scored: ClassVar[int] = 1

    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "C k"]:
        positions = np.empty_like(prepared.order)
        positions[prepared.order] = np.arange(len(prepared.order), dtype=np.int32)
        return earlier_rows(kernel_of(self, gp), prepared.X, prepared.order, positions[prepared.centres], k)
