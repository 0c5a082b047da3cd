"""`octavo serve`: a scheduler and a worker on this machine, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from clients.commands import options
from clients.local import flags, preflight
from clients.local.address import LOOPBACK, Address
from clients.local.config_file import read_listen_flags
from clients.local.errors import LocalError
from clients.local.notices import notice
from clients.local.services import Services, ServicesConfig
from clients.local.signals import StopSignals

_INTERRUPTED = 130
_DEFAULT_PORTS = {"scheduler": options.DEFAULT_PORT, "worker": 0}


def add_parser(commands: options.Commands) -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "serve",
        help="serve a model on this machine",
        description="Start a scheduler and a worker as processes of their own and serve until Ctrl-C or SIGTERM, which "
        "lets running requests end; a second one ends everything at once. A worker that dies or hangs is started again "
        "while the scheduler keeps its requests. Exits with 0 if no request was lost, with 1 if one was or a service "
        "cannot go on, with 130 if it is stopped before it serves, and with 128 and the signal's number if a second "
        "signal ends it.",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="directory, FILE.gguf, or id on the Hugging Face Hub; or in the --config file"
    )
    parser.add_argument("--host", metavar="ADDRESS", help=f"address to listen on (default: {LOOPBACK})")
    parser.add_argument(
        "--port", type=int, help=f"port of the public API; 0 picks a free one (default: {options.DEFAULT_PORT})"
    )
    parser.add_argument("--worker-port", type=int, metavar="PORT", help="port of the worker (default: a free one)")
    for name, service in (("--metrics-port", "scheduler"), ("--worker-metrics-port", "worker")):
        text = f"port of the {service}'s Prometheus metrics (default: none)"
        parser.add_argument(name, type=int, metavar="PORT", help=text)
    flags.add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    preflight.check_torch()
    shared = flags.forwarded(args, flags.SHARED)
    if args.model is not None:
        shared.append(f"--model={args.model}")
    elif args.config is None:
        raise LocalError("--model is missing; give a directory, a FILE.gguf or a Hub id")
    config = ServicesConfig(
        scheduler=_address(args.config, "scheduler", host=args.host, port=args.port),
        worker=_address(args.config, "worker", port=args.worker_port),
        scheduler_arguments=(
            *shared,
            *flags.forwarded(args, flags.SCHEDULER),
            *_metrics_port(args.metrics_port),
        ),
        worker_arguments=(
            *shared,
            *flags.forwarded(args, flags.WORKER),
            *_metrics_port(args.worker_metrics_port),
        ),
    )
    return asyncio.run(_serve(config))


def _metrics_port(port: int | None) -> list[str]:
    return [] if port is None else [f"--metrics-port={port}"]


def _address(config: str | None, service: str, **given: Any) -> Address:
    """Where a service will listen. As in the services, the command line wins over the file, the file over the default.

    The service is told the outcome, so that what was checked here and what is shown is what it does.
    """
    default: dict[str, Any] = {"host": LOOPBACK, "port": _DEFAULT_PORTS[service]}
    in_file = {} if config is None else read_listen_flags(config, service)
    values = default | in_file | {flag: value for flag, value in given.items() if value is not None}
    return preflight.free_address(**values)


async def _serve(config: ServicesConfig) -> int:
    async with Services(config) as services:
        signals = StopSignals(on_second=services.stop_now)
        info = await signals.unless_stopped(services.start())
        if info is None:
            return _INTERRUPTED
        print(f"Octavo serves {info.served_model_name} on {config.scheduler}", flush=True)
        await signals.unless_stopped(services.wait())
        notice("draining; a second signal ends everything at once")
        status = await services.drain()
    if signals.killed_by:
        return 128 + signals.killed_by
    return 0 if status == 0 else 1
