"""Numerics that several rooms need: precision of products, threads, cosines, small matrices, seeds."""
