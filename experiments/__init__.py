"""Experiments: results of papers that this package repeats, and its own evidence."""
