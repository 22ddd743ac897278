"""The version of stochgp, and a list of versions for error reports."""

__version__ = "0.1.0"


def show_versions() -> None:
    """Print the versions of stochgp, Python, the system and dependencies for error reports."""
    import platform
    import sys
    from importlib.metadata import PackageNotFoundError, version

    lines = {"stochgp": __version__, "python": sys.version.split()[0], "system": platform.platform()}
    for name in (
        "jax",
        "jaxlib",
        "equinox",
        "optax",
        "numpy",
        "scipy",
        "scikit-learn",
        "pyarrow",
        "narwhals",
        "pandas",
    ):
        try:
            lines[name] = version(name)
        except PackageNotFoundError:
            lines[name] = "not installed"
    print("\n".join(f"{name:13} {value}" for name, value in lines.items()))
