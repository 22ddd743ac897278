"""The loop of learning: `fit`, which runs any learner; chains of runs; streams of rows."""

from .fit import fit
from .stream import Stream, begin_stream, feed

__all__ = ["Stream", "begin_stream", "feed", "fit"]
