"""What holds for every test: no network for model files, and Ctrl-C that reaches the processes under test."""

from __future__ import annotations

import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"  # before any test module imports huggingface_hub, which reads it once

# A shell's background job ignores SIGINT, and so would every child of it, the ones that are sent a SIGINT included.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
