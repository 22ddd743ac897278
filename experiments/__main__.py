"""`python -m experiments [NAME]`: the list of experiments, or a run of one."""

import sys

from measuring.harness import main

NAMES = {
    "uci_linear": "X3: linear deep kernel on six UCI sets against the published NLML",
    "uci_gaussian": "X4: Gaussian deep kernel on six UCI sets against the published NLML",
    "robots": "X9, X10: five methods on a robot's dynamics: SVDGP, SVI, iVSGPR, VSGPR, GPR",
    "posteriors": "X16: posteriors with published hyperparameters: Cholesky, CG, SDD, auto",
    "molecules": "X18: molecules by their fingerprints, against a random forest and XGBoost",
    "sggp_sets": "X21: mini-batches of neighbours on the sgGP paper's benchmarks",
    "sggp_large": "X22: mini-batches of neighbours on two million rows",
    "coverage": "intervals with few rows, fitted means and new categories",
    "kernel_defaults": "KernelGPRegressor() on six UCI sets",
    "pool_defaults": "GPRegressor() on six UCI sets, beside its members",
    "sparse_defaults": "SparseGPRegressor() on six UCI sets, beside an RBF kernel and Gaussian noise",
    "floors": "scores and CPU seconds of defaults on tables and UCI sets, against an earlier commit",
    "stages": "default fits with one stage switched off",
    "pools": "GPRegressor() against its best member, and the bounds of its means, on 40 tables",
    "likelihoods": 'likelihood="auto" against "gaussian" and boosting',
    "defaults": "FeatureGPRegressor() on six UCI sets",
}

if __name__ == "__main__":
    sys.exit(main("experiments", NAMES))
