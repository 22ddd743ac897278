"""Feature maps φ with φ(x)·φ(z) ≈ k(x, z), so that a GP costs O(N M²)."""

from .base import AbstractFeatureMap, Composed, Linear, Network, Nystrom, Scaled, Sum, kmeans_landmarks
from .base import on_host as on_host
from .build import is_network as is_network
from .build import resolve
from .fourier import Extrapolation, RandomFourier
from .hashing import TanimotoHashes

__all__ = [
    "AbstractFeatureMap", "Composed", "Extrapolation", "Linear", "Network", "Nystrom", "RandomFourier", "Scaled", "Sum", "TanimotoHashes", "kmeans_landmarks",
    "resolve",
]  # fmt: skip
