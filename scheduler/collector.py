"""When Python looks for garbage in reference cycles: seldom."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG_OBJECTS: Final = 20_000


def collect_seldom() -> None:
    """Call it once all is loaded. What is there by then is never looked at again, and of what comes later only when it
    has grown by _YOUNG_OBJECTS.

    A step's columns hold thousands of numbers. By default they are looked through every ten steps or so, which costs up
    to a fifth of what a step with prompts and ends does. And there is little to find: the core makes no cycles at all,
    and what gRPC leaves of a request is five small objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 10, 10)
