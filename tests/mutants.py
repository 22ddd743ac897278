"""Mutations of the source, each of which a stated test must notice: `make mutants`.

A mutation replaces one exact text of one file, in a copy of `src`, and runs tests that must then fail. The table says of each whether it
was killed. The tests run once without a mutation, where they must pass. Exit code 1: a mutation survived or cannot be applied any more.

    python tests/mutants.py [part of a name] [--jobs N]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SECONDS = 300.0  # for the tests of one mutation


class Mutation(NamedTuple):
    name: str
    file: str  # below src/stochgp
    text: str  # which the file has once
    replacement: str
    tests: str  # node ids below tests/, of which one must fail


MUTATIONS = (
    Mutation(
        "CG ignores its share of the tolerance",
        "estimators/solving.py",
        "typical_error, solver.tolerance_share)",
        "typical_error, 1.0)",
        "estimators/test_solving.py::test_a_solver_solves_to_its_share_of_the_tolerance",
    ),
    Mutation(
        "the tolerance falls with the quarter power of the noise",
        "estimators/solving.py",
        "TOLERANCE, POWER, TYPICAL_SHARE = 0.2, 0.75",
        "TOLERANCE, POWER, TYPICAL_SHARE = 0.2, 0.25",
        "estimators/test_solving.py::test_tolerances_scale_with_the_three_quarters_power_of_the_noise_and_not_with_units",
    ),
    Mutation(
        "a run that grows is never sent back",
        "solvers/solve.py",
        "if not distance <= GROWN * self.lowest:",
        "if False:",
        "solvers/test_solve.py::test_a_run_that_grows_goes_back_and_takes_the_remedy",
    ),
    Mutation(
        "a run that grows is never sent back (blocks)",
        "solvers/solve.py",
        "if not distance <= GROWN * self.lowest:",
        "if False:",
        "solvers/test_solve.py::test_blocks_that_rounding_makes_grow_come_nearer_all_the_same",
    ),
    Mutation(
        "the tolerance of the mean is not that of the noise",
        "estimators/solving.py",
        "** POWER, MOST_TOLERANCE)",
        "** POWER, 1.0) * 3",
        "estimators/test_large.py::test_the_mean_is_solved_to_the_planned_tolerance_and_predicts_as_the_exact_one",
    ),
    Mutation(
        "errors of left-out rows forget the residual",
        "posteriors/calibration.py",
        "(alpha * variance + left) / ",
        "alpha * variance / ",
        "posteriors/test_calibration.py::test_errors_of_rows_left_out_know_what_the_solver_left",
    ),
    Mutation(
        "neighbours do not see what the low rank has explained",
        "solvers/full_scale.py",
        "kernel.matrix(X, X) - matmul(F, F.T).astype(X.dtype)",
        "kernel.matrix(X, X)",
        "solvers/test_full_scale.py::test_it_is_the_inverse_of_low_rank_plus_regressions_on_earlier_neighbours",
    ),
    Mutation(
        "a fall-back has no remedy",
        "solvers/solve.py",
        "self.arranged = self.solver.more_careful(self.arranged, self.since, self.n_failures)",
        "pass",
        "solvers/test_solve.py::test_a_run_that_grows_goes_back_and_takes_the_remedy",
    ),
    Mutation(
        "blocks are never damped more",
        "solvers/sdd.py",
        "if not self.by_blocks or without < 1:",
        "if True:",
        "solvers/test_solve.py::test_blocks_are_damped_ten_times_more_for_every_divergence_without_momentum",
    ),
    Mutation(
        "the jitter of a block is not recorded",
        "solvers/sdd.py",
        "return trtri(L, lower=True, overwrite_c=True)[0], jitter",
        "return trtri(L, lower=True, overwrite_c=True)[0], 0.0",
        "solvers/test_solve.py::test_the_jitter_that_was_needed_is_told",
    ),
    Mutation(
        "the jitter of the direct solver is not recorded",
        "numerics/dense_factor.py",
        "return Factor(L, jitter) if",
        "return Factor(L, 0.0) if",
        "solvers/test_solve.py::test_the_jitter_that_was_needed_is_told",
    ),
    Mutation(
        "a direct solution is not refined",
        "solvers/cholesky.py",
        "MOST_REFINEMENTS = 3",
        "MOST_REFINEMENTS = 0",
        "solvers/test_solve.py::test_a_factor_in_float32_is_refined_to_float64",
    ),
    Mutation(
        "a checkpoint is read and not used (by loss)",
        "learners/fit.py",
        "        if resumed is None:\n",
        "        if True:\n",
        "learners/test_fit_by_loss.py::test_a_resumed_run_takes_only_the_steps_that_are_left",
    ),
    Mutation(
        "a checkpoint is read and not used (by evidence)",
        "learners/fit.py",
        "        if resumed is None:\n",
        "        if True:\n",
        "learners/test_fit_by_evidence.py::test_a_resumed_run_takes_only_the_steps_that_are_left",
    ),
    Mutation(
        "SDD states half the bytes of a column",
        "solvers/sdd.py",
        "COLUMNS = 14",
        "COLUMNS = 7",
        "planning/test_solver.py::test_bytes_of_columns_are_those_measured[4000x1000-sdd]",
    ),
    Mutation(
        "CG states half the bytes of a column",
        "solvers/cg.py",
        "COLUMNS, WIDE_COLUMNS = 6, 16",
        "COLUMNS, WIDE_COLUMNS = 3, 8",
        "planning/test_solver.py::test_bytes_of_columns_are_those_measured[4000x1000-cg]",
    ),
    Mutation(
        "the residual of an update's blocks leaves out the noise",
        "posteriors/growing.py",
        "add(-operator.noise[rows][:, None] * delta)",
        "add(0 * operator.noise[rows][:, None] * delta)",
        "estimators/test_update.py::test_the_residual_of_moved_weights_is_followed",
    ),
    Mutation(
        "the likelihood of a feature GP leaves out the multipliers of the noise",
        "objectives/moments.py",
        "jnp.sum(count * jnp.log(s))",
        "jnp.sum(0 * jnp.log(s))",
        "learners/test_row_noise.py::test_the_likelihood_is_that_of_repeated_rows",
    ),
    Mutation(
        "SCGD's gradient by the noise of a row leaves out the posterior variance",
        "learners/scgd.py",
        "zeta = residual**2 / s2 + jnp.sum(smoothed * Phi, axis=1)",
        "zeta = residual**2 / s2",
        "learners/test_row_noise.py::test_at_an_anchor_scgd_is_unbiased",
    ),
    Mutation(
        "the count of a row does not divide its noise",
        "likelihoods/noise.py",
        " / jnp.maximum(jnp.asarray(count, X.dtype), SMALLEST_COUNT)",
        "",
        "objectives/test_kernel.py::test_weights_stand_for_repeated_rows",
    ),
    Mutation(
        "by loss, a run returns the evaluation of the lowest criterion",
        "learners/judge.py",
        "    def returns_best(self) -> bool:\n        return False",
        "    def returns_best(self) -> bool:\n        return True",
        "learners/test_fit_by_loss.py::test_a_lost_evaluation_goes_back_to_the_lowest_loss_at_a_smaller_rate "
        "learners/test_fit_by_loss.py::test_an_interrupt_keeps_the_last_good_evaluation "
        "learners/test_fit_by_loss.py::test_history_and_result",
    ),
    Mutation(
        "by evidence, a run returns its last good evaluation",
        "learners/evidence.py",
        "    def returns_best(self) -> bool:\n        return True",
        "    def returns_best(self) -> bool:\n        return False",
        "learners/test_fit_by_evidence.py::test_a_run_lost_seven_times_has_diverged "
        "learners/test_fit_by_evidence.py::test_the_best_evaluation_is_returned",
    ),
    Mutation(
        "a noisy loss counts as lost however uncertain it is",
        "learners/fit.py",
        "criterion - SURE * evaluation.error > at.lowest",
        "criterion > at.lowest",
        "learners/test_fit_by_loss.py::test_a_loss_that_may_be_chance_is_not_lost",
    ),
    Mutation(
        "a lost run goes on at the same rate",
        "learners/fit.py",
        "slower, kept = setting.learner.slower(at.best_state, SLOWER), at.kept",
        "slower, kept = at.best_state, at.kept",
        "learners/test_fit_by_loss.py::test_a_lost_evaluation_goes_back_to_the_lowest_loss_at_a_smaller_rate",
    ),
    Mutation(
        "a noise variance is never raised for the solver",
        "estimators/raised_noise.py",
        "    if learned >= least:\n",
        "    if True:\n",
        "estimators/test_raised_noise.py::test_rounding_sets_a_bound_that_goes_with_the_signal",
    ),
    Mutation(
        "the held-out rows do not join the posterior",
        "learners/evidence.py",
        "            moments = self._together(moments, gp, division)\n",
        "            pass\n",
        "learners/test_fit_by_evidence.py::test_the_nlml_is_the_dense_one_of_the_model_returned",
    ),
    Mutation(
        "few rows are judged one by one only",
        "learners/evidence.py",
        "    return division.train.size < max(FEW_ROWS, 2 * gp.n_features)",
        "    return False",
        "estimators/test_few_rows.py::test_nothing_collapses",
    ),
    Mutation(
        "a run is settled by its last evaluations alone",
        "learners/evidence.py",
        "early = int(np.sum(steps <= steps[-1] / 4)) - 1",
        "early = len(steps) - 2",
        "estimators/test_few_rows.py::test_a_run_is_settled_only_where_a_rate_that_could_move_it_did_not",
    ),
    Mutation(
        "MINIMAX takes the papers' penalty",
        "learners/minimax.py",
        "penalty = threshold if self.penalty is None and (first or self.anchored) else float(state.penalty)",
        "penalty = 1.0",
        "learners/test_minimax.py::test_without_a_penalty_an_anchor_has_the_gradient_of_the_likelihood",
    ),
    Mutation(
        "a missing neighbour is connected",
        "objectives/conditionals.py",
        "jnp.where(connected, A, jnp.zeros_like(A))",
        "A",
        "objectives/test_conditionals.py::test_missing_neighbours_have_no_influence",
    ),
    Mutation(
        "equal rows do not count in a joint density",
        "objectives/conditionals.py",
        "0.5 * (rho - 1) * log_noise + (rho - 1) * HALF_LOG_2PI",
        "0 * log_noise",
        "objectives/test_conditionals.py::test_all_earlier_rows_give_the_exact_likelihood_of_all_data",
    ),
    Mutation(
        "rows of the own group are neighbours",
        "learners/conditionals.py",
        ".others(prepared.centres, k, prepared.group)",
        ".others(prepared.centres, k)",
        "learners/test_conditionals.py::test_who_the_neighbours_are",
    ),
    Mutation(
        "held-out rows split groups",
        "learners/evidence.py",
        "if source.group is not None:\n            held_out",
        "if False:\n            held_out",
        "learners/test_groups.py",
    ),
    Mutation(
        "the order of the blocks is not undone",
        "solvers/solve.py",
        "return value if order is None else jnp.zeros_like(value).at[order].set(value)",
        "return value",
        "solvers/test_contract.py::test_reported_residuals_are_the_true_ones",
    ),
    Mutation(
        "variances by a factor have no floor",
        "numerics/dense_factor.py",
        "return np.minimum(of_noise + np.maximum(rest, rounding), prior)",
        "return np.clip(of_noise + rest, 0, prior)",
        "posteriors/test_noiseless.py::test_variances_are_never_below_the_true_ones_but_for_rounding",
    ),
    Mutation(
        "a noise variance that is given is only a start",
        "estimators/dispersion_choice.py",
        "return constant_noise(frozen(np.asarray(given, kind)))",
        "return constant_noise(given, lower=0.0, dtype=kind)",
        "estimators/test_noise.py::test_a_noise_variance_that_is_given_is_kept",
    ),
    Mutation(
        "few rows have no prior",
        "estimators/choices.py",
        'FULL_BATCH = FullBatch(warm_rows=WARM_ROWS, precision="float64", spread=SPREAD)',
        'FULL_BATCH = FullBatch(warm_rows=WARM_ROWS, precision="float64")',
        "estimators/test_cautions.py::test_one_row_is_no_certainty",
    ),
    Mutation(
        "noise of the input multiplies the variance of f too",
        "observations/observation.py",
        "lambda Z: (multiplier(Z),)",
        "lambda Z: (multiplier(Z) * np.asarray(self.likelihood.noise.multiplier(jnp.asarray(Z))),)",
        "learners/test_dispersion.py::test_deviations_and_noise_are_those_of_the_base_times_the_scale",
    ),
    Mutation(
        "trees replace the noise of the input",
        "observations/dispersion.py",
        "frozen(self.trees), noise)",
        "frozen(self.trees))",
        "learners/test_dispersion.py::test_deviations_and_noise_are_those_of_the_base_times_the_scale",
    ),
    Mutation(
        "errors of gains take rows for independent ones",
        "numerics/clustered.py",
        "sums = np.bincount(cell, weight * (difference - mean))",
        "sums = weight * (difference - mean)",
        "learners/test_dispersion.py::test_errors_of_gains_are_those_of_the_sums_of_cells",
    ),
    Mutation(
        "errors of gains have no weights",
        "numerics/clustered.py",
        "sums = np.bincount(cell, weight * (difference - mean))",
        "sums = np.bincount(cell, difference - mean)",
        "learners/test_dispersion.py::test_a_row_that_counts_is_as_many_rows_of_one_cell",
    ),
    Mutation(
        "the gain of row noise takes rows for independent ones",
        "learners/row_noise.py",
        "{what: -other.value}, one.cell, one.weight)",
        "{what: -other.value}, np.arange(len(one.value)), one.weight)",
        "estimators/test_row_noise.py::test_the_gain_is_that_of_rows",
    ),
    Mutation(
        "a rival needs no least gain",
        "choosing.py",
        "gain.mean > max(SURE * gain.error, least)",
        "gain.mean > SURE * gain.error",
        "test_choosing.py::test_a_rival_that_is_equal_or_gains_next_to_nothing_is_not_preferred",
    ),
    Mutation(
        "few groups decide",
        "choosing.py",
        "if few := too_few(len(base), cell, fewest):",
        "if few := too_few(len(base), None, fewest):",
        "test_choosing.py::test_few_cells_prefer_nothing",
    ),
    Mutation(
        "a lost default stays",
        "choosing.py",
        "return Preference(best, {}, ",
        "return Preference(None, {}, ",
        "test_choosing.py::test_a_lost_rival_is_not_preferred_and_of_a_lost_default_the_best_that_finished_takes_the_place",
    ),
    Mutation(
        "pools do not hold the last rows out",
        "estimators/pool_division.py",
        "np.concatenate([spread, np.arange(before, len(labels))])",
        "np.concatenate([spread, order[-len(labels) // 9 :]])",
        "estimators/test_pooled.py::test_of_blocks_of_time_the_last_are_held_out_and_few_others",
    ),
    Mutation(
        "every temperature is taken",
        "distributions/temperature.py",
        "if 2 * number * gain <= SURE:",
        "if 2 * number * gain <= 0.0:",
        "distributions/test_temperature.py::test_right_probabilities_stay_in_99_of_100_draws",
    ),
    Mutation(
        "a kernel's prior is about 0",
        "learners/svgp.py",
        "_square(self._with_prior(gp), state.start)",
        "_square(self._with_prior(gp), jax.tree.map(jnp.zeros_like, state.start))",
        "variational/test_variational.py::test_the_prior_of_a_kernel_is_a_penalty_about_its_start_and_of_nothing_else",
    ),
    Mutation(
        "members see the rows of later folds",
        "estimators/pooled_classifier.py",
        "rows.some(~part.all)",
        "rows",
        "estimators/test_pooled_classifier.py::test_of_few_rows_each_is_held_out_once_and_seen_by_no_member_that_predicts_it",
    ),
    Mutation(
        "whole numbers are dates where most of them are",
        "data/written_dates.py",
        "True).is_date.all())",
        "True).is_date.mean() > 0.5)",
        "data/test_odd_tables.py::test_other_whole_numbers_stay_numbers",
    ),
    Mutation(
        "cautions take few groups for many",
        "estimators/helps.py",
        "return clusters(X, None if few else rows.group)",
        "return clusters(X, rows.group)",
        "estimators/test_helps.py::test_few_groups_give_way_to_cells_of_near_rows",
    ),
    Mutation(
        "the choice of a kernel takes rows for independent ones",
        "estimators/kernel_choice.py",
        "cell = clusters(X[rows], None if source.group is None else source.group[rows])",
        "cell = np.arange(len(rows))",
        "estimators/test_kernel_choice.py::test_rows_that_gain_together_are_no_independent_evidence",
    ),
    Mutation(
        "the choice of a kernel has no weights",
        "estimators/kernel_choice.py",
        "count = np.asarray(source.on_host(rows).weight, np.float64)",
        "count = np.ones(len(rows))",
        "estimators/test_kernel_choice.py::test_rows_that_count_decide_as_repeated_rows_do",
    ),
    Mutation(
        "the choice of a transform takes rows for independent ones",
        "objectives/warping.py",
        "cell = clusters(X[held], None if group is None else group[held])",
        "cell = np.arange(len(held))",
        "estimators/test_warping.py::test_whole_groups_judge_and_rows_weigh_what_they_count",
    ),
    Mutation(
        "the fit of a transform has a Jacobian without weights",
        "objectives/warping.py",
        "jnp.sum(count * slopes)",
        "jnp.sum(slopes)",
        "estimators/test_warping.py::test_rows_that_count_are_repeated_rows_in_the_fit_of_a_transform",
    ),
    Mutation(
        "the Jacobian of a fit has no weights",
        "estimators/warping.py",
        "slope = float(np.average(found.log_slope(rows.y), weights=data.weight))",
        "slope = float(np.average(found.log_slope(rows.y)))",
        "estimators/test_warping.py::test_the_likelihood_has_the_jacobian_of_rows_that_count",
    ),
    Mutation(
        "errors of left-out rows keep the scale of the kernel",
        "estimators/dispersion_choice.py",
        "z = z / math.sqrt(max(float(np.average(np.square(z), weights=weight)), 1e-300))",
        "z = 1.0 * z",
        "estimators/test_likelihood.py::test_errors_of_neighbours_have_weights_groups_and_no_scale",
    ),
    Mutation(
        "probabilities are corrected by rows that trees saw",
        "estimators/dispersion_choice.py",
        "return dispersion, rows if dispersion.trees is None else last",
        "return dispersion, rows",
        "estimators/test_likelihood.py::test_probabilities_are_corrected_by_rows_that_no_tree_was_fitted_to",
    ),
    Mutation(
        "trees have no weights",
        "learners/dispersion.py",
        "return rows.count * g, rows.count * h",
        "return g, h",
        "learners/test_dispersion.py::test_trees_of_rows_that_count_are_those_of_repeated_rows",
    ),
    Mutation(
        "the shape of errors has no weights",
        "objectives/dispersion.py",
        "np.average(shape.log_density(squares, np.zeros(1)), weights=weight)",
        "np.average(shape.log_density(squares, np.zeros(1)))",
        "learners/test_dispersion.py::test_shapes_of_rows_that_count_are_those_of_repeated_rows",
    ),
    Mutation(
        "laws are compared without weights",
        "learners/dispersion.py",
        "{name: scores[name]}, cell, tested.weight)",
        "{name: scores[name]}, cell)",
        "learners/test_dispersion.py::test_rows_that_count_choose_what_repeated_rows_choose",
    ),
    Mutation(
        "the correction of probabilities has no weights",
        "distributions/curves.py",
        "np.histogram(u, knots, weights=weight)",
        "np.histogram(u, knots)",
        "learners/test_dispersion.py::test_curves_of_rows_that_count_are_those_of_repeated_rows",
    ),
    Mutation(
        "further runs of a noise hold out other rows",
        "learners/row_noise.py",
        "going._replace(progress=later)._asdict()",
        "going._replace(progress=later, key=jax.random.fold_in(going.key, 1))._asdict()",
        "estimators/test_row_noise.py::test_runs_that_are_compared_held_out_the_same_rows",
    ),
    Mutation(
        "the run of constant noise holds out other rows",
        "estimators/row_noise.py",
        "twin(head, first, learner, rows, key=run.learn_key,",
        "twin(head, first, learner, rows, key=run.start_key,",
        "estimators/test_row_noise.py::test_runs_that_are_compared_held_out_the_same_rows",
    ),
    Mutation(
        "steps with heavy tails are always kept",
        "learners/heavy_tails.py",
        "is_better = None not in scores and scores[1] < scores[0]",
        "is_better = True",
        "estimators/test_student.py::test_steps_with_heavy_tails_stay_only_where_held_out_rows_gain",
    ),
    Mutation(
        "degrees of freedom are found in one round",
        "learners/heavy_tails.py",
        "ROUNDS = 4",
        "ROUNDS = 1",
        "estimators/test_student.py::test_rounds_have_found_the_degrees_of_freedom",
    ),
    Mutation(
        "the first rows are set aside for a calibration",
        "estimators/calibrating.py",
        "generator.permutation(N)[:n]",
        "np.arange(n)",
        "estimators/test_calibration.py::test_rows_that_are_left_out_are_random_ones",
    ),
    Mutation(
        "figures of a recalibration are of the rows it was fitted to",
        "estimators/calibrating.py",
        "half, new = rows.some(fit), rows.some(score)\n    mean",
        "half, new = rows.some(score), rows.some(score)\n    mean",
        "estimators/test_calibration.py::test_figures_are_of_rows_that_the_correction_has_not_seen",
    ),
    Mutation(
        "figures of conformal intervals are of the rows they were fitted to",
        "estimators/calibrating.py",
        "half, new = rows.some(fit), rows.some(score)\n    share",
        "half, new = rows.some(score), rows.some(score)\n    share",
        "estimators/test_calibration.py::test_figures_are_of_rows_that_the_correction_has_not_seen",
    ),
    Mutation(
        "conformal scores have no weights",
        "distributions/calibrating.py",
        "below = np.cumsum(self.weight) * (n / self.weight.sum())",
        "below = np.arange(1, len(self.scores) + 1) * (n / len(self.scores))",
        "distributions/test_calibrating.py::test_weights_enter_conformal_intervals_as_repeated_rows_do",
    ),
    Mutation(
        "weights are rows of their own to a recalibration",
        "distributions/calibrating.py",
        "if 2 * effective_number(weight) * gain <= SURE:",
        "if 2 * weight.sum() * gain <= SURE:",
        "distributions/test_calibrating.py::test_equal_weights_are_no_more_rows",
    ),
    Mutation(
        "a row that is left out is the mean of as many as it weighs",
        "objectives/conditionals.py",
        "count = count if joint else count.at[-1].set(1)",
        "count = count",
        "objectives/test_conditionals.py::test_all_other_rows_give_the_closed_form_of_leave_one_out",
    ),
    Mutation(
        "rows that are left out weigh the same",
        "objectives/conditionals.py",
        "return jnp.ones_like(rho) if joint else rho",
        "return jnp.ones_like(rho)",
        "objectives/test_conditionals.py::test_a_row_of_weight_2_counts_as_two_equal_centres_and_as_two_equal_neighbours",
    ),
    Mutation(
        "a held-out row is the mean of as many as it weighs",
        "learners/evidence.py",
        "return HeldOut(P, y, count, multiplier)",
        "return HeldOut(P, y, count, multiplier / count)",
        "learners/test_groups.py::test_held_out_rows_of_any_weight_are_single_observations",
    ),
    Mutation(
        "a held-out row of weight 10 is ten observations of its error",
        "objectives/held_out.py",
        "of_groups(share * (part - m))",
        "of_groups(np.sqrt(share / held_out.weight.sum()) * (part - m))",
        "objectives/test_held_out.py::test_weights_are_repeated_rows_and_their_multiples_change_nothing",
    ),
    Mutation(
        "variances from few samples are too large",
        "posteriors/calibration.py",
        "(S - 2) / np.sum(u**2, axis=1)",
        "S / np.sum(u**2, axis=1)",
        "posteriors/test_calibration.py::test_variances_from_few_samples_are_unbiased",
    ),
    Mutation(
        "variances are scaled by means of as many rows as they weigh",
        "posteriors/calibration.py",
        "np.maximum(variance - own, 0) + count * own",
        "variance",
        "posteriors/test_calibration.py::test_a_factor_gives_what_rows_predicted_by_the_others_say",
    ),
    Mutation(
        "variances are scaled by left-out rows without their groups",
        "estimators/solving.py",
        "posterior, scale = calibrated(posterior, group)",
        "posterior, scale = calibrated(posterior)",
        "estimators/test_groups.py::test_intervals_of_new_groups_hold_their_rows",
    ),
    Mutation(
        "a group is as many errors as it has rows",
        "posteriors/base.py",
        "n = effective_number(np.bincount(number, weight))",
        "n = effective_number(weight)",
        "posteriors/test_calibration.py::test_whole_groups_are_left_out",
    ),
    Mutation(
        "local variances are scaled by left-out rows without their groups",
        "estimators/local_choice.py",
        'return local.calibrated(n_rows, 0, group), choice(n, f"',
        'return local.calibrated(n_rows, 0), choice(n, f"',
        "estimators/test_groups.py::test_intervals_of_new_groups_hold_their_rows",
    ),
    Mutation(
        "new rows have the noise of those before them",
        "posteriors/growing.py",
        "(*held.keys, key))",
        "(*held.keys, (*held.keys, key)[0]))",
        "estimators/test_update.py::test_the_noise_of_new_rows_is_independent_of_that_of_all_before",
    ),
    Mutation(
        "the second moment of rounded targets counts every count once too few",
        "distributions/rounded.py",
        "(above + below) @ (2.0 * j + 1)",
        "(above + below) @ (2.0 * j)",
        "distributions/test_distributions.py::test_moments_of_rounded_are_those_of_its_probabilities",
    ),
    Mutation(
        "moments of rounded targets end with their sums",
        "distributions/rounded.py",
        "if n == SUMMED:",
        "if False:",
        "distributions/test_distributions.py::test_moments_of_rounded_are_those_of_its_probabilities",
    ),
    Mutation(
        "probability integral transforms of counts are not randomised",
        "distributions/base.py",
        "if not self.is_discrete:",
        "if True:",
        "distributions/test_distributions.py::test_probability_integral_transforms_of_counts_are_uniform",
    ),
    Mutation(
        "long sums of scores of rounded targets are those of the base alone",
        "distributions/rounded.py",
        "total = np.sum(above**2) + np.sum(below**2) + ",
        "total = ",
        "distributions/test_distributions.py::test_scores_of_many_counts_are_their_sums",
    ),
    Mutation(
        "conformal scores of counts are not randomised",
        "distributions/calibrating.py",
        "scores = np.abs(found.pit(y, seed) - 0.5)",
        "scores = np.abs(found.cdf(y - 1) - 0.5)",
        "distributions/test_distributions.py::test_conformal_intervals_of_counts_hold_their_share",
    ),
    Mutation(
        "the upper bound takes the trace of one row",
        "objectives/collapsed.py",
        "second = _statistics(gp, process, source, float(first.trace))",
        "second = _statistics(gp, process, source, float(first.trace) / source.size)",
        "objectives/test_collapsed.py::test_the_upper_bound_is_titsias_formula",
    ),
    Mutation(
        "all passes over a batch have one key",
        "learners/stream.py",
        "np.uint32(int(stream.n_steps) + i)",
        "np.uint32(int(stream.n_steps))",
        "learners/test_stream.py::test_every_pass_over_a_batch_draws_columns_of_its_own",
    ),
    Mutation(
        "a stream's losses are of standardised targets",
        "estimators/growing.py",
        '"loss": loss + float(np.log(s))',
        '"loss": loss',
        "estimators/test_growing.py::test_a_stream_learns_by_default_or_says_that_it_does_not",
    ),
    Mutation(
        "an update is solved less exactly than the fit",
        "estimators/updating.py",
        "tolerance[0] = min(tolerance[0], posterior.tolerance)",
        "tolerance[0] = max(tolerance[0], posterior.tolerance)",
        "estimators/test_update.py::test_an_update_is_solved_as_exactly_as_the_fit_was",
    ),
    Mutation(
        "functions that move leave behind what rows said",
        "learners/ivsgpr.py",
        "moved = carried(q.mean_functions, gp.kernel, before.mean_functions, parts, jitter)",
        "moved = parts",
        "learners/test_decoupled.py::test_functions_that_move_within_their_span_leave_q_as_it_is",
    ),
    Mutation(
        "nobody looks whether a fit helps",
        "estimators/base.py",
        "        self._judge(learned, data)\n",
        "",
        "estimators/test_helps.py::test_a_useless_fit_warns_and_has_not_converged",
    ),
    Mutation(
        "narrow intervals are not said",
        "estimators/helps.py",
        "if inside < INSIDE:",
        "if inside < 0:",
        "estimators/test_helps.py::test_intervals_that_hold_too_few_rows_are_said",
    ),
    Mutation(
        "a shift of a stream is not said",
        "estimators/growing.py",
        "[shift_of(before, rows.X, rows.y)] if",
        '[""] if',
        "estimators/test_growing.py::test_a_shift_of_the_targets_is_said",
    ),
    Mutation(
        "heavy rows count as if they were drawn",
        "learners/steps.py",
        "on_device(weight * factors.astype(weight.dtype))",
        "on_device(weight)",
        "learners/test_weights.py::test_an_epoch_of_batches_adds_up_to_all_rows",
    ),
    Mutation(
        "variational: the divergence of q(u) leaves out its dimension",
        "variational/inducing.py",
        "0.5 * (squares - diagonal.size)",
        "0.5 * squares",
        "variational/test_variational.py::test_the_divergence_is_that_of_the_two_gaussians",
    ),
    Mutation(
        "variational: a natural-gradient step keeps all of what was",
        "variational/base.py",
        "(1 - gamma) * mine + gamma * theirs",
        "mine + gamma * theirs",
        "variational/test_variational.py::test_one_natural_step_over_all_rows_reaches_the_collapsed_bound",
    ),
    Mutation(
        "variational: functions of decoupled processes leave out the noise of their sites",
        "variational/decoupled.py",
        "jax.random.normal(key, shape, jnp.float32).astype(self.L.dtype)",
        "jnp.zeros(shape, self.L.dtype)",
        "objectives/test_decoupled.py::test_functions_of_spread_processes_have_their_mean_and_covariance",
    ),
    Mutation(
        "distributions: the parts of a mixture have one mean",
        "distributions/mixture.py",
        "(part.std**2 + (part.mean - mean) ** 2)",
        "part.std**2",
        "distributions/test_distributions.py::test_draws_have_the_mean_and_the_standard_deviation",
    ),
    Mutation(
        "distributions: a corrected density has no slope of the curve",
        "distributions/curves.py",
        " + self.curve.log_slope(*self.base._tails(y))",
        "",
        "distributions/test_distributions.py::test_density_is_the_derivative_of_the_distribution_function",
    ),
    Mutation(
        "distributions: the CRPS of Student's t is that of half its spread",
        "distributions/location_scale.py",
        "near - 2 * math.sqrt(nu)",
        "near - math.sqrt(nu)",
        "distributions/test_distributions.py::test_crps_is_its_integral",
    ),
    Mutation(
        "thompson: proposals come from all rows alike",
        "thompson/maximise.py",
        "p=chance / total)",
        "p=None)",
        "thompson/test_maximise.py::test_proposals_are_drawn_around_rows_in_proportion_to_what_they_are_better_by",
    ),
    Mutation(
        "thompson: a candidate may come twice in a batch",
        "thompson/sampler.py",
        "free[row] = False",
        "free[row] = True",
        "thompson/test_sampler.py::test_candidates_come_once_each_and_the_best_is_found",
    ),
    Mutation(
        "data: weights do not count in standard deviations",
        "data/standardise.py",
        "second += (w * d * d).sum(axis=0)",
        "second += (d * d).sum(axis=0)",
        "data/test_standardise.py::test_weights_are_repetitions",
    ),
    Mutation(
        "data: a division tears groups",
        "datasets/dataset.py",
        "if group is not None:",
        "if False:",
        "datasets/test_splits.py::test_groups_are_not_torn",
    ),
    Mutation(
        "storage: arrays of 64 bits come back with 32",
        "storage/codec.py",
        "with jax.enable_x64(True):  # otherwise 64-bit arrays lose half of their bits",
        "with jax.enable_x64(False):",
        "storage/test_files.py::test_nan_and_double_precision_keep_their_bits_outside_an_x64_context",
    ),
    Mutation(
        "storage: a checkpoint of another run is taken",
        "storage/checkpoint.py",
        'if metadata.get("fingerprint") != mark:',
        "if False:",
        "learners/test_fit_by_loss.py::test_a_checkpoint_of_another_run_is_refused",
    ),
    Mutation(
        "tanimoto: what rows have beyond the packed bits is not shared",
        "kernels/tanimoto.py",
        "bits.astype(left.dtype) + jnp.minimum(left[:, -1:], right[:, -1:].T)",
        "bits.astype(left.dtype)",
        "kernels/test_tanimoto.py::test_sets_and_counts_match_a_double_loop",
    ),
    Mutation(
        "tanimoto: shared counts are counted twice among all",
        "kernels/tanimoto.py",
        "columns.total[None, :] - shared",
        "columns.total[None, :]",
        "kernels/test_tanimoto.py::test_sets_and_counts_match_a_double_loop",
    ),
    Mutation(
        "hashing: further elements of a set are all the same one",
        "features/hashing.py",
        "bit, first + further)",
        "bit, first)",
        "features/test_hashing.py::test_features_have_the_kernel_on_average",
    ),
    Mutation(
        "hashing: the hash of counts is not that of consistent sampling",
        "features/hashing.py",
        "log_c - r * (t - u) - r",
        "log_c - r * (t - u)",
        "features/test_hashing.py::test_features_have_the_kernel_on_average",
    ),
    Mutation(
        "sharded: every device adds its own row for one of another's",
        "operators/sharded.py",
        "return jnp.where(mine.reshape(-1, *[1] * (leaf.ndim - 1)), found, jnp.zeros_like(found))",
        "return found",
        "operators/test_sharded.py::test_parts_of_the_operator_are_those_of_one_device",
    ),
    Mutation(
        "sharded: rows that only fill up a device count in products",
        "operators/sharded.py",
        "jnp.where(inside, KV, jnp.zeros_like(KV))",
        "KV",
        "operators/test_sharded.py::test_solves_go_the_same_way_as_on_one_device",
    ),
    Mutation(
        "BSGD's gradient is twice that of its batch",
        "learners/bsgd.py",
        "jnp.outer(a, a)) / (2 * B)",
        "jnp.outer(a, a)) / B",
        "learners/test_bsgd.py::test_on_all_rows_the_gradient_is_the_exact_one",
    ),
    Mutation(
        "BSGD scales the noise's gradient as the signal's",
        "learners/bsgd.py",
        "return leaf * factor if is_signal else leaf",
        "return leaf * factor",
        "learners/test_bsgd_kernels.py::test_the_signal_scale_is_for_variances_of_kernels_only",
    ),
    Mutation(
        "botorch: slopes are by standardised inputs",
        "estimators/joint_predictions.py",
        "by_own) / np.asarray(self._fitted.inputs.scale, np.float64)",
        "by_own)",
        "test_botorch_standin.py::test_slopes_of_means_and_covariances_are_differences",
    ),
    Mutation(
        "the losses of a chain's learners are not carried on",
        "learners/chain.py",
        "joins = i > 0 and taken == 0",
        "joins = False",
        "learners/test_full_batch_kernels.py::test_a_chain_ends_where_its_last_learner_ends",
    ),
    Mutation(
        "the fewest neighbours are taken whatever they lose",
        "posteriors/local.py",
        "if lost[n] <= most_lost:",
        "if True:",
        "estimators/test_local_choice.py::test_many_rows_take_the_fewest_that_lose_little_and_the_plan_brings_them_back",
    ),
    Mutation(
        "the iterative learner takes weighted rows for rows of less noise",
        "learners/iterative.py",
        "(count - 1) / (twice * noise)",
        "0 * (count - 1) / (twice * noise)",
        "learners/test_iterative.py::test_all_probes_together_give_the_exact_gradient",
    ),
    Mutation(
        "pathwise probes have partners that are not their solutions",
        "learners/probes.py",
        "        return solutions\n",
        "        return jnp.sign(solutions)\n",
        "learners/test_iterative.py::test_the_estimated_gradient_is_right_on_average",
    ),
    Mutation(
        "iVSGPR's mean keeps all of what was",
        "learners/ivsgpr.py",
        "b = (1 - gamma) * linear_part(gp) + gamma",
        "b = linear_part(gp) + gamma",
        "learners/test_decoupled.py::test_mirror_steps_are_the_natural_gradient_steps_of_svi",
    ),
    Mutation(
        "mirror steps keep all of the covariance that was",
        "learners/mirror.py",
        "jnp.sqrt(1 - gamma) * L.astype(wide)",
        "L.astype(wide)",
        "learners/test_decoupled.py::test_mirror_steps_are_the_natural_gradient_steps_of_svi",
    ),
    Mutation(
        "SVDGP takes a new row for one of the squared precision",
        "learners/svdgp.py",
        "jnp.sqrt(seen.precision[:, 0])",
        "seen.precision[:, 0]",
        "learners/test_decoupled.py::test_a_new_row_has_no_weight_in_the_mean_and_counts_once_in_the_covariance",
    ),
    Mutation(
        "growing learners' rates fall with the step and not with its root",
        "learners/growing.py",
        "self.slowing * jnp.sqrt(descent.step)",
        "self.slowing * descent.step",
        "learners/test_decoupled.py::test_the_rate_falls_with_the_root_of_the_step_as_in_the_paper",
    ),
    Mutation(
        "SVGP's natural gradient takes its batch for all rows",
        "learners/svgp.py",
        "sites(state.gp, batch, mean, variance, key), scale)",
        "sites(state.gp, batch, mean, variance, key), 1.0)",
        "variational/test_variational.py::test_steps_are_unbiased",
    ),
    Mutation(
        "SGPR ends with the q(u) of its start",
        "learners/sgpr.py",
        "naturals = loss.optima.get(at.x.tobytes(), state.naturals)",
        "naturals = state.naturals",
        "objectives/test_collapsed.py::test_sgpr_ends_where_the_bound_has_no_slope",
    ),
    Mutation(
        "a stream takes its first batch for all rows",
        "learners/stream.py",
        "n_rows = state.n_rows + jnp.asarray(len(batch.y), f)",
        "n_rows = jnp.asarray(len(batch.y), f)",
        "learners/test_stream.py",
    ),
    Mutation(
        "the gradient of full batches leaves out the prior",
        "learners/full_batch.py",
        "packed(by_theta) + self.pull * away",
        "packed(by_theta)",
        "learners/test_full_batch_kernels.py::test_a_prior_moves_the_optimum_as_it_must",
    ),
    Mutation(
        "standard errors are those of independent rows",
        "learners/standard_errors.py",
        "inverse @ spread @ inverse",
        "inverse",
        "learners/test_standard_errors.py::test_godambe_is_the_sandwich_and_the_inverse_information_where_both_agree",
    ),
    Mutation(
        "batches asked to be independent are not",
        "learners/sampling.py",
        "draw = independent_batches if self.replace else shuffled_batches",
        "draw = shuffled_batches",
        "learners/test_bsgd_kernels.py::test_uniform_batches",
    ),
    Mutation(
        "parts of left-out rows split groups",
        "learners/dispersion.py",
        "    if rows.group is None:\n        return generator",
        "    if True:\n        return generator",
        "learners/test_dispersion.py::test_parts_do_not_split_groups",
    ),
    Mutation(
        "metrics: the calibration error is that of steps' upper ends",
        "metrics.py",
        "(2 * np.arange(1, n + 1) - 1) / (2 * n)",
        "np.arange(1, n + 1) / n",
        "test_metrics.py::test_calibration_error_is_its_integral",
    ),
    Mutation(
        "networks: attention is not scaled",
        "networks/layers.py",
        " * (width // self.n_heads) ** -0.5",
        "",
        "networks/test_networks.py::test_attention_matches_numpy_loops",
    ),
    Mutation(
        "transforms: Yeo and Johnson's slope is even",
        "transforms/power.py",
        "xp.sign(y) * (self.power - 1)",
        "(self.power - 1)",
        "transforms/test_transforms.py::test_slopes_are_finite_differences",
    ),
    Mutation(
        "priors: inducing functions see waves at their full height",
        "priors.py",
        "gain = jnp.exp(0.5 * jnp.sum(c, axis=1)[:, None] - matmul(jnp.exp(2 * c) - 1, squares))",
        "gain = jnp.exp(0.5 * jnp.sum(c, axis=1)[:, None] - 0 * matmul(jnp.exp(2 * c) - 1, squares))",
        "objectives/test_decoupled.py::test_values_seen_by_spread_functions_have_their_covariance",
    ),
    Mutation(
        "planning: devices of one processor count as many",
        "planning/devices.py",
        'return self.processes if self.platform == "cpu" else self.count',
        "return self.count",
        "planning/test_devices.py::test_devices_of_one_processor_share_its_cores",
    ),
    Mutation(
        "models: the variance of features multiplies them unrooted",
        "models.py",
        "jnp.sqrt(value_of(self.variance, X.dtype)) * self.features(X)",
        "value_of(self.variance, X.dtype) * self.features(X)",
        "learners/test_bsgd.py::test_the_loss_is_the_nlml_of_the_batch",
    ),
    Mutation(
        "parameters: a lower bound is not added",
        "parameters.py",
        "return jnp.exp(self.raw) + self.lower",
        "return jnp.exp(self.raw)",
        "test_parameters.py",
    ),
    Mutation(
        "plots: errors of coverage are drawn half as wide",
        "plots.py",
        "axes.bar(at, 400 * error, bottom=-200 * error",
        "axes.bar(at, 200 * error, bottom=-100 * error",
        "test_plots.py::test_coverage_is_drawn_with_two_standard_errors_of_a_calibrated_forecast",
    ),
    Mutation(
        "command line: columns to be ignored are learned from",
        "cli/tables.py",
        "for name in wanted.inputs or names if name not in (wanted.ignore or ())]",
        "for name in wanted.inputs or names]",
        "cli/test_tables.py::test_inputs_and_ignore_leave_the_same_model",
    ),
    Mutation(
        "blocks of time cut rows of one time",
        "estimators/new_rows.py",
        "np.unique(first * n // len(position)",
        "np.unique(np.arange(len(position)) * n // len(position)",
        "estimators/test_new_rows.py::test_blocks_hold_equally_many_rows_in_order_and_rows_of_one_time_together",
    ),
    Mutation(
        "errors of neighbours in time share the noise of their neighbours",
        "estimators/new_rows.py",
        "errors(i + lag, 1)",
        "errors(i + lag, 0)",
        "estimators/test_new_rows.py::test_rows_without_dependence_are_judged_one_by_one",
    ),
    Mutation(
        "rows are predicted from their own block of time",
        "estimators/new_rows.py",
        "order[block % 2 == 1]",
        "order",
        "estimators/test_new_rows.py::test_no_row_is_predicted_from_its_own_block",
    ),
    Mutation(
        "blocks of time take the place of given groups",
        "estimators/inputs.py",
        "    if rows.group is None:\n        numbers",
        "    if True:\n        numbers",
        "estimators/test_new_rows.py::test_what_is_left_as_it_is",
    ),
    Mutation(
        "a row's neighbours of its own group scale local variances",
        "posteriors/local.py",
        "            if group is None:\n                return rows, index",
        "            if True:\n                return rows, index",
        "posteriors/test_local.py::test_calibration_leaves_groups_out",
    ),
    Mutation(
        "local prediction is calibrated without the groups of the fit",
        "estimators/kernel_posterior.py",
        'run.planned("neighbours"), data.rows.group',
        'run.planned("neighbours"), None',
        "estimators/test_local_choice.py::test_local_variances_are_scaled_by_rows_left_out_with_their_groups",
    ),
    Mutation(
        "beyond the range: networks see any input",
        "estimators/feature.py",
        'given["limits"] = data.inputs.transform(data.limits, self.dtype)',
        'given["limits"] = None',
        "features/test_beyond.py::test_far_from_the_rows_means_stay_and_standard_deviations_are_those_of_the_targets",
    ),
    Mutation(
        "beyond the range: inputs are bounded inside of it",
        "networks/embeddings.py",
        "nearest = jnp.minimum(jnp.maximum(x, low), high)",
        "nearest = jnp.minimum(jnp.maximum(x, 0.9 * low), 0.9 * high)",
        "features/test_build.py::test_a_network_by_name_is_bounded_by_the_limits_of_its_inputs",
    ),
    Mutation(
        "beyond the range: variances stay",
        "features/beyond.py",
        "self.fourier(X) - self.fourier(nearest)",
        "0 * self.fourier(X)",
        "features/test_beyond.py::test_features_are_zero_in_the_box_and_have_the_variances_of_a_difference_outside",
    ),
    Mutation(
        "beyond the range: slopes do not count",
        "features/beyond.py",
        "np.sqrt(variance / 2) / np.maximum(slopes, least)",
        "np.sqrt(variance) / np.maximum(slopes, least)",
        "features/test_beyond.py::test_slopes_at_the_edges_are_those_asked_for",
    ),
    Mutation(
        "beyond the range: that of a sample",
        "estimators/units.py",
        "        if self.everything is not None:\n            return self.everything.limits\n",
        "",
        "estimators/test_files.py::test_the_posterior_of_a_sample_is_of_all_rows",
    ),
    Mutation(
        "beyond the range: said at every call",
        "estimators/cautions.py",
        "return before == 0 < self.n_outside",
        "return self.n_outside > 0",
        "estimators/test_cautions.py::test_rows_outside_of_what_was_seen_are_said_once",
    ),
    Mutation(
        "beyond the range: rows merged were not seen",
        "estimators/feature.py",
        "self._fitted = self._fitted.with_inputs(np.stack([seen.low, seen.high]))",
        "pass",
        "estimators/test_streaming.py::test_merged_models_hold_the_rows_of_both",
    ),
    Mutation(
        "steps of several classes see the same points again and again",
        "objectives/elbo.py",
        "if key is not None:",
        "if False:",
        "variational/test_variational.py::test_steps_of_classes_are_by_fresh_draws_of_the_bound",
    ),
    Mutation(
        "points of several classes are not moved at random",
        "likelihoods/softmax.py",
        "mean.dtype) + shift, 1)",
        "mean.dtype) + 0 * shift, 1)",
        "likelihoods/test_contract.py::test_expectations_of_classes_by_points_are_unbiased_and_tell_their_error",
    ),
    Mutation(
        "the bridge forgets the scale of variances",
        "estimators/joint_predictions.py",
        "return np.sqrt(inflation.multiplier(rows)).reshape(Z.shape[:2])",
        "return np.ones(Z.shape[:2])",
        "estimators/test_joint_predictions.py::test_moments_are_those_of_predict",
    ),
    Mutation(
        "the bridge takes the logarithm of a rate for targets",
        "estimators/joint_predictions.py",
        "if fitted.observation.outward is not None:",
        "if fitted.observation.transform is not None:",
        "estimators/test_joint_predictions.py::test_what_has_no_gaussian_posterior_of_targets_is_refused_when_made",
    ),
    Mutation(
        "parts of functions and noise share a key",
        "estimators/fitted.py",
        "return DrawKeys(*jax.random.split(key))",
        "return DrawKeys(key, jax.random.fold_in(key, 1))",
        "estimators/test_kernel_functions.py::test_parts_of_functions_and_noise_are_drawn_from_keys_of_their_own",
    ),
    Mutation(
        "new fingerprints are packed by the bits of the first fit",
        "estimators/fingerprinted.py",
        "if beyond.any():",
        "if False:",
        "estimators/test_fingerprints.py::test_more_rows_have_the_exact_posterior_or_are_refused",
    ),
    Mutation(
        "candidates are packed by the counts of those observed",
        "thompson/sampler.py",
        "return points if self._packed is None else Fingerprints.pack(points, self._packed.levels)",
        "return points",
        "thompson/test_sampler.py::test_candidates_of_the_tanimoto_kernel_have_the_exact_posterior",
    ),
    Mutation(
        "the log slopes of files are those of the sample",
        "estimators/base.py",
        "slope_rows=data.passes.count",
        "slope_rows=float(data.weight.sum())",
        "estimators/test_files.py::test_the_posterior_of_a_sample_is_of_all_rows",
    ),
    Mutation(
        "noise of new rows is that of old ones",
        "posteriors/growing.py",
        "(*held.keys, key)",
        "(*held.keys, (*held.keys, key)[0])",
        "estimators/test_update.py::test_held_functions_stay_the_same_prior_draws_and_see_the_new_rows",
    ),
    Mutation(
        "a tolerance is lost by update",
        "estimators/updating.py",
        "    tolerance[0] = min(tolerance[0], posterior.tolerance)\n",
        "",
        "estimators/test_update.py::test_a_tolerance_below_that_of_new_solves_is_kept",
    ),
    Mutation(
        "a target of numbers with one bad cell is classes",
        "data/targets.py",
        "        if 0 < stray.sum() < (~column.missing).sum():",
        "        if False:",
        "cli/test_sparse.py::test_the_task_that_is_asked_for_is_done",
    ),
    Mutation(
        "the labels of later files are not counted",
        "cli/many_rows.py",
        "if len(levels) > data.MAX_LEVELS + 1:",
        "if False:",
        "cli/test_sparse.py::test_labels_are_counted_over_all_files",
    ),
    Mutation(
        "an archive is read before the limit applies",
        "data/files.py",
        "    with_columns = 2 * size\n",
        "    with_columns = 0\n",
        "data/test_files.py::test_an_archive_beyond_the_limit_is_refused_before_it_is_read",
    ),
    Mutation(
        "a small file of much content is read at once",
        "cli/many_rows.py",
        "NUMBERS * 8 * found.num_rows * found.num_columns",
        "0",
        "cli/test_many_rows.py::test_a_small_file_of_much_content_is_large",
    ),
    Mutation(
        "the digest of a file is not compared",
        "storage/files.py",
        """if header["format"] > 1 and""",
        "if False and",
        "storage/test_files.py::test_every_changed_byte_is_noticed",
    ),
    Mutation(
        "fields of a file may hold anything",
        "storage/codec.py",
        "    _check_fields(kind, name, values)\n",
        "",
        "storage/test_files.py::test_fields_hold_what_their_class_declares",
    ),
    Mutation(
        "arrays of a file are of any shape",
        "storage/codec.py",
        "return len(shape) == len(letters) and all(map(same, shape, letters))",
        "return len(shape) == len(letters)",
        "storage/test_files.py::test_fields_hold_what_their_class_declares",
    ),
    Mutation(
        "a model of NaN is loaded",
        "estimators/saving.py",
        """        _refuse_nan(path, part["fitted"])\n""",
        "        pass\n",
        "estimators/test_saving.py::test_a_file_that_holds_no_whole_model_says_so_when_it_is_loaded",
    ),
    Mutation(
        "rows of a block are numbered within the block",
        "cli/many_rows.py",
        "raise block.placed(data.TableError(str(error)",
        "raise block._replace(first_row=0).placed(data.TableError(str(error)",
        "cli/test_many_rows.py::test_a_fault_of_any_file_is_named_with_the_file_and_its_row",
    ),
    Mutation(
        "many counts are summed node by node",
        "distributions/counts.py",
        "(self.shape is None)\n",
        "False\n",
        "distributions/test_distributions.py::test_many_counts_are_summed_by_gamma_variables",
    ),
    Mutation(
        "the derivative by a transform leaves the density out",
        "objectives/warping.py",
        "np.asarray(of_z) @ np.asarray(jacobian) + others_slope",
        "others_slope",
        "estimators/test_warping.py::test_one_program_serves_every_transform",
    ),
    Mutation(
        "the CRPS of a mixture forgets the part below y in its own piece",
        "distributions/base.py",
        "found = bulk._integrals(low, y, squares)[0] + bulk",
        "found = 0.0 * y + bulk",
        "distributions/test_distributions.py::test_crps_is_its_integral",
    ),
    Mutation(
        "a corrected probability above one half takes the curve of those below",
        "distributions/curves.py",
        "np.where(low, self.a, self.b), np.where(low, self.b, self.a)",
        "self.a, self.b",
        "distributions/test_distributions.py::test_crps_is_its_integral",
    ),
    Mutation(
        "variances from samples do not use the prior's",
        "posteriors/base.py",
        "w_a, w_g = jnp.square(largest - v), jnp.square(v)",
        "w_a, w_g = jnp.ones_like(v), 0.0 * v",
        "posteriors/test_kernel.py::test_its_error_is_the_stated_one",
    ),
    Mutation(
        "ADASAP steps as if all eigenvalues were those of its sketch",
        "solvers/adasap.py",
        "largest = jnp.maximum(SAFE * norms[-1], 1.0)",
        "largest = 1.0",
        "solvers/test_adasap.py::test_a_step_is_the_published_one",
    ),
    Mutation(
        "ADASAP forgets what its sketch leaves of a block",
        "solvers/adasap.py",
        "(0.0 if exact else s[0])",
        "0.0",
        "solvers/test_adasap.py::test_a_step_is_the_published_one",
    ),
    Mutation(
        "a pool's linear member always learns its noise",
        "estimators/pooled_regressor.py",
        "nlpd[name] > min(nlpd.values()) + NEAR",
        "nlpd[name] > min(nlpd.values()) + 99",
        "estimators/test_pooled.py::test_a_linear_member_that_is_far_from_the_best_stays_gaussian",
    ),
    Mutation(
        "a pool corrects probabilities by rows of other times",
        "estimators/pooled_regressor.py",
        "if division.in_time:\n            return",
        "if False:\n            return",
        "estimators/test_pooled.py::test_probabilities_are_not_corrected_by_rows_of_other_times",
    ),
)


def run(tests: str, source: Path) -> tuple[int, str]:
    """(pytest's exit status, its last line) of these tests with the package in `source`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "timeout=0"]
    named = [str(ROOT / "tests" / test) for test in tests.split()]
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *named], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return 124, f"more than {SECONDS:.0f} s"
    return done.returncode, (done.stdout.strip().splitlines() or ["no output"])[-1]


def outcome_of(mutation: Mutation) -> str:
    """'killed', 'SURVIVED', or why it could not be tried: tests that do not end have noticed nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / "stochgp" / mutation.file
        before = path.read_text(encoding="utf-8")
        if before.count(mutation.text) != 1:
            return f"the text is there {before.count(mutation.text)} times"
        path.write_text(before.replace(mutation.text, mutation.replacement), encoding="utf-8")
        status, last = run(mutation.tests, source)
    if status > 1:  # pytest found no tests, could not begin or did not end
        return f"not tried: {last}"
    return "killed" if status == 1 else "SURVIVED"


def main(part: str, jobs: int) -> int:
    chosen = [mutation for mutation in MUTATIONS if part in mutation.name]
    named = list(dict.fromkeys(mutation.tests for mutation in chosen))
    with ThreadPoolExecutor(jobs) as pool:
        unmutated = dict(zip(named, pool.map(lambda tests: run(tests, ROOT / "src"), named), strict=True))
        for tests, (status, last) in unmutated.items():
            if status != 0:
                print(f"fails without a mutation: {tests}: {last}", flush=True)
        tried = [mutation for mutation in chosen if unmutated[mutation.tests][0] == 0]
        n_killed = 0
        for mutation, outcome in zip(tried, pool.map(outcome_of, tried), strict=True):
            n_killed += outcome == "killed"
            print(f"{outcome:<16} {mutation.file:<28} {mutation.name}", flush=True)
    print(f"{n_killed} of {len(chosen)} killed")
    return 0 if 0 < n_killed == len(chosen) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Do tests notice mutations of the source?")
    parser.add_argument("part", nargs="?", default="", help="only mutations whose name has this part")
    parser.add_argument("--jobs", type=int, default=1, help="mutations tried at once")
    sys.exit(main(**vars(parser.parse_args())))
