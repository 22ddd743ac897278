"""Thompson sampling: where to observe next, asked and told."""

import os
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from stochgp.budget import Budget
from stochgp.data import Fingerprints
from stochgp.data.rows import Rows
from stochgp.estimators.saving import restored, stored
from stochgp.families import KernelGPRegressor
from stochgp.posteriors import AbstractFunctions, KernelFunctions, SampledKernelPosterior
from stochgp.posteriors.base import Request
from stochgp.storage import load_tree, save_tree
from stochgp.thompson import checks
from stochgp.thompson.maximise import BLOCK, Box, Maximiser, half_lengthscales, maximise, values_at

GROWN = 2  # hyperparameters are learned again from so many times the rows
ARRAYS = 6  # of the size of a block of K, while slopes of functions are computed
SETTINGS = (
    "kernel", "bounds", "candidates", "noise_variance", "solver", "batch_size", "learner", "maximize", "maximiser",
    "fresh_functions", "standardize", "memory_limit", "time_limit", "dtype", "random_state", "checkpoint",
)  # fmt: skip


class Best(NamedTuple):
    """The best observation so far.

    Parameters
    ----------
    x : array [D] or int
        The point, in the units of the box, or the number of the candidate, from 0.
    y : float
        What was observed there.
    n_told : int
        How many observations there were when it came, itself included.
    """

    x: Any
    y: float
    n_told: int


class ThompsonSampler:
    """Batches of points at which posterior functions of a Gaussian process are largest: `ask`, observe, `tell`, again and again.

    Each point of a batch is the maximum of a function of its own, drawn from the posterior: f_s(x) = f₀ₛ(x) + k(x, X) A⁻¹(y − f₀ₛ(X) − ε_s).
    A point is chosen with the probability that it is the best one, as far as is known. New observations join with a solve that begins
    where the last one ended (`KernelGPRegressor.update`); the prior functions f₀ₛ stay the same from batch to batch.

    `best_` is the best observation, `history_` has an entry for each `tell`. Prior functions that stay the same are not independent of
    where was looked before. The points that they choose are no exact posterior draws from the second batch on; `fresh_functions` are.

    Raises ValueError unless one of `bounds` and `candidates` is given, for a batch of no points, and, without a learner, for a kernel without
    hyperparameters and for no noise variance.

    Parameters
    ----------
    kernel : AbstractKernel or str
        A kernel with its hyperparameters; with a `learner` also a name.
    bounds : array [D, 2], optional
        The box in which points are looked for: a lower and an upper end for each input.
    candidates : array [C, D], optional
        In place of `bounds`, the only points that there are: `ask` gives their numbers, each at most once. With the Tanimoto kernel they are counts.
    noise_variance : float, optional
        σ² of the observations, a variance; None = learned.
    solver : str or AbstractSolver
        "auto", "cholesky", "cg", "sgd", "sdd", "adasap", or a solver of `stochgp.solvers`.
    batch_size : int
        Points of a batch.
    learner : str or AbstractLearner, optional
        None = the hyperparameters given are kept; else as in `KernelGPRegressor`, at the first rows and whenever they have doubled.
    maximize : bool
        False looks for the smallest value.
    maximiser : Maximiser, optional
        How functions are maximised on the box; None = `Maximiser()`.
    fresh_functions : bool
        True draws new prior functions for every batch, whose solves begin anew.
    standardize : bool, optional
        Inputs and targets by the rows of the last learning, to which hyperparameters then refer; None = only with a learner.
    memory_limit : str or int, optional
        "1GB", or bytes; None = what is in use and half of what is available.
    time_limit : float, optional
        Seconds that an update may take; its solve then ends with the best point so far. Fits, the first one too, have no limit.
    dtype : "float32" or "float64"
        Of rows and kernel.
    random_state : int
        The same observations give the same points.
    checkpoint : path, optional
        A file that is kept up to date by every `tell`; `ThompsonSampler.load` goes on from it.
    """

    def __init__(
        self,
        kernel: Any = "matern32",
        *,
        bounds: Any = None,
        candidates: Any = None,
        noise_variance: float | None = None,
        solver: Any = "auto",
        batch_size: int = 8,
        learner: Any = None,
        maximize: bool = True,
        maximiser: Maximiser | None = None,
        fresh_functions: bool = False,
        standardize: bool | None = None,
        memory_limit: Any = None,
        time_limit: float | None = None,
        dtype: str = "float32",
        random_state: int = 0,
        checkpoint: str | None = None,
    ):
        checks.check_points(bounds, candidates, batch_size)
        checks.check_hyperparameters(kernel, noise_variance, learner)
        self.kernel, self.noise_variance, self.solver, self.learner = kernel, noise_variance, solver, learner
        self.bounds = None if bounds is None else np.asarray(bounds, np.float64)
        self.candidates = None if candidates is None else checks.read_candidates(candidates)
        self._packed = checks.packed_candidates(kernel, self.candidates)
        self.batch_size, self.maximize = int(batch_size), maximize
        self.maximiser = Maximiser() if maximiser is None else maximiser
        self.fresh_functions, self.standardize = fresh_functions, standardize
        self.memory_limit, self.time_limit, self.dtype = memory_limit, time_limit, dtype
        self.random_state = int(random_state)
        self.checkpoint = None if checkpoint is None else str(checkpoint)
        self._box = self._box_of()
        self._X, self._y = np.zeros((0, len(self._box.lower))), np.zeros(0)
        self._taken = np.zeros(0, np.int64)  # numbers of the candidates that were observed
        self._model: KernelGPRegressor | None = None
        self._learned_rows = 0  # observations when hyperparameters were learned last
        self.history_: list[dict[str, Any]] = []
        self._asked: np.ndarray | None = None  # what `ask` answers until the next `tell`

    def ask(self) -> np.ndarray:
        """The next points [batch_size, D], or numbers of candidates [batch_size]; the same until something is told.

        Before the first observations they are random: one in each of `batch_size` equal parts of every input's range (a Latin hypercube), or
        different candidates. Raises ValueError where fewer candidates than a batch are left, and for what would exceed `memory_limit`.
        """
        if self._asked is None:
            self._asked = self._chosen()
        return self._asked.copy()

    def tell(self, X: Any, y: Any) -> "ThompsonSampler":
        """Take in observations y [n] at points X [n, D], or at candidates of these numbers [n], asked for or not; n = 0 changes nothing.

        A point may come again: it is a further observation. Raises ValueError, in one line and before anything changes, for other shapes,
        for points outside of the box, and for observations that are not finite.
        """
        begun = time.perf_counter()
        points, taken = self._read(X)
        values = checks.read_observations(y, len(points))
        if len(values) == 0:
            return self
        self._take_in(points, values)
        self._X, self._y = np.concatenate([self._X, points]), np.concatenate([self._y, values])
        self._taken, self._asked = np.concatenate([self._taken, taken]), None
        self.history_.append(self._entry(values, time.perf_counter() - begun))
        if self.checkpoint is not None:
            self.save(self.checkpoint)
        return self

    @property
    def best_(self) -> Best:
        """The best observation. AttributeError before the first."""
        if len(self._y) == 0:
            raise AttributeError("best_ is there after the first observations")
        row = int(np.argmax(self._y if self.maximize else -self._y))
        x = self._X[row] if self.candidates is None else int(self._taken[row])
        return Best(x, float(self._y[row]), row + 1)

    @property
    def model_(self) -> KernelGPRegressor:
        """The posterior of the observations, an estimator. AttributeError before the first."""
        if self._model is None:
            raise AttributeError("model_ is there after the first observations")
        return self._model

    @property
    def n_told(self) -> int:
        """How many observations there are."""
        return len(self._y)

    def save(self, path: str | os.PathLike) -> None:
        """Writes everything to one file, of which `ThompsonSampler.load` makes a sampler that goes on to the same points."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        model, facts = (None, None) if self._model is None else stored(self._model)
        rows = {"X": self._X, "y": self._y, "taken": self._taken, "asked": self._asked}
        tree = {"settings": settings, "rows": rows, "model": model}
        more = {"model": facts, "history": self.history_, "learned_rows": self._learned_rows}
        save_tree(path, tree, {"sampler": more})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ThompsonSampler":
        """The sampler of a file of `save`. Raises ValueError for another file."""
        tree, metadata = load_tree(path)
        if "sampler" not in metadata:
            raise ValueError(f"{path} holds no ThompsonSampler")
        more, found = metadata["sampler"], cls(**tree["settings"])
        found._X, found._y, found._taken, found._asked = (
            tree["rows"][n] for n in ("X", "y", "taken", "asked")
        )
        found.history_, found._learned_rows = more["history"], more["learned_rows"]
        if more["model"] is not None:
            found._model = restored(tree["model"], more["model"], KernelGPRegressor)
        return found

    @property
    def _all(self) -> Float[np.ndarray, "C D"]:
        """The candidates; no rows where there is a box."""
        return self._X[:0] if self.candidates is None else self.candidates

    def _box_of(self) -> Box:
        if self.candidates is None:
            return checks.read_box(self.bounds)
        return Box(self.candidates.min(axis=0), self.candidates.max(axis=0))

    def _read(self, X: Any) -> tuple[Float[np.ndarray, "n D"], np.ndarray]:
        """(Points, their numbers among the candidates)."""
        if self.candidates is None:
            empty = np.size(X) == 0
            points = np.zeros((0, len(self._box.lower))) if empty else checks.read_points(X, self._box)
            return points, np.full(len(points), -1)
        taken = checks.read_indices(X, len(self.candidates))
        return self.candidates[taken], taken

    def _take_in(self, points: np.ndarray, values: np.ndarray) -> None:
        """Into the model, by a fit where hyperparameters are to be learned or there is no model yet. The model is as before where it fails."""
        N = len(self._y) + len(values)
        learns = self.learner is not None and GROWN * self._learned_rows <= N
        if self._model is not None and not learns:
            self._model.update(self._as_inputs(points), values)
            return
        standardize = self.learner is not None if self.standardize is None else self.standardize
        model: Any = KernelGPRegressor(
            self.kernel, learner=self.learner, noise_variance=self.noise_variance, solver=self.solver,
            prediction="global", n_samples=self.batch_size, standardize=standardize, memory_limit=self.memory_limit,
            dtype=self.dtype, random_state=self.random_state, likelihood="gaussian",
        )  # fmt: skip
        self._model = model.fit(
            self._as_inputs(np.concatenate([self._X, points])), np.concatenate([self._y, values])
        )
        model.time_limit = self.time_limit  # of updates alone: a fit that a limit shortens may leave rows out
        self._learned_rows = N

    def _as_inputs(self, points: Float[np.ndarray, "n D"]) -> Any:
        """For the model: fingerprints are packed by the counts of all candidates."""
        return points if self._packed is None else Fingerprints.pack(points, self._packed.levels)

    def _entry(self, values: np.ndarray, seconds: float) -> dict[str, Any]:
        pick = np.max if self.maximize else np.min
        return {
            "told": len(values),
            "observations": len(self._y),
            "best": self.best_.y,
            "best_of_batch": float(pick(values)),
            "residual": float(self.model_.fit_report_["residual"]),
            "seconds": seconds,
        }

    def _chosen(self) -> np.ndarray:
        generator = np.random.default_rng((self.random_state, len(self._y)))
        if self.candidates is not None:
            return self._chosen_candidates(generator)
        if self._model is None:
            return self._spread(generator)
        with jax.enable_x64(True):
            fitted = self._model._fitted
            inputs, dtype = fitted.inputs, fitted.dtype
            ends = inputs.transform(np.stack(self._box), np.float64)
            box, sign = Box(*ends), 1.0 if self.maximize else -1.0
            observed = Rows(inputs.transform(self._X, dtype), sign * self._y)
            nearby = half_lengthscales(self._model.kernel_, box)
            functions = self._functions()
            found, _ = maximise(
                functions, self.maximiser, box, observed, nearby, sign=sign, generator=generator
            )
        return np.clip(inputs.inverse(found), self._box.lower, self._box.upper)

    def _chosen_candidates(self, generator: np.random.Generator) -> np.ndarray:
        """For each function in turn its best candidate of those that are left."""
        left = np.setdiff1d(np.arange(len(self._all)), self._taken)
        if len(left) < self.batch_size:
            raise ValueError(f"{len(left)} candidates are left, but a batch has {self.batch_size}")
        if self._model is None:
            return generator.choice(left, self.batch_size, replace=False)
        values = self._model_values(left)
        free, chosen = np.ones(len(left), bool), []
        for s in range(self.batch_size):
            row = int(np.argmax(np.where(free, values[:, s], -np.inf)))
            free[row] = False
            chosen.append(int(left[row]))
        return np.array(chosen)

    def _model_values(self, rows: np.ndarray) -> Float[np.ndarray, "C S"]:
        """Of every function at these candidates; the larger the better."""
        fitted = self.model_._fitted
        known = self._all[rows] if self._packed is None else self._packed[rows].words
        Z = fitted.inputs.transform(known, fitted.dtype)
        with jax.enable_x64(True):
            values = np.asarray(_values(self._functions(), Z), np.float64)
        return values if self.maximize else -values

    def _functions(self) -> AbstractFunctions:
        """One for each point of a batch. Those held by the posterior need no further solve."""
        posterior = self.model_._fitted.posterior
        Budget.of(self.memory_limit).require(self._need_bytes(), f"maximising {self.batch_size} functions")
        seed = len(self._y) if self.fresh_functions else 0
        if isinstance(posterior, SampledKernelPosterior) and not self.fresh_functions:
            held: Any = posterior
            pad, weights = held.system.operator.pad, held.weights - held.sample_weights
            return KernelFunctions(held.system.operator, held.prior, pad(weights))
        return posterior.functions(self.batch_size, key=jax.random.key((self.random_state + seed) % 2**32))

    def _need_bytes(self) -> int:
        """Of new functions where they are solved for, their padded copy, blocks of K with slopes, and values of candidates."""
        posterior: Any = self.model_._fitted.posterior
        itemsize, N = np.dtype(self.model_._fitted.dtype).itemsize, len(self._y)
        held = isinstance(posterior, SampledKernelPosterior) and not self.fresh_functions
        drawn = 0 if held else posterior.need_bytes(Request(n_samples=self.batch_size))
        rows = BLOCK * min(posterior.system.tile, N) * ARRAYS
        points = self.maximiser.candidates if self.candidates is None else len(self._all)
        return drawn + itemsize * (
            rows + 3 * N * (self.batch_size + self._X.shape[1]) + points * self.batch_size
        )

    def _spread(self, generator: np.random.Generator) -> np.ndarray:
        """A Latin hypercube."""
        n, D = self.batch_size, len(self._box.lower)
        cells = np.stack([generator.permutation(n) for _ in range(D)], axis=1)
        return self._box.lower + self._box.width * (cells + generator.uniform(size=(n, D))) / n


_values = jax.jit(values_at)
