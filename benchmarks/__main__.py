"""`python -m benchmarks [NAME]` lists the benchmarks, or runs one."""

import sys

from measuring.harness import main

NAMES = {
    "acquisition": "seconds and memory of qLogEI batches of 8, compared with BoTorch's exact GP",
    "arena": "raw tables: default estimators, boosting, forests and ridge regression",
    "classes": "classification: the default classifier, CatBoost and logistic regression",
    "demo": "the demo on flights, with ridge regression and boosting",
    "feature_steps": "time of a step of SCGD, MINIMAX and BSGD, compared with eager PyTorch",
    "files": "fits to files that are larger than memory, under a limit of 1 GB",
    "gpboost_fits": "the default kernel GP against GPBoost's Vecchia approximation on four UCI sets",
    "many_rows": "default kernel GPs with a million rows",
    "memory_limits": "peak memory of random fits and predictions under memory limits",
    "seconds": "first fits in new processes, compared with CatBoost, LightGBM and scikit-learn's GP",
    "solver_systems": "seconds of every solver to a residual of 1e-4, with little noise",
    "sparse": "steps of SVDGP with several numbers of functions; fits with SoftKI",
    "time_limits": "seconds of fits under time limits, including compilation",
    "updates": "updates of a kernel GP of 50,000 rows with 1,000 rows, compared with a fit",
}

if __name__ == "__main__":
    sys.exit(main("benchmarks", NAMES))
