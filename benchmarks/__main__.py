"""`python -m benchmarks [NAME]`: the list of benchmarks, or a run of one."""

import sys

from measuring.harness import main

NAMES = {
    "acquisition": "seconds and memory of a batch of 8 by qLogEI, beside BoTorch's exact GP",
    "arena": "raw tables: default estimators against boosting, forests and ridge regression",
    "classes": "tables of classes: the default classifier beside CatBoost and logistic regression",
    "demo": "the demonstration on flights, beside ridge regression and boosting",
    "feature_steps": "time of a step of SCGD, MINIMAX and BSGD against eager PyTorch",
    "files": "fits of files of more rows than memory, under a limit of 1 GB",
    "gpboost_fits": "the default kernel GP against GPBoost's Vecchia approximation on four UCI sets",
    "many_rows": "default kernel GPs of a million rows",
    "memory_limits": "peaks of random fits, predictions and functions under memory limits",
    "seconds": "first fits in fresh processes on one and two cores, beside CatBoost, LightGBM and scikit-learn's GP",
    "solver_systems": "seconds of every solver to a residual of 1e-4 of systems with hardly any noise",
    "sparse": "steps of SVDGP against its number of functions; fits by SoftKI",
    "time_limits": "seconds of fits under time limits, compilation included",
    "updates": "1,000 new rows for a kernel GP of 50,000, against a fit of all",
}

if __name__ == "__main__":
    sys.exit(main("benchmarks", NAMES))
