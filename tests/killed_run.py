"""A fit with a checkpoint in a process of its own, for `test_kills.py`.

Prints a digest of what it learned, and on stderr how many steps its learner took. Of many rows it follows the plan in a file, or writes it.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from stochgp import FeatureGPRegressor, KernelGPRegressor
from stochgp.learners import BSGD

MODELS = {
    "feature": (3_000, FeatureGPRegressor(n_features=16, batch_size=64, epochs=40, random_state=0)),
    "kernel": (3_000, KernelGPRegressor("rbf", learner="bsgd", epochs=150, random_state=0)),
    "many rows": (10_000, KernelGPRegressor("rbf", learner="bsgd", epochs=100, n_samples=4, random_state=0)),
}


def main(kind: str, checkpoint: str, plan: str = "") -> None:
    taken, advance = [0], BSGD.advance

    def counted(self, state, problem, first_step, n_steps, seed):
        taken[0] += n_steps
        return advance(self, state, problem, first_step, n_steps, seed)

    BSGD.advance = counted
    n_rows, model = MODELS[kind]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=n_rows)
    if plan and Path(plan).exists():
        model.set_params(plan=json.loads(Path(plan).read_text()))
    model.fit(X, y, checkpoint=checkpoint)
    if plan and not Path(plan).exists():
        Path(plan).write_text(json.dumps(model.plan_))
    mean, std = model.predict(X[:100], return_std=True)
    digest = hashlib.sha256(mean.tobytes() + std.tobytes()).hexdigest()
    sys.stdout.write(f"{digest} {getattr(model, 'nlml_', None)!r}")
    sys.stderr.write(f"steps {taken[0]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
