"""What `fit` and `predict` are given, as checked numbers in the units that the model sees, and what is said of it."""
