"""Feature maps: φ with φ(x)·φ(z) ≈ k(x, z), so that a GP costs O(N M²)."""

from stochgp.features.base import AbstractFeatureMap as AbstractFeatureMap
from stochgp.features.beyond import Beyond as Beyond
from stochgp.features.build import is_network as is_network
from stochgp.features.build import resolve as resolve
from stochgp.features.compose import Composed as Composed
from stochgp.features.compose import Scaled as Scaled
from stochgp.features.compose import Sum as Sum
from stochgp.features.fourier import RandomFourier as RandomFourier
from stochgp.features.hashing import TanimotoHashes as TanimotoHashes
from stochgp.features.linear import Linear as Linear
from stochgp.features.network import Network as Network
from stochgp.features.nystrom import Nystrom as Nystrom
from stochgp.features.nystrom import choose_landmarks as choose_landmarks
from stochgp.features.nystrom import kmeans_landmarks as kmeans_landmarks
