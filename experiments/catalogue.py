"""The experiments: name, the papers' number (an alias on the command line), and what each shows."""

from typing import NamedTuple


class Entry(NamedTuple):
    """`alias` is empty where an experiment is not one of the papers', two words where it is two of them."""

    name: str
    alias: str
    text: str


ENTRIES = (
    Entry("uci_linear", "x3", "linear deep kernel on six UCI sets against the published NLML"),
    Entry("uci_gaussian", "x4", "Gaussian deep kernel on six UCI sets against the published NLML"),
    Entry("robots", "x9 x10", "five methods on a robot's dynamics: SVDGP, SVI, iVSGPR, VSGPR, GPR"),
    Entry("posteriors", "x16", "posteriors with published hyperparameters: Cholesky, CG, SDD, auto"),
    Entry("molecules", "x18", "molecules by their fingerprints, against a random forest and XGBoost"),
    Entry("sggp_sets", "x21", "mini-batches of neighbours on the sgGP paper's benchmarks"),
    Entry("sggp_large", "x22", "mini-batches of neighbours on two million rows"),
    Entry("coverage", "", "do intervals hold with few rows, fitted means and new categories?"),
    Entry("kernel_defaults", "", "KernelGPRegressor() as it comes on six UCI sets"),
    Entry("pool_defaults", "", "GPRegressor() as it comes on six UCI sets, beside its members"),
    Entry(
        "sparse_defaults",
        "",
        "SparseGPRegressor() as it comes on six UCI sets, beside an RBF kernel and Gaussian noise",
    ),
    Entry("likelihoods", "", 'likelihood="auto" against "gaussian" and boosting'),
    Entry("defaults", "", "FeatureGPRegressor() as it comes on six UCI sets"),
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
