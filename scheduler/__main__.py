"""`python -m scheduler`: flags, logging, event loop, exit codes.

Exit codes: 0 all requests ended; 1 something was lost or broke; 2 a flag or the model is wrong.
"""

from __future__ import annotations

import contextlib
import os
import sys

# gRPC's own logger would print its view of errors that are reported in one clear line below.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Python polls gRPC's completion queue with a thread of its own; without the event engine that thread also reads the
# sockets, where otherwise each message wakes one of several other threads first. Read when gRPC starts.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import uvloop

from scheduler import logs
from scheduler.config import ConfigError
from scheduler.flags import parse
from scheduler.frontend.errors import ModelLoadError
from scheduler.frontend.tokenizer import load_tokenizer
from scheduler.listen import ListenError
from scheduler.recording.errors import RecordingError
from scheduler.server import serve


def _wait_for_a_turn() -> None:
    """Makes the kernel let running threads finish their slice when this process wakes up, here and in its children.

    On a machine whose every core computes, a wake-up would otherwise stop a thread of the worker in mid-step, and the
    others at their next barrier; plans are on their way a step ahead and can wait. Its share of the processors stays.
    A policy other than the default is somebody's choice and stays as well.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> int:
    """Runs the service; expected failures are one line on standard error."""
    _wait_for_a_turn()
    try:
        config = parse(sys.argv[1:])
        logs.configure(config.log_level, config.log_format)
        tokenizer = load_tokenizer(config.model, config.revision)
        return uvloop.run(serve(config, tokenizer))
    except (ConfigError, ModelLoadError) as error:
        print(f"scheduler: {error}", file=sys.stderr)
        return 2
    except (ListenError, RecordingError) as error:
        print(f"scheduler: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
