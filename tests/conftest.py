"""What holds for every test: no network for model files, threads that wait without spinning, and Ctrl-C that reaches
the processes under test."""

from __future__ import annotations

import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"  # before any test module imports huggingface_hub, which reads it once
# As the worker sets it; read when torch is loaded, here and in the process that workers are forked from.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A shell's background job ignores SIGINT, and so would every child of it, the ones that are sent a SIGINT included.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import tests.triton_mode  # noqa: F401 - before any test module imports triton, as torch's compiler does
