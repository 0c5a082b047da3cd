"""How tests run Triton kernels: compiled where there is an NVIDIA GPU, interpreted on the CPU elsewhere.

Triton asks for its interpreter once, when its modules and kernels are imported, and for the whole process. torch's
compiler imports triton, so tests/conftest.py imports this module first of all, and it imports no torch. Child processes
are not concerned: the variable is gone again at once.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

INTERPRETED = not any(Path("/dev").glob("nvidia[0-9]*"))
DEVICE = "cpu" if INTERPRETED else "cuda"


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language  # its own functions are made for the interpreter or for the compiler here

    del os.environ["TRITON_INTERPRET"]
    vars(triton.knobs.runtime)["interpret"] = True  # and our kernels when they are imported
    _widen_bfloat16_in_dot()


def _widen_bfloat16_in_dot() -> None:
    """The interpreter keeps bfloat16 as bits in uint16, and its tl.dot multiplies those as integers."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return multiply(self, a, b, *rest)

    InterpreterBuilder.create_dot = create_dot


if INTERPRETED and find_spec("triton") is not None:
    _interpret()
