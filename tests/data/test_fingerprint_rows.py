"""Estimators on fingerprints: the exact posterior of the Tanimoto kernel, whatever form the rows come in."""

import jax
import numpy as np
import pytest
import scipy.sparse

import stochgp
from stochgp import FeatureGPRegressor, KernelGPRegressor, kernels, learners, solvers
from stochgp.data import Fingerprints
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise

N, D = 60, 70


def loop(X, Z):
    smaller = np.minimum(X[:, None], Z[None]).sum(axis=2)
    larger = np.maximum(X[:, None], Z[None]).sum(axis=2)
    return np.where(larger == 0, 1.0, smaller / np.maximum(larger, 1))


def draw(n=N, seed=0, most=9):
    """Counts; the first row has none."""
    counts = np.minimum(np.random.default_rng(seed).poisson(0.3, (n, D)), most)
    counts[0] = 0
    return counts


X, Z = draw(), draw(9, 1, most=2)
LEVELS = tuple(X.max(axis=0).tolist())
y = 5 + 3 * np.random.default_rng(2).normal(size=N)
KEPT = {"kernel": kernels.Tanimoto(1.7), "learner": None, "likelihood": Gaussian(known_noise(0.3))}


def exact(X, y, Z):
    """Mean and standard deviation of f, of standardised targets with the hyperparameters of KEPT."""
    s = y.std()
    A, k = 1.7 * loop(X, X) + 0.3 * np.eye(len(X)), 1.7 * loop(Z, X)
    variance = 1.7 - np.sum(k * np.linalg.solve(A, k.T).T, axis=1)
    return y.mean() + s * k @ np.linalg.solve(A, (y - y.mean()) / s), s * np.sqrt(variance)


FORMS = {
    "integers": lambda X: X,
    "floats": lambda X: X.astype(np.float32),
    "csr": scipy.sparse.csr_matrix,
    "coo": scipy.sparse.coo_array,
    "packed": lambda rows: Fingerprints.pack(rows, LEVELS),
    "halves": lambda X: X / 2,  # fractions, which are not packed
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_rows_has_the_exact_posterior(form, tmp_path):
    as_rows = FORMS[form]
    model = KernelGPRegressor(**KEPT, dtype="float64", random_state=0).fit(as_rows(X), y)
    mean, std = model.predict(as_rows(Z), return_std=True)
    for found, wanted in zip((mean, std), exact(X, y, Z), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert model.plan_["inputs"]["choice"] == "as given" and "Tanimoto" in model.plan_["inputs"]["why"]
    assert model.n_features_in_ == D and model.kernel_.packed == (form != "halves")
    model.save(tmp_path / "model")
    again = stochgp.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(as_rows(Z)), mean)
    assert ("fingerprints of 70 counts" in model.summary()) == (form != "halves")


def test_binary_rows_and_rows_that_repeat():
    bits = np.concatenate([X > 0, X[:20] > 0])
    targets = np.concatenate([y, y[:20] + 1])
    model = KernelGPRegressor(**KEPT, dtype="float64").fit(bits, targets)
    for found, wanted in zip(model.predict(Z > 0, return_std=True), exact(bits, targets, Z > 0), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert "fingerprints of 70 bits" in model.summary()


def test_two_new_rows_share_the_smaller_of_what_they_have_beyond_the_training_rows():
    """One column for all of it: exact with training rows, and 1 for a row with itself."""
    new = np.concatenate([Z, 50 * Z[3:5], np.eye(D, dtype=int)[:1] * 9])
    levels = X.max(axis=0)
    beyond = np.maximum(new - levels, 0).sum(axis=1)
    assert np.all(beyond[-3:] > 0)
    both = np.concatenate([np.minimum(new, levels), beyond[:, None]], axis=1)
    K = 1.7 * loop(both, both)
    model = KernelGPRegressor(**KEPT, dtype="float64").fit(X, y)
    k = 1.7 * loop(new, X)
    wanted = y.var() * (K - k @ np.linalg.solve(1.7 * loop(X, X) + 0.3 * np.eye(N), k.T))
    np.testing.assert_allclose(model.predict(new, return_cov=True)[1], wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("solver", ["cholesky", "local"])
def test_more_rows_have_the_exact_posterior_or_are_refused(solver):
    """Rows with more of a column than any row of the fit share an unknown part with one another; wider levels at the fit hold them."""
    settings = KEPT | {"dtype": "float64", "standardize": False, "mean": 5.0, "solver": solver}
    new, targets = np.minimum(draw(20, 7), 40 + X.max(axis=0)), y[:20] + 1
    new[3, :4] += 12
    new[9, 2:5] += 11
    model = KernelGPRegressor(**settings).fit(X, y)
    before = model.predict(Z)
    with pytest.raises(
        ValueError,
        match=r"the first at row 4, have a count above the largest training count in the same column",
    ) as caught:
        model.update(new, targets)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(model.predict(Z), before)
    levels = tuple(int(most) for most in np.maximum(X.max(axis=0), new.max(axis=0)))
    model = KernelGPRegressor(**settings).fit(Fingerprints.pack(X, levels), y).update(new, targets)
    rows, both = np.concatenate([X, new]), np.concatenate([y, targets])
    A, k = 1.7 * loop(rows, rows) + 0.3 * np.eye(len(rows)), 1.7 * loop(new, rows)
    np.testing.assert_allclose(model.predict(new), 5 + k @ np.linalg.solve(A, both - 5), rtol=1e-6)
    features = FeatureGPRegressor(
        "tanimoto", "tanimoto", n_features=20, learner=learners.SCGD(epochs=1), random_state=0
    ).fit(X, y)
    with pytest.raises(ValueError, match="the first at row 4, have a count above"):
        features.partial_fit(new, targets)


@pytest.mark.parametrize("solver", ["cg", "sdd"])
@pytest.mark.long
def test_stochastic_solvers_reach_the_exact_posterior(solver):
    """On the operator of packed rows; samples included."""
    settings = {"cg": solvers.CG(), "sdd": solvers.SDD(batch_size=20)}
    model = KernelGPRegressor(**KEPT, solver=settings[solver], random_state=0).fit(X, y)
    mean, _ = exact(X, y, Z)
    assert np.sqrt(np.mean((model.predict(Z) - mean) ** 2)) < 0.15 * np.std(mean)
    functions = model.sample_functions(4)
    np.testing.assert_allclose(functions(Z), functions(Fingerprints.pack(Z, LEVELS)), rtol=1e-5)
    with pytest.raises(ValueError, match="other levels"):
        model.predict(Fingerprints.pack(Z))


@pytest.fixture(scope="module")
def learnable():
    """(Counts; targets of a GP of them; the least NLML of a grid, per datum, of targets in their own units and of hyperparameters for standardised ones)."""
    counts = draw(150, 5)
    K = loop(counts, counts)
    targets = np.linalg.cholesky(2.0 * K + 0.2 * np.eye(150)) @ np.random.default_rng(6).normal(size=150)
    values, vectors = np.linalg.eigh(K)
    squares = (vectors.T @ (targets - targets.mean()) / targets.std()) ** 2

    def nlml(variance, noise):
        eigenvalues = variance * values + noise
        return np.mean(squares / eigenvalues + np.log(eigenvalues) + np.log(2 * np.pi)) / 2 + np.log(
            targets.std()
        )

    grid = [nlml(v, s2) for v in np.geomspace(0.1, 10, 30) for s2 in np.geomspace(0.01, 1, 30)]
    return counts, targets, min(grid)


@pytest.mark.parametrize("learner", ["loo", "full-batch", learners.BSGD(batch_size=50)], ids=str)
def test_learners_find_the_two_hyperparameters(learner, learnable):
    """The likelihood of what they find is near the best of a grid."""
    counts, targets, least = learnable
    kernel = kernels.Tanimoto()
    fitted = KernelGPRegressor(kernel, learner=learner, random_state=0).fit(counts, targets)
    assert fitted.nlml_ - least < 0.03
    assert least <= fitted.nlml_ + 1e-3


def test_local_prediction_of_all_neighbours_is_the_global_one():
    settings = KEPT | {"dtype": "float64", "random_state": 0}
    local = KernelGPRegressor(**settings, solver="local").fit(X, y)
    np.testing.assert_allclose(local.predict(Z), exact(X, y, Z)[0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["tanimoto", "nystrom"])
def test_feature_gps_of_fingerprints(kind, tmp_path):
    """The exact posterior of the features' own kernel, at the hyperparameters found; Nyström features of all rows have the kernel itself."""
    n_features = {"nystrom": N, "tanimoto": 300}[kind]
    targets = X.sum(axis=1) + 0.3 * y
    model = FeatureGPRegressor(
        kind, "tanimoto", n_features=n_features, learner="full-batch", dtype="float64", random_state=0
    ).fit(scipy.sparse.csr_array(X), targets)
    assert model.plan_["inputs"]["choice"] == "as given" and model.n_features_in_ == D
    s2, s = model.noise_variance_ / targets.var(), targets.std()
    rows = np.concatenate([X, Z])
    if kind == "tanimoto":
        with jax.enable_x64(True):
            of_rows = jax.numpy.asarray(model._fitted.encoder.transform(rows), float)
            Phi = np.asarray(jax.jit(lambda rows: model.features_(rows))(of_rows))
        K = Phi @ Phi.T
    else:
        K = float(model.features_.kernel.variance) * loop(rows, rows)
    mean = model.predict(Z)
    shares = (
        predicted(targets, v * K, s2) for v in np.geomspace(0.01, 1000, 2001)
    )  # of the GP's own variance
    assert min(np.abs(mean - found).max() for found in shares) < 4e-3 * s
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(stochgp.load(tmp_path / "model").predict(Z), mean)


def predicted(y, K, s2):
    return y.mean() + K[N:, :N] @ np.linalg.solve(K[:N, :N] + s2 * np.eye(N), y - y.mean())


def test_what_are_no_fingerprints_is_refused_in_one_line():
    model = KernelGPRegressor("tanimoto")
    wrong = X.astype(float)
    wrong[4, 2] = -1.0
    for rows in (wrong, scipy.sparse.csr_array(wrong)):
        with pytest.raises(ValueError, match=r"at least 0, but the value in row 5, column 3 is -1.0"):
            model.fit(rows, y)
    wrong[4, 2] = np.nan
    with pytest.raises(ValueError, match=r"row 5, column 3 is nan"):
        model.fit(wrong, y)
    with pytest.raises(ValueError, match=r"row 2, column 1 is 0.5"):
        model.fit(scipy.sparse.csr_array(np.array([[0, 1.0], [0.5, 0]])), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"expected fingerprints \[N, D\] with N and D above 0"):
        model.fit(np.zeros((0, 3)), [])
    with pytest.raises(ValueError, match="Input y contains NaN: 1 such .*, the first at row 3"):
        model.fit(X[:4], [1.0, 2.0, np.nan, 4.0])
    fitted = KernelGPRegressor(**KEPT).fit(X, y)
    with pytest.raises(ValueError, match=f"expected fingerprints of {D} columns, but got 3 columns"):
        fitted.predict(X[:, :3])
