"""Likelihoods: how targets are observed."""

from .noise import AbstractNoise, ConstantNoise, constant_noise

__all__ = ["AbstractNoise", "ConstantNoise", "constant_noise"]
