"""What scheduling a step costs, beside vLLM's v1 scheduler on the same load in the same run: `make bench-scheduler`."""
