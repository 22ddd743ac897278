"""The experiments: name, the papers' number (an alias on the command line), and what each shows."""

from typing import NamedTuple


class Entry(NamedTuple):
    """`alias` is empty where an experiment is not one of the papers', two words where it is two of them."""

    name: str
    alias: str
    text: str


ENTRIES = (
    Entry("recovery_scgd", "x1", "recovery of two variances by SCGD"),
    Entry("exactness", "", "distance of every variant from the full-batch optimum against batch size"),
    Entry("minimax_penalty", "x2", "the sweep of MINIMAX's penalty"),
    Entry("uci_linear", "x3", "linear deep kernel on six UCI sets against the published NLML"),
    Entry("uci_gaussian", "x4", "Gaussian deep kernel on six UCI sets against the published NLML"),
    Entry("attention", "x5", "attention kernel: NLML against epochs and time"),
    Entry("attention_memory", "x6", "attention kernel: memory against batch size"),
    Entry("step_costs", "x7", "time of a step against N, M and B, with fitted exponents"),
    Entry("sinc", "x8", "a toy with few and many inducing functions, shared and decoupled"),
    Entry("robots", "x9 x10", "five methods on a robot's dynamics: SVDGP, SVI, iVSGPR, VSGPR, GPR"),
    Entry("sdd_objectives", "x11", "full-batch gradient descent on the primal and the dual objective"),
    Entry("sdd_estimators", "x12", "estimators of the dual gradient"),
    Entry("sdd_optimisers", "x13", "adaptive optimisers against momentum"),
    Entry("sdd_averages", "x14", "momentum and averages of iterates"),
    Entry("sdd_step_sizes", "x15", "step sizes and batch sizes of two estimators"),
    Entry("posteriors", "x16", "posteriors with published hyperparameters: Cholesky, CG, SDD, auto"),
    Entry("thompson", "x17", "Thompson sampling at equal seconds: SDD, SGD, CG, SVGP, random search"),
    Entry("molecules", "x18", "molecules by their fingerprints, against a random forest and XGBoost"),
    Entry("recovery_sggp", "x19", "recovery of two variances of a kernel GP by mini-batches"),
    Entry("sggp_convergence", "x20", "convergence of the full gradient under mini-batches of a kernel GP"),
    Entry("sggp_sets", "x21", "mini-batches of neighbours on the sgGP paper's benchmarks"),
    Entry("sggp_large", "x22", "mini-batches of neighbours on two million rows"),
    Entry("stability", "", "does default stochastic dual descent ever end diverged?"),
    Entry("iterative", "", "the iterative learner of kernel GPs against the full batch"),
    Entry("deep_kernel", "", "a deep kernel on bike, by mini-batches and a closing refit"),
    Entry("standard_errors", "", "do the standard errors of leave-one-out and Vecchia parameters hold?"),
    Entry("coverage", "", "do intervals hold with few rows, fitted means and new categories?"),
    Entry("streams", "", "adversarial streams: is a coverage below 80 % ever without a warning?"),
    Entry("neighbour_learners", "", "leave-one-out against sgGP, a subset and published hyperparameters"),
    Entry("scales", "", "one factor for all variances: by likelihood, leave-one-out, samples, left-out rows"),
    Entry(
        "deviations",
        "",
        "standard deviations from samples against exact ones, by near rows that they begin with",
    ),
    Entry("refinement", "", "global solves at the learned noise variance against a float64 factor"),
    Entry("fisher_or_adam", "", "passes and seconds of scoring steps and of Adam to one optimum"),
    Entry("neighbourhood_sizes", "", "how many neighbours, chosen how, for leave-one-out and Vecchia"),
    Entry("kernel_defaults", "", "KernelGPRegressor() as it comes on six UCI sets"),
    Entry("metrics", "", "KernelGPRegressor with lengthscales along the inputs, beside turned ones"),
    Entry("pool_defaults", "", "GPRegressor() as it comes on six UCI sets, beside its members"),
    Entry(
        "sparse_defaults",
        "",
        "SparseGPRegressor() as it comes on six UCI sets, beside an RBF kernel and Gaussian noise",
    ),
    Entry("laws", "", 'laws of observations: likelihood="auto" against "gaussian" and boosting'),
    Entry("warps", "", "targets transformed where held-out rows gain, and traps where none should be"),
    Entry("counts", "", "counts of bikes: negative binomial, Poisson and Gaussian noise"),
    Entry("land", "", "land or sea on the sphere beside nearest neighbours and boosting at equal time"),
    Entry("corners", "", "95 % intervals where rows have weights, groups, counts or heavy tails"),
    Entry("defaults", "", "FeatureGPRegressor() as it comes on six UCI sets"),
    Entry("shift", "", "the last fifth in time of tables with dates, beside a random fifth and CatBoost"),
)
NAMES = tuple(entry.name for entry in ENTRIES)
ALIASES = {alias: entry.name for entry in ENTRIES for alias in entry.alias.split()}


def listing() -> str:
    """A line for each experiment."""
    return "".join(f"{entry.name:17} {entry.alias:6} {entry.text}\n" for entry in ENTRIES)


def named(text: str) -> str:
    """The name, of a name or an alias in any case; `ValueError` with all of them where it is neither."""
    name = ALIASES.get(text.lower(), text.lower())
    if name not in NAMES:
        raise ValueError(f"no experiment is called {text!r}; there are {', '.join(NAMES)}")
    return name
