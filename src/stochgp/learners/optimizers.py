"""Optimisers that optax has, with settings for small networks."""

import jax
import optax
import optax.contrib

from stochgp.parameters import cast

WEIGHT_DECAY = 0.1


def muon(learning_rate: float, weight_decay: float = WEIGHT_DECAY) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024): the momentum of every matrix is replaced by the nearest semi-orthogonal one; Adam on all that is no matrix.

    All directions of a weight matrix then move alike, however small their gradients. It fits deep kernels in a third to a tenth of
    Adam's steps; a step costs 15 products of the matrices more. A step of rate a also shrinks every matrix by a · weight_decay of itself: else
    long runs at a large rate end with weights so large that held-out rows suffer.
    """
    rule = optax.contrib.muon(learning_rate, weight_decay=weight_decay)

    def init(params: optax.Params) -> optax.OptState:
        """Muon's constants would be float64 where x64 is enabled, and then its products too."""
        return cast(rule.init(params), jax.tree.leaves(params)[0].dtype)

    return optax.GradientTransformation(init, rule.update)
