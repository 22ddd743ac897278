"""Speed and memory against rivals: `python -m benchmarks NAME [--json] [--quick]`."""
