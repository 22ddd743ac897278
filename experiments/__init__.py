"""Experiments: tables of the papers that this package repeats, and its own evidence. Imported by nothing."""
