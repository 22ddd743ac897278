"""The main job on real data, beside other methods: `python -m examples.demo`."""
