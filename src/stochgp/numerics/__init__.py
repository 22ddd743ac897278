"""Numerics that several rooms need: precision of products, threads, cosines, small matrices, dense factors, L-BFGS, seeds."""
