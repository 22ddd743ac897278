"""Feature maps: φ with φ(x)·φ(z) ≈ k(x, z), so that a GP costs O(N M²)."""

from stochgp.features.base import AbstractFeatureMap as AbstractFeatureMap
from stochgp.features.network import Network as Network
