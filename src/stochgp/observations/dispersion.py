"""The errors of predictions in units of their standard deviations: Gaussian or Student-t, of a scale that depends on the input."""

import math

import equinox as eqx
import numpy as np
from jaxtyping import Float, Float64

from stochgp.distributions import AbstractDistribution, Normal, Student
from stochgp.distributions.normal import log_student
from stochgp.likelihoods import AbstractNoise, TreeNoise
from stochgp.likelihoods.noise import LARGEST_OF_TREES, known_noise, noise_variances, with_level
from stochgp.numerics.trees import Trees
from stochgp.parameters import frozen

LOG_2PI = math.log(2 * math.pi)

OnHost = Float64[np.ndarray, " N"]
Eta = Float[np.ndarray, "#N"]


class Dispersion(eqx.Module):
    """An observation around its prediction m ± √V, V the variance of f and of the noise: y = m + √(κ s(x) V) T.

    T is standard normal or Student-t. With z² = (y − m)²/V and η = log s(x), and up to −½ log V,

        log p = −½(η + log κ) + log f(√(z² e^(−η)/κ)),   f the density of T.

    Variances c s(x) var f, c = κ var T, and noise c s(x) σ² s₀(x) are, where s hardly changes among the rows that matter for x, those of the kernel
    c √(s(x) s(z)) k(x, z) and of that noise: one factor of both leaves every mean as it is.

    Parameters
    ----------
    factor : float
        κ, of variances.
    df : float or None
        ν, the degrees of freedom of a Student-t T; None = standard normal.
    trees : Trees or None
        log s(x); None = 0.
    """

    factor: float = 1.0
    df: float | None = None
    trees: Trees | None = None

    @property
    def variance(self) -> float:
        """c = κ var T, var T = ν/(ν − 2) of a Student-t."""
        return self.factor * (1.0 if self.df is None else self.df / (self.df - 2))

    @property
    def is_scaling(self) -> bool:
        """Whether variances change."""
        return self.variance != 1.0 or self.trees is not None

    def log_scale(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """η = log s(x), by NumPy."""
        if self.trees is None:
            return np.zeros(len(X))
        return np.clip(self.trees.on_host(np.asarray(X, np.float64)), -LARGEST_OF_TREES, LARGEST_OF_TREES)

    def log_density(self, squares: OnHost, eta: Eta) -> OnHost:
        """log p + ½ log V of each row: in the units of √V."""
        zeta = squares * np.exp(-eta) / self.factor
        log_f = -0.5 * (LOG_2PI + zeta) if self.df is None else log_student(zeta, self.df)
        return -0.5 * (eta + math.log(self.factor)) + log_f

    @property
    def scale(self) -> AbstractNoise:
        """c s(x) as the variances of a noise."""
        scale = known_noise(self.variance)
        return scale if self.trees is None else TreeNoise(scale.level, frozen(self.trees))

    def multiplier(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """c s(x)."""
        return np.asarray(noise_variances(self.scale, X, np.ones(len(X))))

    def of_noise(self, noise: AbstractNoise) -> AbstractNoise:
        """The noise c s(x) σ² s₀(x), σ² s₀(x) the one given."""
        if not self.is_scaling:
            return noise
        level = float(self.scale.level) * float(noise.level)
        if self.trees is not None:
            return TreeNoise(known_noise(level).level, frozen(self.trees), noise)
        return with_level(noise, level)

    def observed(self, mean: OnHost, std: OnHost) -> AbstractDistribution:
        """Of observations with these means and standard deviations, noise and c s(x) included."""
        if self.df is None:
            return Normal(mean, std)
        return Student(mean, std * math.sqrt(1 - 2 / self.df), self.df)
