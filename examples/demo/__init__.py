"""The demo on real data, with other methods for comparison: `python -m examples.demo`."""
