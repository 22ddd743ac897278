"""Thompson sampling with Gaussian processes."""

import os
import time
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from stochgp.budget import Budget
from stochgp.data import Fingerprints
from stochgp.data.rows import Data
from stochgp.estimators.saving import restored, stored
from stochgp.families import KernelGPRegressor
from stochgp.families.starts import inputs_of
from stochgp.kernels import AbstractKernel
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.parameters import Frozen
from stochgp.posteriors import AbstractFunctions
from stochgp.solvers.choice import MAX_CHOLESKY_ROWS
from stochgp.storage.trees import load_tree, save_tree
from stochgp.tables.molecules import Inputs
from stochgp.tables.targets import read_targets
from stochgp.thompson.maximise import BLOCK, half_lengthscales, maximise, read_box, read_points, values_at

GROWN = 2  # hyperparameters are learned again if the number of rows has grown by this factor
ARRAYS = 6  # arrays of the size of a kernel block during the computation of gradients


@dataclass(eq=False, repr=False)
class ThompsonSampler:
    """Choose points to maximise an unknown function: `ask`, observe, `tell`, and repeat.

    Each point of a batch maximises a function that is drawn from the posterior of a Gaussian process. `tell`
    adds observations to the posterior with `KernelGPRegressor.update`. `best_y_` is the best observation.
    `best_x_` is the point with the observation `best_y_`, or the index of the point in `candidates`.
    `history_` has an entry for each call of `tell`. `model_` is the fitted estimator, or None before the
    first `tell`.

    Raises ValueError for invalid numbers, and unless exactly one of `bounds` and `candidates` is set. Without
    a `learner`, `kernel` must be a kernel object, not a name, and `noise_variance` must be set.

    Parameters
    ----------
    kernel : AbstractKernel or str
        A kernel object with hyperparameters or, with a `learner`, the name of a kernel.
    bounds : array [D, 2], optional
        A lower and an upper bound for each input.
    candidates : array [C, D], optional
        A finite set of points instead of `bounds`. `ask` returns indices of candidates that have not been
        observed. With the Tanimoto kernel, each candidate is a fingerprint: a row of counts.
    noise_variance : float, optional
        The noise variance σ² of observations. None: the `learner` estimates σ².
    solver : str or AbstractSolver
        "auto", "cholesky", "cg", "sdd", or an object from `stochgp.solvers`.
    batch_size : int
        Number of points per batch.
    learner : str or AbstractLearner, optional
        None: hyperparameters stay fixed. A learner (see `KernelGPRegressor`) learns the hyperparameters at
        the first `tell`, and again whenever the number of rows has doubled.
    maximize : bool
        True: look for the maximum. False: look for the minimum.
    rounds : int
        The number of starts for each function.
    proposals : int
        The number of random points from which each start is chosen.
    steps : int
        The number of Adam steps from each start.
    memory_limit : str or int, optional
        A string such as "1GB", or a number of bytes. The default is the memory in use plus half of the
        available memory.
    dtype : "float32" or "float64"
        The dtype of the rows and of kernel matrices.
    random_state : int
        The random seed. With the same seed, equal observations give equal points.
    checkpoint : path, optional
        A file that every `tell` updates and `ThompsonSampler.load` reads.
    """

    kernel: Any = "matern32"
    _: KW_ONLY
    bounds: Any = None
    candidates: Any = None
    noise_variance: float | None = None
    solver: Any = "auto"
    batch_size: int = 8
    learner: Any = None
    maximize: bool = True
    rounds: int = 8
    proposals: int = 1000
    steps: int = 100
    memory_limit: Any = None
    dtype: str = "float32"
    random_state: int = 0
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        if (self.bounds is None) == (self.candidates is None):
            raise ValueError("set exactly one of bounds (a box) and candidates (a finite set of points)")
        for name, least in (("batch_size", 1), ("rounds", 1), ("proposals", 1), ("steps", 0)):
            if not isinstance(size := getattr(self, name), int | np.integer) or size < least:
                raise ValueError(f"{name} is {size!r}; it must be a whole number of at least {least}")
        is_known = isinstance(self.kernel, AbstractKernel | Frozen) and self.noise_variance is not None
        if self.learner is None and not is_known:
            raise ValueError(
                f"kernel is {self.kernel!r} and noise_variance is {self.noise_variance}: set a kernel object and noise_variance, "
                'or set learner="auto" to learn the hyperparameters'
            )
        self.bounds = None if self.bounds is None else np.asarray(self.bounds, np.float64)
        self.candidates = None if self.candidates is None else read_points(self.candidates)
        kind, self._packed = inputs_of(self.kernel), None
        if kind is not Inputs.NUMBERS and self.candidates is None:
            raise ValueError(
                "the Tanimoto kernel needs candidates in place of bounds, because its inputs are fingerprints"
            )
        if kind is Inputs.FINGERPRINTS:  # levels are the largest counts of all candidates
            self._packed = Fingerprints.pack(self.candidates)
        self.batch_size, self.random_state = int(self.batch_size), int(self.random_state)
        self.checkpoint = None if self.checkpoint is None else str(self.checkpoint)
        some = self.candidates
        self._box = read_box(self.bounds) if some is None else np.stack([some.min(axis=0), some.max(axis=0)])
        # Points, observations, and indices of observed candidates.
        self._keep(np.zeros((0, self._box.shape[1])), np.zeros(0), np.zeros(0, np.int64))
        self.model_: Any = None
        self._learned_rows = 0  # number of observations when hyperparameters were last learned
        self.history_: list[dict[str, Any]] = []
        self._asked: np.ndarray | None = None  # result of `ask` until the next `tell`

    def ask(self) -> np.ndarray:
        """Return the next points [batch_size, D], or indices of candidates [batch_size].

        The points are random before the first `tell`, and do not change until the next `tell`. Raises
        ValueError if too few candidates remain, or if the sampler would need more than `memory_limit`.
        """
        if self._asked is None:
            self._asked = self._chosen()
        return self._asked.copy()

    def tell(self, X: Any, y: Any) -> "ThompsonSampler":
        """Add observations y [n] at points X [n, D], or at candidates with the indices X [n].

        Points may repeat and need not come from `ask`. Raises ValueError for wrong shapes, points outside the
        box, and observations that are not finite. After an error, the sampler is unchanged.
        """
        begun = time.perf_counter()
        points, taken = self._read(X)
        if (shape := np.shape(y)) not in ((len(points),), (len(points), 1)):
            raise ValueError(f"y needs one value for each of the {len(points)} points, but has shape {shape}")
        if len(points) == 0:
            return self
        values = read_targets(np.reshape(y, len(points)))
        self._take_in(points, values)
        old = self._X, self._y, self._taken
        self._keep(*(np.concatenate(pair) for pair in zip(old, (points, values, taken), strict=True)))
        self._asked = None
        entry = {"told": len(values), "observations": len(self._y), "best": self.best_y_}
        entry["best_of_batch"] = float(values.max() if self.maximize else values.min())
        entry["residual"] = float(self.model_.fit_report_["residual"])
        self.history_.append(entry | {"seconds": time.perf_counter() - begun})
        if self.checkpoint is not None:
            self.save(self.checkpoint)
        return self

    def save(self, path: str | os.PathLike) -> None:
        """Write the sampler to one file, which `ThompsonSampler.load` reads."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        model, facts = (None, None) if self.model_ is None else stored(self.model_)
        rows = {"X": self._X, "y": self._y, "taken": self._taken, "asked": self._asked}
        tree = {"settings": settings, "rows": rows, "model": model}
        more = {"model": facts, "history": self.history_, "learned_rows": self._learned_rows}
        save_tree(path, tree, {"sampler": more})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ThompsonSampler":
        """Return the sampler from a file of `save`. Raises ValueError for other files."""
        tree, metadata = load_tree(path)
        if "sampler" not in metadata:
            raise ValueError(f"{path} does not contain a ThompsonSampler")
        more, found = metadata["sampler"], cls(**tree["settings"])
        found._keep(*(tree["rows"][name] for name in ("X", "y", "taken")))
        found._asked = tree["rows"]["asked"]
        found.history_, found._learned_rows = more["history"], more["learned_rows"]
        if more["model"] is not None:
            found.model_ = restored(tree["model"], more["model"], KernelGPRegressor)
        return found

    def _keep(self, X: np.ndarray, y: np.ndarray, taken: np.ndarray) -> None:
        self._X, self._y, self._taken = X, y, taken
        if len(y):
            row = int(np.argmax(y if self.maximize else -y))
            self.best_y_ = float(y[row])
            self.best_x_: Any = X[row] if self.candidates is None else int(taken[row])

    def _read(self, X: Any) -> tuple[Float[np.ndarray, "n D"], np.ndarray]:
        """Return points and their candidate indices. ValueError if X is invalid."""
        if self.candidates is None:
            points = self._X[:0] if np.size(X) == 0 else read_points(X, self._box)
            return points, np.full(len(points), -1)
        taken, C = np.asarray(X), len(self.candidates)
        are_indices = taken.ndim == 1 and (np.issubdtype(taken.dtype, np.integer) or taken.size == 0)
        wrong = taken[(taken < 0) | (taken >= C)] if are_indices else taken
        if not are_indices or len(wrong):
            found = f"{wrong[0]}" if are_indices else f"the dtype {taken.dtype} and the shape {taken.shape}"
            raise ValueError(f"with candidates, X must be [n] indices from 0 to {C - 1}, not {found}")
        taken = taken.astype(np.int64)
        return self.candidates[taken], taken

    def _take_in(self, points: np.ndarray, values: np.ndarray) -> None:
        """Update the model with new rows, or fit it if needed; an error keeps the old model."""
        N = len(self._y) + len(values)
        learns = self.learner is not None and GROWN * self._learned_rows <= N
        if self.model_ is not None and not learns:
            self.model_.update(self._as_inputs(points), values)
            return
        named = "cholesky" if N <= MAX_CHOLESKY_ROWS else "cg"  # "auto" could be "local"
        given = self.noise_variance
        model: Any = KernelGPRegressor(
            self.kernel, self.learner, likelihood="gaussian" if given is None else Gaussian(known_noise(given)),
            solver=named if self.solver == "auto" else self.solver, standardize=self.learner is not None, memory_limit=self.memory_limit,
            dtype=self.dtype, random_state=self.random_state,
        )  # fmt: skip
        self.model_ = model.fit(
            self._as_inputs(np.concatenate([self._X, points])), np.concatenate([self._y, values])
        )
        self._learned_rows = N

    def _as_inputs(self, points: Float[np.ndarray, "n D"]) -> Any:
        return points if self._packed is None else Fingerprints.pack(points, self._packed.levels)

    def _chosen(self) -> np.ndarray:
        generator = np.random.default_rng((self.random_state, len(self._y)))
        if self.candidates is not None:
            return self._chosen_candidates(generator)
        if self.model_ is None:
            n, (lower, upper) = self.batch_size, self._box  # a Latin hypercube
            cells = np.stack([generator.permutation(n) for _ in lower], axis=1)
            return lower + (upper - lower) * (cells + generator.uniform(size=cells.shape)) / n
        with jax.enable_x64(True):
            fitted = self.model_._fitted
            inputs, dtype = fitted.inputs, fitted.dtype
            box, sign = inputs.transform(self._box, np.float64), 1.0 if self.maximize else -1.0
            observed = Data(inputs.transform(self._X, dtype), sign * self._y)
            found = maximise(
                self._functions(), box, observed, half_lengthscales(self.model_.kernel_, box), sign=sign,
                rounds=self.rounds, proposals=self.proposals, steps=self.steps, generator=generator,
            )  # fmt: skip
        return np.clip(inputs.inverse(found), *self._box)

    def _chosen_candidates(self, generator: np.random.Generator) -> np.ndarray:
        """Return the best remaining candidate for each function in turn."""
        left = np.setdiff1d(np.arange(len(self.candidates)), self._taken)
        if len(left) < self.batch_size:
            raise ValueError(f"{len(left)} candidates remain, but a batch needs {self.batch_size}")
        if self.model_ is None:
            return generator.choice(left, self.batch_size, replace=False)
        fitted, chosen = self.model_._fitted, []
        known = self.candidates[left] if self._packed is None else self._packed[left].words
        with jax.enable_x64(True):
            values = np.array(
                _values(self._functions(), fitted.inputs.transform(known, fitted.dtype)), np.float64
            )
        values = values if self.maximize else -values
        for s in range(self.batch_size):
            row = int(np.argmax(values[:, s]))
            values[row] = -np.inf
            chosen.append(int(left[row]))
        return np.array(chosen)

    def _functions(self) -> AbstractFunctions:
        """Draw a posterior function for each point of a batch."""
        fitted, S, N = self.model_._fitted, self.batch_size, len(self._y)
        posterior: Any = fitted.posterior
        # Memory for kernel blocks with gradients, padded functions, and values at candidates.
        points = self.proposals if self.candidates is None else len(self.candidates)
        numbers = ARRAYS * BLOCK * min(posterior.system.tile, N) + 3 * N * (S + self._X.shape[1]) + points * S
        need = np.dtype(fitted.dtype).itemsize * numbers + posterior.need_bytes(n_samples=S)
        Budget.of(self.memory_limit).require(need, f"maximising {S} functions")
        return posterior.functions(S, key=jax.random.key((self.random_state + N) % 2**32))


_values = jax.jit(values_at)
