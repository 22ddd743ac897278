"""Plain NumPy: dense formulas and the papers' loops, written to be read beside the equations, not to be fast.

The toy model has features φ(x) = tanh(xW); θ = (W, log v, log(σ² − floor)); φ̃ = √v φ; k(x, z) = φ̃(x)·φ̃(z).
"""

from typing import NamedTuple

import numpy as np


class Theta(NamedTuple):
    """The unconstrained parameters of the toy model, or a gradient by them."""

    W: np.ndarray  # [D, M]
    raw_variance: float
    raw_noise: float


class Toy(NamedTuple):
    """Data and the floor of the noise variance."""

    X: np.ndarray  # [N, D]
    y: np.ndarray  # [N]
    floor: float


def minus(theta, step):
    """θ − step, part by part."""
    return Theta(*(a - b for a, b in zip(theta, step, strict=True)))


def scaled(theta, factor):
    return Theta(*(factor * part for part in theta))


def noise(theta, floor):
    return floor + np.exp(theta.raw_noise)


def features(theta, X):
    """Φ̃ [N, M]."""
    return np.exp(theta.raw_variance / 2) * np.tanh(X @ theta.W)


def pull_back(theta, X, floor, by_features, by_noise):
    """The gradient by θ from those by Φ̃ [N, M] and σ²: the chain rule by hand."""
    Phi = features(theta, X)
    slope = np.exp(theta.raw_variance / 2) * (1 - np.tanh(X @ theta.W) ** 2)
    return Theta(
        X.T @ (by_features * slope),
        0.5 * np.sum(by_features * Phi),
        by_noise * (noise(theta, floor) - floor),
    )


# Exact values, N × N


def dense_nlml(Phi, y, s2):
    """(yᵀC⁻¹y + log|C| + n log 2π)/(2n), C = ΦΦᵀ + σ²I."""
    n = len(y)
    C = Phi @ Phi.T + s2 * np.eye(n)
    return (y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + n * np.log(2 * np.pi)) / (2 * n)


def full_objective(theta, toy):
    """ℓ(θ) = yᵀC⁻¹y + log|C|."""
    n = len(toy.y)
    value = dense_nlml(features(theta, toy.X), toy.y, noise(theta, toy.floor))
    return 2 * n * value - n * np.log(2 * np.pi)


def full_gradient(theta, toy):
    """∇ℓ by the dense formulas: ∂C = C⁻¹ − C⁻¹yyᵀC⁻¹, ∂Φ̃ = 2 ∂C Φ̃, ∂σ² = tr ∂C."""
    Phi = features(theta, toy.X)
    Q = np.linalg.inv(Phi @ Phi.T + noise(theta, toy.floor) * np.eye(len(toy.y)))
    by_C = Q - np.outer(Q @ toy.y, Q @ toy.y)
    return pull_back(theta, toy.X, toy.floor, 2 * by_C @ Phi, np.trace(by_C))


def dense_posterior(Phi, y, s2, Phi_new):
    """m = k(x, X)C⁻¹y, cov = k(x, x') − k(x, X)C⁻¹k(X, x')."""
    C = Phi @ Phi.T + s2 * np.eye(len(y))
    cross = Phi_new @ Phi.T
    return cross @ np.linalg.solve(C, y), Phi_new @ Phi_new.T - cross @ np.linalg.solve(C, cross.T)


def best_weights(Phi, y, s2):
    """ŵ = (Φ̃ᵀΦ̃ + σ²I)⁻¹Φ̃ᵀy."""
    return np.linalg.solve(Phi.T @ Phi + s2 * np.eye(Phi.shape[1]), Phi.T @ y)


def F_of(theta, toy):
    """F = Φ̃ᵀΦ̃ + σ²I."""
    Phi = features(theta, toy.X)
    return Phi.T @ Phi + noise(theta, toy.floor) * np.eye(Phi.shape[1])


def g_of(theta, w, toy):
    """g = ‖Φ̃w − y‖²/σ² + ‖w‖² + (n − M) log σ²."""
    s2, residual = noise(theta, toy.floor), features(theta, toy.X) @ w - toy.y
    return residual @ residual / s2 + w @ w + (len(toy.y) - len(w)) * np.log(s2)


def finite_differences(f, theta, h=1e-6):
    """Central differences of f by every entry of the arrays in `theta`."""
    slopes = []
    for i, part in enumerate(theta):
        part = np.asarray(part, np.float64)
        slope = np.zeros(part.shape)
        for index in np.ndindex(part.shape):
            up, down = part.copy(), part.copy()
            up[index] += h
            down[index] -= h
            ahead, behind = list(theta), list(theta)
            ahead[i], behind[i] = up, down
            slope[index] = (f(type(theta)(*ahead)) - f(type(theta)(*behind))) / (2 * h)
        slopes.append(slope)
    return type(theta)(*slopes)


# SCGD, Algorithm 2


class SCGDPoint(NamedTuple):
    theta: Theta
    w: np.ndarray
    F: np.ndarray


def batch_moments(theta, toy, S):
    """F̂ = (n/s)Φ_SᵀΦ_S + σ²I, ĉ = (n/s)Φ_Sᵀy_S."""
    Phi, scale = features(theta, toy.X[S]), len(toy.y) / len(S)
    F = scale * Phi.T @ Phi + noise(theta, toy.floor) * np.eye(Phi.shape[1])
    return F, scale * Phi.T @ toy.y[S]


def scgd_gradient(theta, w, M, toy, S):
    """(∂θ, ∂w) of (n/s) Σ_S [(φᵢᵀw − yᵢ)²/σ² + φᵢᵀMφᵢ] + ‖w‖² + (n − d) log σ² + σ² tr M."""
    Phi, s2, n = features(theta, toy.X[S]), noise(theta, toy.floor), len(toy.y)
    r, scale = Phi @ w - toy.y[S], n / len(S)
    by_features = scale * (2 / s2 * np.outer(r, w) + 2 * Phi @ M)
    by_noise = -scale * r @ r / s2**2 + (n - len(w)) / s2 + np.trace(M)
    by_w = 2 * scale / s2 * Phi.T @ r + 2 * w
    return pull_back(theta, toy.X[S], toy.floor, by_features, by_noise), by_w


def scgd(theta, toy, batches, a, b, *, start=None):
    """The points after each batch; a[t] and b[t] are the steps. `start` is (w, F̃) other than (0, σ²I)."""
    d = theta.W.shape[1]
    w, F = start or (np.zeros(d), noise(theta, toy.floor) * np.eye(d))
    points = []
    for t, S in enumerate(batches):
        F = (1 - b[t]) * F + b[t] * batch_moments(theta, toy, S)[0]
        by_theta, by_w = scgd_gradient(theta, w, np.linalg.inv(F), toy, S)
        theta, w = minus(theta, scaled(by_theta, a[t])), w - a[t] * by_w
        points.append(SCGDPoint(theta, w, F))
    return points


# MINIMAX, Algorithm 1


class MinimaxPoint(NamedTuple):
    theta: Theta
    w: np.ndarray
    A: np.ndarray
    B: np.ndarray


def psi(point, mu, toy):
    """Ψ = g(θ) + log|A| + μ⟨B, A − F(θ)⟩/‖A‖."""
    theta, w, A, B = point
    penalty = np.sum(B * (A - F_of(theta, toy))) / np.linalg.norm(A)
    return g_of(theta, w, toy) + np.linalg.slogdet(A)[1] + mu * penalty


def minimax_gradient(point, mu, toy, S):
    """(∂θ, ∂w, ∂A) of the sampled Ψ."""
    theta, w, A, B = point
    Phi, s2, n, N = features(theta, toy.X[S]), noise(theta, toy.floor), len(toy.y), np.linalg.norm(A)
    r, scale = Phi @ w - toy.y[S], n / len(S)
    by_features = scale * (2 / s2 * np.outer(r, w) - 2 * mu / N * Phi @ B)
    by_noise = -scale * r @ r / s2**2 + (n - len(w)) / s2 - mu * np.trace(B) / N
    by_w = 2 * scale / s2 * Phi.T @ r + 2 * w
    F, _ = batch_moments(theta, toy, S)
    by_A = np.linalg.inv(A) + mu * (B / N - np.sum(B * (A - F)) * A / N**3)
    return pull_back(theta, toy.X[S], toy.floor, by_features, by_noise), by_w, by_A


def clip_spectrum(A, floor, ceiling):
    values, basis = np.linalg.eigh((A + A.T) / 2)
    return basis @ np.diag(np.clip(values, floor, ceiling)) @ basis.T


def minimax(point, toy, batches, a, b, *, mu=1.0, box=np.inf, ceiling=np.inf):
    """The points after each pair of batches (S, S̄). The box: weights and w within ±box, the raw logarithms within log box of their start."""
    points, start, reach = [], point.theta, np.log(box)
    for t, (S, S_bar) in enumerate(batches):
        by_theta, by_w, by_A = minimax_gradient(point, mu, toy, S)
        theta = minus(point.theta, scaled(by_theta, a[t]))
        raws = (np.clip(part, s - reach, s + reach) for part, s in zip(theta[1:], start[1:], strict=True))
        theta = Theta(np.clip(theta.W, -box, box), *raws)
        w = np.clip(point.w - a[t] * by_w, -box, box)
        A = clip_spectrum(point.A - a[t] * by_A, noise(theta, toy.floor), ceiling)
        B = point.B + b[t] * mu * (A - batch_moments(theta, toy, S_bar)[0]) / np.linalg.norm(A)
        point = MinimaxPoint(theta, w, A, B / max(1.0, np.linalg.norm(B)))
        points.append(point)
    return points


# BSGD


def bsgd(theta, toy, batches, a):
    """θ ← θ − a ∇[y_Sᵀ(K_SS + σ²I)⁻¹y_S + log|K_SS + σ²I|]: the points after each batch."""
    points = []
    for t, S in enumerate(batches):
        theta = minus(theta, scaled(full_gradient(theta, Toy(toy.X[S], toy.y[S], toy.floor)), a[t]))
        points.append(theta)
    return points
