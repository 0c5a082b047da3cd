"""Logging of the worker process: structlog to standard error, JSON for machines and plain lines for people."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor


def _add_service(_: object, __: str, event: EventDict) -> EventDict:
    """Both services often log to one terminal."""
    event["service"] = "worker"
    return event


def configure_logs(level: str, log_format: str) -> None:
    """level: debug, info, warning or error. log_format: json, console, or auto (console on a terminal, else json)."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    rendering: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
