"""A fit with a checkpoint in a process of its own, for `test_kills.py`.

Prints a digest of what it learned, and on stderr how many steps its learner took, those of trials included. The arguments are the kind of
estimator, the number of rows and the checkpoint.
"""

import hashlib
import sys

import numpy as np

from stochgp import FeatureGPRegressor, KernelGPRegressor, learners
from stochgp.learners import BSGD, SCGD

STEPS = 6_000  # about as many are taken of any number of rows


def main(kind: str, rows: str, checkpoint: str) -> None:
    taken, n_rows = [0], int(rows)
    for learner in (SCGD, BSGD):
        learner.advance = counted(learner.advance, taken)
    if kind == "feature":
        epochs = max(2, STEPS * 64 // n_rows)
        model = FeatureGPRegressor(
            n_features=16, learner=learners.SCGD(batch_size=64, epochs=epochs), random_state=0
        )
    else:
        epochs = max(2, STEPS * 128 // n_rows // 4)
        model = KernelGPRegressor("rbf", learner=learners.BSGD(epochs=epochs), random_state=0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=n_rows)
    model.fit(X, y, checkpoint=checkpoint)
    mean, std = model.predict(X[:100], return_std=True)
    digest = hashlib.sha256(mean.tobytes() + std.tobytes()).hexdigest()
    sys.stdout.write(f"{digest} {getattr(model, 'nlml_', None)!r}")
    sys.stderr.write(f"steps {taken[0]}\n")


def counted(advance, taken):
    """The same, which adds to `taken[0]` the steps that it takes."""

    def count(self, state, problem, first_step, n_steps, seed):
        taken[0] += n_steps
        return advance(self, state, problem, first_step, n_steps, seed)

    return count


if __name__ == "__main__":
    main(*sys.argv[1:])
