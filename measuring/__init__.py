"""What experiments and benchmarks share: the harness that runs cells, lines of results, machine, tables; the pages of what was measured."""
