"""The values at the functions that mean and covariance of a decoupled process share."""

import jax
import numpy as np


def to_coupled(q, kernel):
    """(m̃, S̃) of f at these functions: m̃ = K a, S̃ = K − K(B⁻¹ + K)⁻¹K."""
    with jax.enable_x64(True):
        K, L = np.asarray(q.beta.among(kernel, q.beta)), np.asarray(q.L)
        H = np.eye(len(K)) + L.T @ K @ L
        return K @ np.asarray(q.a), K - K @ L @ np.linalg.solve(H, L.T @ K)
