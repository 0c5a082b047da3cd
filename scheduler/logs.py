"""Logging: JSON lines off a terminal, coloured lines on one, to standard error."""

from __future__ import annotations

import contextlib
import logging
import os
import sys

import structlog
from structlog.typing import EventDict, Processor


def _add_service(_: object, __: str, event: EventDict) -> EventDict:
    """Both services often log to one terminal."""
    event["service"] = "scheduler"
    return event


class _Output:
    """Lines to standard error. Those that it does not take are dropped: a full disk, or a reader that went away, must
    not end the service. Nothing is buffered, so that nothing is left to fail when the process ends."""

    def __init__(self) -> None:
        self._descriptor = sys.stderr.fileno() if sys.stderr else None  # None: the process began without one

    def msg(self, line: str) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, f"{line}\n".encode(errors="backslashreplace"))

    debug = info = warning = error = critical = msg


def configure(level: str, log_format: str) -> None:
    """level: debug, info, warning or error. log_format: json, console, or auto (console on a terminal, else json)."""
    terminal = bool(sys.stderr) and sys.stderr.isatty()
    console = log_format == "console" or (log_format == "auto" and terminal)
    rendering: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=terminal)]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_service,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: _Output(),
        cache_logger_on_first_use=True,
    )
