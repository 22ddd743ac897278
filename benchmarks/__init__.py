"""Speed and memory compared with other packages: `python -m benchmarks NAME`."""
