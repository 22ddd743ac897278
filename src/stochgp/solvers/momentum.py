"""Momentum, and averages of iterates, with steps that change only the rows of their batch.

Momentum methods move every coordinate at every step, although a stochastic gradient has only B rows. Their iterates are linear in two
sequences. One changes only in the batch's rows; the other also decays:
    u ← u − a E δ,   d ← ρ d − c E δ,   look-ahead z = u − κ d,   iterate α = u − λ d,   E δ: δ [B, S] put into its rows.

The average ᾱ ← rα + (1 − r)ᾱ is similar: ᾱ = u − λ p d − e with p = rρ / (ρ + r − 1) and
    e ← (1 − r)(e + Δu − λ p Δd / ρ),

where Δu = −a E δ and Δd = −c E δ. d and e are stored as scale · array, so that decay costs one number; `regrouped` multiplies the
scale into the array before it leaves float32. A step costs O(B S) beside its kernel rows, not O(N S).
"""

import abc
import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from stochgp.operators import KernelOperator
from stochgp.solvers.base import AbstractIterativeSolver, Arranged

SMALLEST_SCALE = 1e-4
SHORTEST_HORIZON = 0.75  # epochs
FIRST_STAGE = 3  # epochs; each stage ends at twice the epochs of the one before
SLOWEST_DECAY = 0.75  # of the accelerated rules, in one step
MOST_OF_A_GROUP = 64  # in steps
APART = 0.01  # least relative distance of r from 1 − ρ, where the two decays would be equal


class Coefficients(NamedTuple):
    """The coefficients ρ, κ, a, c, λ, r of the module; r = 1 means no average."""

    rho: Float[Array, ""]
    kappa: Float[Array, ""]
    along: Float[Array, ""]  # a
    across: Float[Array, ""]  # c
    lag: Float[Array, ""]  # λ
    averaging: Float[Array, ""]  # r


class Moving(eqx.Module):
    """A point that moves with momentum, and the average of its past."""

    u: Float[Array, "P S"]
    D: Float[Array, "P S"]  # d = d_scale D
    E: Float[Array, "P S"] | None  # e = e_scale E; None = no average
    d_scale: Float[Array, ""]
    e_scale: Float[Array, ""]
    coefficients: Coefficients


def nesterov(rho: float, step_size: float, averaging: float, dtype: DTypeLike) -> Coefficients:
    """Nesterov's momentum (Lin et al. 2024, Algorithm 1): v ← ρv − β E g, α ← α + v.

    The gradient is at α + ρv; u = α + ρ/(1 − ρ) v and d = v. r is moved by 1 % if it is within 1 % of 1 − ρ.
    """
    if averaging < 1 and abs(rho + averaging - 1) < APART * averaging:
        averaging *= 1 + APART
    if rho == 0:
        return _coefficients(1.0, 0.0, step_size, 0.0, 0.0, averaging, dtype)
    share = rho / (1 - rho)
    return _coefficients(rho, rho * share, step_size / (1 - rho), step_size, share, averaging, dtype)


def accelerated(horizon: float, n_blocks: int, dtype: DTypeLike) -> Coefficients:
    """Accelerated random block descent (Nesterov 2012; Tu et al. 2017).

    It has three sequences w, v, z with

        w = z − E δ,   v ← β v + (1 − β) z − γ E δ,   z ← a v + (1 − a) w,
        β = 1 − √(μ/ν), γ = 1/√(μν), a = 1/(1 + γν), ν = n_blocks, μ = 1 / (n_blocks horizon²).

    The two sequences of this module are u = (aβ v + (1 − β) z) / (aβ + 1 − β) and d = v − z. The momentum forgets, and z is averaged, over
    `horizon` epochs. A horizon below 3/4, or one block, is descent without momentum, averaged over an epoch.
    """
    if n_blocks == 1 or horizon < SHORTEST_HORIZON:
        return _coefficients(1.0, 0.0, 1.0, 0.0, 0.0, 1 / n_blocks, dtype)
    horizon = max(horizon, 8 / n_blocks)
    beta, gamma = 1 - 1 / (horizon * n_blocks), horizon
    a = 1 / (1 + gamma * n_blocks)
    total = a * beta + 1 - beta
    kappa, along = a * beta / total, (a * gamma + (1 - beta) * (1 - a)) / total
    rho = beta * (1 - a)
    return _coefficients(rho, kappa, along, (1 - a) * (gamma - 1), kappa, (1 - rho) / 2, dtype)


def horizon(epoch: int) -> float:
    """The horizon of the momentum: 1 epoch, then a third of the epochs before a stage began."""
    return float(2 ** max(0, int(math.log2(epoch / FIRST_STAGE)))) if epoch >= FIRST_STAGE else 1.0


def at_rest(start: Float[Array, "P S"], coefficients: Coefficients, *, average: bool) -> Moving:
    """Return the state at `start` without velocity, which is also the average."""
    nothing, one = jnp.zeros_like(start), jnp.ones((), start.dtype)
    return Moving(start, nothing, nothing if average else None, one, one, coefficients)


def ahead(moving: Moving, u: Float[Array, "T S"], D: Float[Array, "T S"]) -> Float[Array, "T S"]:
    """Return z in some rows, given u and D there."""
    return u - moving.coefficients.kappa * moving.d_scale * D


def pushed(moving: Moving, add: Callable[[Array, Array], Array]) -> Moving:
    """Return the state after one step; add(array, factor) adds factor · δ to the batch's rows."""
    rho, _, along, across, lag, r = moving.coefficients
    d_scale, e_scale = rho * moving.d_scale, moving.e_scale
    u, D, E = add(moving.u, -along), add(moving.D, -across / d_scale), moving.E
    if E is not None:
        e_scale = (1 - r) * e_scale
        velocity = lag * _share_of_velocity(moving.coefficients) * across / rho
        E = add(E, (1 - r) * (velocity - along) / e_scale)
    return Moving(u, D, E, d_scale, e_scale, moving.coefficients)


def where_it_is(moving: Moving) -> Float[Array, "P S"]:
    """Return the average, or the iterate if there is no average."""
    lag = moving.coefficients.lag * moving.d_scale
    if moving.E is None:
        return moving.u - lag * moving.D
    return moving.u - lag * _share_of_velocity(moving.coefficients) * moving.D - moving.e_scale * moving.E


def regrouped(moving: Moving) -> Moving:
    """Return the same state with scales of 1."""
    one = jnp.ones_like(moving.d_scale)
    E = None if moving.E is None else moving.e_scale * moving.E
    return Moving(moving.u, moving.d_scale * moving.D, E, one, one, moving.coefficients)


def with_coefficients(moving: Moving, coefficients: Coefficients) -> Moving:
    """Continue from the same look-ahead point, velocity and average."""
    z, d, average = ahead(moving, moving.u, moving.D), moving.d_scale * moving.D, where_it_is(moving)
    u, one = z + coefficients.kappa * d, jnp.ones_like(moving.d_scale)
    E = None
    if moving.E is not None:
        E = u - coefficients.lag * _share_of_velocity(coefficients) * d - average
    return Moving(u, d, E, one, one, coefficients)


def _share_of_velocity(coefficients: Coefficients) -> Float[Array, ""]:
    rho, r = coefficients.rho, coefficients.averaging
    return r * rho / (rho + r - 1)


def _coefficients(*values: object) -> Coefficients:
    *numbers, dtype = values
    return Coefficients(*(jnp.asarray(number, dtype) for number in numbers))  # pyright: ignore[reportArgumentType]


def error_ahead(
    operator: KernelOperator, b: Float[Array, "P S"], moving: Moving, rows: Int[Array, " B"]
) -> Float[Array, "B S"]:
    """Return A z − b in any rows, z the look-ahead point."""
    z = ahead(moving, *operator.pick((moving.u, moving.D), rows))
    noise, wanted = operator.pick((operator.noise, b), rows)
    Kz = operator.rows_times(rows, (moving.u, moving.D), lambda part: ahead(moving, *part))
    return Kz + noise[:, None] * z - wanted


_continued = eqx.filter_jit(with_coefficients)  # compiles once, not once per operation


class AbstractMovingSolver(AbstractIterativeSolver):
    """A solver with state `Moving`; a subclass defines its steps and momentum coefficients."""

    @abc.abstractmethod
    def _coefficients(self, arranged: Arranged, epoch: int, n_failures: int) -> Coefficients:
        """The coefficients for this epoch of a run after `n_failures` divergences."""

    def _decays(self) -> tuple[float, ...]:
        """The factors of the scales in one step."""
        return (SLOWEST_DECAY,)

    def _averages(self, n_steps: int) -> bool:
        """Return True if iterates are averaged; steps with all rows are exact and need no average."""
        return n_steps > 1

    def init(
        self,
        arranged: Arranged,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"] | None,
        left: Float[Array, "P S"] | None = None,
    ) -> Moving:
        start = jnp.zeros_like(b) if start is None else start
        average = self._averages(self.steps_per_epoch(arranged.operator.size))
        return at_rest(start, self._coefficients(arranged, 0, 0), average=average)

    def at_epoch(self, arranged: Arranged, state: Moving, epoch: int, n_failures: int) -> Moving:
        return _continued(state, self._coefficients(arranged, epoch, n_failures))

    @property
    def steps_per_group(self) -> int:
        """The number of steps that keeps decaying scales above 1e-4."""
        fastest = min((rate for rate in self._decays() if 0 < rate < 1), default=0.99)
        return max(1, min(MOST_OF_A_GROUP, int(math.log(SMALLEST_SCALE) / math.log(fastest))))

    def regroup(self, state: Moving) -> Moving:
        return regrouped(state)

    def value(self, state: Moving) -> Float[Array, "P S"]:
        return where_it_is(state)
