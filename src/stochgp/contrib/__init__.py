"""Adapters to other packages. Nothing else in the package imports them; each is imported by its own name."""
