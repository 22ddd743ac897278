"""Shared code of experiments and benchmarks: harness, results, tables and pages."""
