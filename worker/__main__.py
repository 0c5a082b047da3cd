"""`python -m worker`: reads flags, loads the model, serves until SIGTERM or SIGINT.

Exit codes: 0 stopped by a signal, 1 the worker cannot run here (port, memory, a broken model) or ran out of memory,
2 it was asked for what does not exist (flags, an unknown model).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.config import WorkerConfig


def main() -> int:
    """Runs the command; returns the exit code, with one line on standard error if it is not 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # Before the imports, which take seconds: nothing is held yet that would have to be given back.
        signal.signal(number, lambda *_: os._exit(0))
    from worker.config import ConfigError
    from worker.flags import parse
    from worker.logs import configure_logs

    try:
        config = parse(sys.argv[1:])
    except ConfigError as error:
        return _fail(error, 2)
    configure_logs(config.log_level, config.log_format)
    # OpenMP threads spin after each region, by default for milliseconds in which they keep a core from the scheduler.
    # The runtime reads this when it is loaded, which is below.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # The thread that polls gRPC's completion queue then reads the sockets, too: fewer wake-ups beside the computation.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    return _run(config)


def _run(config: WorkerConfig) -> int:
    import uvloop

    from kernels.cpu.library import NativeLibraryError
    from worker.backend.select import BackendError
    from worker.config import ConfigError
    from worker.listen import ListenError
    from worker.loader.errors import ModelError, ModelNotFoundError
    from worker.memory import KVCacheMemoryError
    from worker.process import run_worker

    try:
        finished = uvloop.run(run_worker(config))
    except (ConfigError, BackendError, ModelNotFoundError) as error:
        return _fail(error, 2)
    except (ListenError, ModelError, NativeLibraryError, KVCacheMemoryError, MemoryError) as error:
        return _fail(error, 1)
    if not finished:
        # A model is still loading on the executor thread; the interpreter cannot end in good order under it.
        os._exit(0)
    return 0


def _fail(reason: Exception | str, code: int) -> int:
    print(f"worker: error: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
