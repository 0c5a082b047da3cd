"""`python -m scheduler`: flags, logging, event loop, exit codes.

Exit codes: 0 all requests ended; 1 something was lost or broke; 2 a flag or the model is wrong.
"""

from __future__ import annotations

import os
import sys

# gRPC's own logger would print its view of errors that are reported in one clear line below.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import uvloop

from scheduler import logs
from scheduler.config import ConfigError
from scheduler.flags import parse
from scheduler.frontend.errors import ModelLoadError
from scheduler.frontend.tokenizer import load_tokenizer
from scheduler.listen import ListenError
from scheduler.recording.errors import RecordingError
from scheduler.server import serve


def main() -> int:
    """Runs the service; expected failures are one line on standard error."""
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
