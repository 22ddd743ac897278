"""Shared numerics: precision of products, arrays, matrices, seeds, clusters and trees."""
