"""Nested parameters as scikit-learn has them: kernels, learners and solvers by the names of their fields."""

import pytest
from sklearn.base import clone

from stochgp import KernelGPRegressor, kernels, learners, solvers
from stochgp.parameters import Frozen, frozen, value_of


def number(parameter):
    return float(value_of(parameter))


def test_fields_are_read_and_set_in_any_depth():
    kernel = kernels.RBF(lengthscale=2.0) + kernels.Linear(variance=frozen(3.0)) * kernels.Matern32()
    model = KernelGPRegressor(kernel, solver=solvers.CG())
    found = model.get_params()
    assert number(found["kernel__left__lengthscale"]) == 2.0
    assert number(found["kernel__right__left__variance"]) == 3.0
    assert not any("__" in name for name in model.get_params(deep=False))
    model.set_params(kernel__left__lengthscale=0.5, kernel__right__right__variance=4.0, n_samples=8)
    assert number(model.kernel.left.lengthscale) == 0.5 and number(model.kernel.right.right.variance) == 4.0
    assert number(model.kernel.right.left.variance) == 3.0 and model.n_samples == 8
    assert number(kernel.left.lengthscale) == 2.0  # the kernel that was given stays as it is
    other = clone(model).set_params(solver__rank=7)
    assert other.solver.rank == 7 and model.solver.rank == solvers.CG().rank


def test_what_is_frozen_stays_frozen_and_a_refusal_changes_nothing():
    model = KernelGPRegressor(kernels.RBF(lengthscale=frozen(1.0)), n_samples=4)
    model.set_params(kernel__lengthscale=0.5)
    assert isinstance(model.kernel.lengthscale, Frozen) and number(model.kernel.lengthscale) == 0.5
    with pytest.raises(ValueError, match="has no 'size'"):
        model.set_params(n_samples=9, kernel__size=1.0)
    assert model.n_samples == 4


def test_what_was_read_sets_the_same_again():
    model = KernelGPRegressor(kernels.Periodic(period=[1.0, 2.0]), learner=learners.LeaveOneOut())
    again = KernelGPRegressor().set_params(**model.get_params())
    assert repr(again) == repr(model)


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        (
            KernelGPRegressor(kernels.RBF()),
            "kernel__lengthscal",
            "kernel of RBF has no 'lengthscal'; did you mean 'lengthscale'?",
        ),
        (KernelGPRegressor("rbf"), "kernel__lengthscale", "kernel of str has no 'lengthscale'"),
        (KernelGPRegressor(kernels.RBF()), "kernels__lengthscale", "Invalid parameter 'kernels'"),
        (
            KernelGPRegressor(kernels.RBF() + kernels.RBF()),
            "kernel__left__size",
            "kernel__left of RBF has no 'size'",
        ),
    ],
)
def test_a_name_that_is_not_there_is_refused(model, name, words):
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        model.set_params(**{name: 1.0})
