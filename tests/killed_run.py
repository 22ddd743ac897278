"""A fit with a checkpoint in a process of its own, for `test_kills.py`: prints a digest of what it learned."""

import hashlib
import sys

import numpy as np

from stochgp import FeatureGPRegressor, KernelGPRegressor

MODELS = {
    "feature": FeatureGPRegressor(n_features=16, batch_size=64, epochs=40, random_state=0),
    "kernel": KernelGPRegressor("rbf", learner="bsgd", epochs=150, random_state=0),
}


def main(kind: str, checkpoint: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=3000)
    model = MODELS[kind].fit(X, y, checkpoint=checkpoint)
    mean, std = model.predict(X[:100], return_std=True)
    sys.stdout.write(hashlib.sha256(mean.tobytes() + std.tobytes()).hexdigest() + f" {model.nlml_!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
