"""Experiments: every table and figure of the papers that this package repeats, and its own evidence. Imported by nothing.

`catalogue` has the table of names, the papers' numbers and what each experiment shows; `python -m experiments` prints it.
"""
