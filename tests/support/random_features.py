"""The random features of prior functions."""

import equinox as eqx
import jax

from stochgp import priors


def features(kernel, draws, X):
    """φ(x) of each row, for the draws of one group."""
    parts = priors.terms_of(kernel, X)
    drawn = priors._drawn(parts, draws.value)
    return priors._features([term.variance for term in parts], [term.rows for term in parts], drawn)


def random_features(kernel, n_features, X, key):
    """φ(x) of each row, newly drawn."""
    functions = priors.prior_functions(kernel, X.shape[1], 1, n_features=n_features, key=key)
    draws = jax.tree.map(lambda leaf: leaf[0], functions.draws)
    return eqx.filter_jit(features)(kernel, draws, X)
