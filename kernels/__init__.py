"""Octavo's kernels: one op per file, its plain torch reference beside it (`<op>_ref.py`), native CPU ops in `cpu/`.

The import name is also that of an unrelated package on PyPI. `OCTAVO` tells them apart: a program that needs this one
checks `getattr(kernels, "OCTAVO", False)` at start. Importing the package imports no torch.
"""

OCTAVO = True
