"""Matrices of kernels in tests, each computed by one program: sooner than one program for each operation."""

import equinox as eqx

matrix = eqx.filter_jit(lambda kernel, X, Z: kernel.matrix(X, Z))
