"""What experiments and benchmarks share: lines of results, machine, timing, sets; and the page of what was measured. Imports neither."""
