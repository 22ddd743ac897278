"""Feature maps: φ with φ(x)·φ(z) ≈ k(x, z), so that a GP costs O(N M²)."""

from stochgp.features.base import AbstractFeatureMap as AbstractFeatureMap
from stochgp.features.base import Composed as Composed
from stochgp.features.base import Linear as Linear
from stochgp.features.base import Network as Network
from stochgp.features.base import Scaled as Scaled
from stochgp.features.base import Sum as Sum
from stochgp.features.build import is_network as is_network
from stochgp.features.build import resolve as resolve
from stochgp.features.fourier import Extrapolation as Extrapolation
from stochgp.features.fourier import RandomFourier as RandomFourier
from stochgp.features.hashing import TanimotoHashes as TanimotoHashes
from stochgp.features.nystrom import Nystrom as Nystrom
from stochgp.features.nystrom import choose_landmarks as choose_landmarks
from stochgp.features.nystrom import kmeans_landmarks as kmeans_landmarks
