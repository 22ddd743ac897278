"""Plans of kernel solves are values: what `plan_` says of one gives it back, and one that is given is carried out, not chosen again."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stochgp import KernelGPRegressor, kernels
from stochgp.budget import Budget, in_use
from stochgp.operators import KernelOperator
from stochgp.planning.memory import HEADROOM
from stochgp.planning.solve_plan import SolvePlan, variance_by
from stochgp.planning.solver import choose, plan
from stochgp.solvers import ADASAP, CG, SDD, SGD, Cholesky, SystemSize

positive = st.floats(1e-9, 1e6)
shares = st.floats(0.0, 0.999)
whole = st.integers(1, 10_000)
averaging = st.floats(1e-6, 1.0)
steps = {"epochs": whole, "check_every": whole}
SOLVERS = {
    "cholesky": st.builds(Cholesky, dtype=st.sampled_from([None, "float32", "float64"])),
    "cg": st.builds(
        CG, rank=st.none() | st.integers(0, 2000), damping=st.none() | st.floats(0, 1e3), greedy=st.booleans(), **steps
    ),
    "sdd": st.builds(
        SDD, batch_size=whole, step_size=st.none() | positive, momentum=shares, averaging=averaging, **steps
    ),
    "adasap": st.builds(ADASAP, batch_size=st.none() | whole, rank=whole, **steps),
    "sgd": st.builds(
        SGD, batch_size=whole, step_size=st.none() | positive, momentum=shares, averaging=st.none() | averaging,
        n_features=whole, clip=st.none() | positive, **steps,
    ),
}  # fmt: skip


@st.composite
def plans(draw, name):
    solver = draw(SOLVERS[name])
    n_samples = 0 if solver.exact_variances else draw(st.integers(0, 500))
    seconds = draw(st.none() | positive)
    return SolvePlan(
        solver, draw(whole), draw(st.integers(0, 10**6)), n_samples, variance_by(solver, n_samples),
        draw(st.sampled_from(["float32", "float64"])), draw(st.floats(1, 10)), draw(positive), draw(whole),
        draw(st.text(max_size=20)), {name: seconds}, draw(st.booleans()), n_neighbours=draw(whole),
    )  # fmt: skip


@pytest.mark.parametrize("name", SOLVERS)
@settings(max_examples=50)
@given(data=st.data())
def test_what_a_plan_says_of_itself_gives_it_back(name, data):
    chosen = data.draw(plans(name))
    told = json.loads(json.dumps(chosen.described(), allow_nan=False))
    assert SolvePlan.of(told) == chosen
    assert SolvePlan.of({"residual": {"choice": 0.1, "why": "of a fit"}, **told}) == chosen


PLAN = choose(SystemSize(20_000, 9, 8, 44), Budget(in_use() + 2 * 10**9), solver="sdd")


@pytest.mark.parametrize("name", PLAN.described())
def test_what_is_missing_is_named(name):
    told = PLAN.described()
    del told[name]
    with pytest.raises(ValueError, match=f"the plan has no '{name}'"):
        SolvePlan.of(told)
    with pytest.raises(ValueError, match=f"'{name}' must be .*choice.* but is 7"):
        SolvePlan.of(told | {name: 7})


@pytest.mark.parametrize(
    ("name", "choice", "says"),
    [
        ("solver", "LU", "'LU' is not one of Cholesky, CG, SDD, ADASAP, SGD: a solver of your own"),
        ("solver_settings", None, "must be epochs, batch_size"),
        ("solver_settings", {"epochs": 3}, "must be epochs, batch_size"),
        ("tile", 0, "'tile' is 0"),
        ("tile", True, "'tile' is True"),
        ("keep_rows", -1, "'keep_rows' is -1"),
        ("keep_rows", 2.5, "'keep_rows' is 2.5"),
        ("n_samples", "8", "'n_samples' is '8'"),
        ("variance", "exact", "'variance' is 'exact'; with SDD and 8 samples it is 'samples'"),
        ("solve_dtype", "float16", "'solve_dtype' is 'float16'"),
        ("workspace", 0, "'workspace' is 0"),
        ("solve_seconds", "soon", "'solve_seconds' is 'soon'"),
        ("solver_seconds", 3, "'solver_seconds' is 3"),
        ("solver_seconds", {"sdd": -1}, "'solver_seconds: sdd' is -1"),
        ("solve_memory", 1e9, "'solve_memory' is 1000000000.0"),
    ],
)
def test_what_is_malformed_is_named(name, choice, says):
    told = PLAN.described() | {name: {"choice": choice, "why": ""}}
    with pytest.raises(ValueError, match=says):
        SolvePlan.of(told)


@pytest.mark.parametrize(
    "wrong", [{"batch_size": "512"}, {"batch_size": 5.5}, {"epochs": True}, {"momentum": 1.0}]
)
def test_settings_that_the_solver_cannot_take_are_named(wrong):
    told = PLAN.described()
    told["solver_settings"]["choice"] |= wrong
    with pytest.raises(ValueError, match=f"'solver_settings'.*{next(iter(wrong))}"):
        SolvePlan.of(told)


def test_a_solver_of_the_users_own_has_to_be_given_again():
    from tests.solvers.test_needs import Own

    chosen = PLAN._replace(solver=Own(epochs=7))
    told = json.loads(json.dumps(chosen.described(), allow_nan=False))
    assert told["solver"]["choice"] == "tests.solvers.test_needs.Own"
    with pytest.raises(ValueError, match="a solver of your own has to be given with the plan again"):
        SolvePlan.of(told)
    assert SolvePlan.of(told, solver=Own(epochs=7)) == chosen
    for other in (Own(epochs=8), SDD()):
        with pytest.raises(
            ValueError, match="the plan was made with the solver tests.solvers.test_needs.Own"
        ):
            SolvePlan.of(told, solver=other)


def test_a_class_of_the_same_name_is_not_taken_for_ours():
    class SDD(CG):
        pass

    assert PLAN._replace(solver=SDD()).described()["solver"]["choice"].endswith("<locals>.SDD")


def operator_of(n_rows):
    X = np.random.default_rng(0).normal(size=(n_rows, 2))
    return KernelOperator.of(kernels.RBF(1.0), jnp.asarray(X, jnp.float32), 0.1, tile=512)


def never(*_):
    raise AssertionError("the machine was measured")


@pytest.mark.parametrize("solver", ["cholesky", "cg", "sdd", "adasap", "sgd"])
def test_a_given_plan_is_taken_as_it_is_and_nothing_is_measured(solver, monkeypatch):
    operator, budget = operator_of(4_000), Budget(in_use() + 10**9)
    size = SystemSize.of(operator, 2, 8)
    first = plan(operator, size, budget, solver=solver)
    assert first.measured
    monkeypatch.setattr("stochgp.planning.solver.calibrate", never)
    again = plan(operator, size, budget, given=SolvePlan.of(first.described()))
    assert again == first._replace(
        reason="as given", seconds=again.seconds, alternatives=again.alternatives, measured=False
    )
    assert again.alternatives == {solver: again.seconds}
    with pytest.raises(AssertionError, match="measured"):
        plan(operator, size, budget, solver=solver)


def test_a_given_plan_that_does_not_fit_is_refused_with_both_numbers():
    operator = operator_of(4_000)
    size = SystemSize.of(operator, 2, 8)
    fits = Budget(int((in_use() + PLAN.need) / (1 - HEADROOM)))
    taken = plan(operator, size, fits, given=PLAN)
    assert (taken.solver, taken.tile, taken.n_samples) == (PLAN.solver, PLAN.tile, 8)
    assert taken.keep_rows <= 4_000
    tight = Budget(int((in_use() + 0.9 * taken.need) / (1 - HEADROOM)))
    with pytest.raises(
        ValueError, match=r"4000 rows and 9 right-hand sides by sdd needs .* on top of .* memory_limit is"
    ):
        plan(operator, size, tight, given=PLAN)
    wider = plan(operator, size, fits, given=PLAN._replace(dtype="float64"))
    assert wider.dtype == "float64" and wider.need > taken.need


def test_the_plan_of_a_fit_is_told_in_full():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 2))
    solver = CG(rank=4, epochs=30)
    model = KernelGPRegressor(learner=None, noise_variance=0.1, solver=solver, n_samples=3, random_state=0)
    told = SolvePlan.of(json.loads(json.dumps(model.fit(X, np.sin(X[:, 0])).plan_)))
    assert (told.solver, told.n_samples, told.variance, told.dtype) == (solver, 3, "samples", "float32")
