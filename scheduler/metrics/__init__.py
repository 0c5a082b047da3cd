"""Prometheus metrics: what is counted, under which names, and the HTTP port that serves them."""
