"""Benchmarks. Speed is a ratio against a peer in the same run on the same machine, or it is not claimed."""
