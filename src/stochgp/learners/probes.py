"""How tr(A⁻¹ ∂A) is estimated by solutions of systems with A = K + Σ."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.models import KernelGP
from stochgp.priors import PriorFunctions, prior_functions


class AbstractProbes(eqx.Module):
    """S right-hand sides b_s and partners v_s with E (A⁻¹b_s)ᵀ ∂A v_s = tr(A⁻¹ ∂A).

    What is random is drawn once for a run, so that solutions for one θ are good starts for the next.
    """

    n_probes: eqx.AbstractVar[int]

    @abc.abstractmethod
    def draw(self, gp: KernelGP, n_rows: int, n_inputs: int, *, key: PRNGKeyArray, dtype: Any) -> Any:
        """What is random."""

    @abc.abstractmethod
    def targets(
        self, drawn: Any, gp: KernelGP, X: Float[Array, "N D"], noise: Float[Array, " N"]
    ) -> Float[Array, "N S"]:
        """b at θ; `noise` is the rows' noise variances."""

    @abc.abstractmethod
    def partners(self, targets: Float[Array, "N S"], solutions: Float[Array, "N S"]) -> Float[Array, "N S"]:
        """v, given b and A⁻¹b."""


class Hutchinson(AbstractProbes):
    """b = v = vectors of random signs: they do not depend on θ.

    Parameters
    ----------
    n_probes : int
        S, systems solved beside that of y.
    """

    n_probes: int = 16

    def draw(
        self, gp: KernelGP, n_rows: int, n_inputs: int, *, key: PRNGKeyArray, dtype: Any
    ) -> Float[Array, "N S"]:
        return jax.random.rademacher(key, (n_rows, self.n_probes), dtype)

    def targets(
        self, drawn: Any, gp: KernelGP, X: Float[Array, "N D"], noise: Float[Array, " N"]
    ) -> Float[Array, "N S"]:
        return drawn

    def partners(self, targets: Float[Array, "N S"], solutions: Float[Array, "N S"]) -> Float[Array, "N S"]:
        return targets


class Pathwise(AbstractProbes):
    """b = f₀(X) + ε, f₀ a prior function and ε ~ N(0, Σ); v = A⁻¹b ~ N(0, A⁻¹) (Lin et al. 2024, arXiv 2405.18457).

    The solutions are also those of posterior samples, and small where the data are many, so that they start nearer to 0.

    Parameters
    ----------
    n_probes : int
        S, systems solved beside that of y.
    n_features : int
        Random features of each prior function, its own, whose error averages out over probes. Where the noise is small it is most of the estimate's
        error, and `Hutchinson` needs fewer probes.
    """

    n_probes: int = 16
    n_features: int = 1000

    def draw(
        self, gp: KernelGP, n_rows: int, n_inputs: int, *, key: PRNGKeyArray, dtype: Any
    ) -> tuple[PriorFunctions, Float[Array, "N S"]]:
        """(Functions, standard normal noise)."""
        function_key, noise_key = jax.random.split(key)
        functions = prior_functions(
            gp.kernel,
            n_inputs,
            self.n_probes,
            n_features=self.n_features,
            group=1,  # an error that all probes share would not average out
            key=function_key,
            dtype=dtype,
        )
        return functions, jax.random.normal(noise_key, (n_rows, self.n_probes), dtype)

    def targets(
        self,
        drawn: tuple[PriorFunctions, Float[Array, "N S"]],
        gp: KernelGP,
        X: Float[Array, "N D"],
        noise: Float[Array, " N"],
    ) -> Float[Array, "N S"]:
        functions, standard = drawn
        functions = eqx.tree_at(lambda f: f.kernel, functions, gp.kernel)
        return functions(X) + jnp.sqrt(noise)[:, None] * standard

    def partners(self, targets: Float[Array, "N S"], solutions: Float[Array, "N S"]) -> Float[Array, "N S"]:
        return solutions
