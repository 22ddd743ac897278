"""Thompson sampling: points for the next observations."""

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

GROWN = 2  # hyperparameters are learned again from so many times the rows
ARRAYS = 6  # of the size of a block of K, while slopes of functions are computed


@dataclass(eq=False, repr=False)
class ThompsonSampler:
    """Batches of points at which posterior functions of a Gaussian process are largest: `ask`, observe, `tell`, again and again.

    Each point of a batch is the maximum of its own function, drawn from the posterior: f_s(x) = f₀ₛ(x) + k(x, X) A⁻¹(y − f₀ₛ(X) − ε_s). So a point is
    chosen with the posterior probability that it is the best one. New observations are added by a solve that starts from the last solution
    (`KernelGPRegressor.update`); every batch draws new functions. `best_x_` and `best_y_` are the best point (with
    `candidates` its number) and its observation, `history_` has an entry for each `tell` with the
    number of `observations`, `model_` is the estimator of the posterior, None before the
    first `tell`.

    Raises ValueError unless one of `bounds` and `candidates` is given, for numbers out of range, and, without a learner, for a kernel without
    hyperparameters and for no noise variance.

    Parameters
    ----------
    kernel : AbstractKernel or str
        A kernel with its hyperparameters; with a `learner` also a name.
    bounds : array [D, 2], optional
        The box of points: a lower and an upper end for each input.
    candidates : array [C, D], optional
        In place of `bounds`, a finite set of points: `ask` returns their numbers, each at most once. With the Tanimoto kernel they are counts.
    noise_variance : float, optional
        σ² of the observations, a variance; None = learned.
    solver : str or AbstractSolver
        "auto", "cholesky", "cg", "sdd", or a solver of `stochgp.solvers`.
    batch_size : int
        Points of a batch.
    learner : str or AbstractLearner, optional
        None: hyperparameters are fixed, in the units of the data; else as in `KernelGPRegressor`, at the first rows and whenever they have doubled.
    maximize : bool
        False: minimise.
    rounds, proposals, steps : int
        Of the search for a maximum on the box: in each round a function starts from the best of so many points, and Adam takes so many steps. The paper
        uses 30 rounds of 50,000 points.
    memory_limit : str or int, optional
        "1GB", or bytes; None = the memory in use and half of the available memory.
    dtype : "float32" or "float64"
        Of rows and kernel.
    random_state : int
        The same observations give the same points.
    checkpoint : path, optional
        A file that every `tell` updates; `ThompsonSampler.load` resumes from it.
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
            raise ValueError("give either bounds, a box, or candidates, the points that there are")
        for name, least in (("batch_size", 1), ("rounds", 1), ("proposals", 1), ("steps", 0)):
            if not isinstance(size := getattr(self, name), int | np.integer) or size < least:
                raise ValueError(f"{name} is {size!r}; it must be a whole number of at least {least}")
        is_known = isinstance(self.kernel, AbstractKernel | Frozen) and self.noise_variance is not None
        if self.learner is None and not is_known:
            raise ValueError(
                f"kernel is {self.kernel!r}, noise_variance is {self.noise_variance}: give a kernel with its hyperparameters and the "
                'variance of the noise, or a learner that finds them (learner="auto")'
            )
        self.bounds = None if self.bounds is None else np.asarray(self.bounds, np.float64)
        self.candidates = None if self.candidates is None else read_points(self.candidates)
        kind, self._packed = inputs_of(self.kernel), None
        if kind is not Inputs.NUMBERS and self.candidates is None:
            raise ValueError(
                "the Tanimoto kernel compares fingerprints, of which no box is full: give candidates in place of bounds"
            )
        if kind is Inputs.FINGERPRINTS:  # packed by the counts of all candidates
            self._packed = Fingerprints.pack(self.candidates)
        self.batch_size, self.random_state = int(self.batch_size), int(self.random_state)
        self.checkpoint = None if self.checkpoint is None else str(self.checkpoint)
        some = self.candidates
        self._box = read_box(self.bounds) if some is None else np.stack([some.min(axis=0), some.max(axis=0)])
        # Points, observations, and the numbers of the candidates that were observed.
        self._keep(np.zeros((0, self._box.shape[1])), np.zeros(0), np.zeros(0, np.int64))
        self.model_: Any = None
        self._learned_rows = 0  # observations when hyperparameters were learned last
        self.history_: list[dict[str, Any]] = []
        self._asked: np.ndarray | None = None  # what `ask` answers until the next `tell`

    def ask(self) -> np.ndarray:
        """Return the next points [batch_size, D], or numbers of candidates [batch_size]; the same until the next `tell`.

        Before the first observations they are random: a Latin hypercube, or different candidates. Raises ValueError if fewer candidates than a batch are
        left, and if `memory_limit` would be exceeded.
        """
        if self._asked is None:
            self._asked = self._chosen()
        return self._asked.copy()

    def tell(self, X: Any, y: Any) -> "ThompsonSampler":
        """Add observations y [n] at points X [n, D], or at candidates of these numbers [n], which may be any points; n = 0 changes nothing.

        Points may repeat. Raises ValueError, before anything changes, for other shapes, for points outside of the box, and for observations that are not
        finite.
        """
        begun = time.perf_counter()
        points, taken = self._read(X)
        if (shape := np.shape(y)) not in ((len(points),), (len(points), 1)):
            raise ValueError(f"y must have one value for each of the {len(points)} points, but got {shape}")
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
        """Write everything to one file, from which `ThompsonSampler.load` makes a sampler with the same next points."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        model, facts = (None, None) if self.model_ is None else stored(self.model_)
        rows = {"X": self._X, "y": self._y, "taken": self._taken, "asked": self._asked}
        tree = {"settings": settings, "rows": rows, "model": model}
        more = {"model": facts, "history": self.history_, "learned_rows": self._learned_rows}
        save_tree(path, tree, {"sampler": more})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ThompsonSampler":
        """Return the sampler of a file of `save`. Raises ValueError for another file."""
        tree, metadata = load_tree(path)
        if "sampler" not in metadata:
            raise ValueError(f"{path} holds no ThompsonSampler")
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
        """Return (Points, their numbers among the candidates). Raises ValueError for others."""
        if self.candidates is None:
            points = self._X[:0] if np.size(X) == 0 else read_points(X, self._box)
            return points, np.full(len(points), -1)
        taken, C = np.asarray(X), len(self.candidates)
        is_whole = np.issubdtype(taken.dtype, np.integer) or taken.size == 0
        if taken.ndim != 1 or not is_whole or np.any((taken < 0) | (taken >= C)):
            raise ValueError(
                f"with candidates, X must be their numbers [n], from 0 to {C - 1}, but got {taken.dtype} of shape {taken.shape}"
            )
        taken = taken.astype(np.int64)
        return self.candidates[taken], taken

    def _take_in(self, points: np.ndarray, values: np.ndarray) -> None:
        """Add rows to the model, by a fit if hyperparameters are to be learned or there is no model. After an error the model is unchanged."""
        N = len(self._y) + len(values)
        learns = self.learner is not None and GROWN * self._learned_rows <= N
        if self.model_ is not None and not learns:
            self.model_.update(self._as_inputs(points), values)
            return
        named = "cholesky" if N <= MAX_CHOLESKY_ROWS else "cg"  # "auto" of the estimator may be local
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
        """For each function in turn its best remaining candidate."""
        left = np.setdiff1d(np.arange(len(self.candidates)), self._taken)
        if len(left) < self.batch_size:
            raise ValueError(f"{len(left)} candidates are left, but a batch has {self.batch_size}")
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
        """One for each point of a batch."""
        fitted, S, N = self.model_._fitted, self.batch_size, len(self._y)
        posterior: Any = fitted.posterior
        # Blocks of K with slopes, a padded copy of the functions, and values of candidates.
        points = self.proposals if self.candidates is None else len(self.candidates)
        numbers = ARRAYS * BLOCK * min(posterior.system.tile, N) + 3 * N * (S + self._X.shape[1]) + points * S
        need = np.dtype(fitted.dtype).itemsize * numbers + posterior.need_bytes(n_samples=S)
        Budget.of(self.memory_limit).require(need, f"maximising {S} functions")
        return posterior.functions(S, key=jax.random.key((self.random_state + N) % 2**32))


_values = jax.jit(values_at)
