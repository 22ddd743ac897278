"""`python -m experiments [NAME]` lists the experiments, or runs one."""

import sys

from measuring.harness import main

NAMES = {
    "uci_linear": "X3: linear deep kernel on six UCI sets, compared with the published NLML",
    "uci_gaussian": "X4: Gaussian deep kernel on six UCI sets, compared with the published NLML",
    "robots": "X9, X10: five methods on a robot's dynamics: SVDGP, SVI, iVSGPR, VSGPR, GPR",
    "posteriors": "X16: posteriors with published hyperparameters: Cholesky, CG, SDD, auto",
    "molecules": "X18: fingerprints of molecules, compared with a random forest and XGBoost",
    "sggp_sets": "X21: mini-batches of neighbours on the benchmarks of the sgGP paper",
    "sggp_large": "X22: mini-batches of neighbours on two million rows",
    "coverage": "intervals with few rows, fitted means and new categories",
    "kernel_defaults": "KernelGPRegressor() on six UCI sets",
    "pool_defaults": "GPRegressor() on six UCI sets, compared with its members",
    "sparse_defaults": "SparseGPRegressor() on six UCI sets, also with an RBF kernel or Gaussian noise",
    "floors": "scores and CPU seconds of default fits, compared with an earlier commit",
    "stages": "default fits without one of their stages",
    "pools": "GPRegressor() compared with its best member, and bounds of its means, on 40 tables",
    "likelihoods": 'likelihood="auto", compared with "gaussian" and boosting',
    "defaults": "FeatureGPRegressor() on six UCI sets",
}

if __name__ == "__main__":
    sys.exit(main("experiments", NAMES))
