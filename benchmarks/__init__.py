"""Reproducible benchmarks: pairs measured side by side in one run, told as ratios (`nox -s bench`)."""
