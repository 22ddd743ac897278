"""Networks: plain Equinox modules that map ONE row x [D] to z [P]; and embeddings of numeric inputs, to stand before them."""

from .embeddings import (
    Embedded,
    Periodic,
    PiecewiseLinear,
    SmoothClip,
    Within,
    periodic,
    piecewise_linear,
    smooth_clip,
    within,
)
from .layers import MLP, Activation, Attention, Dense, EncoderLayer, attention, mlp, relu

__all__ = [
    "MLP",
    "Activation",
    "Attention",
    "Dense",
    "Embedded",
    "EncoderLayer",
    "Periodic",
    "PiecewiseLinear",
    "SmoothClip",
    "Within",
    "attention",
    "mlp",
    "periodic",
    "piecewise_linear",
    "relu",
    "smooth_clip",
    "within",
]
