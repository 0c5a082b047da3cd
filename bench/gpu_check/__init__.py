"""The check of a GPU: kernel tests, kernel benchmarks and a whole model, in under ten minutes. See `__main__`."""
