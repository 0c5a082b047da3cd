"""Command line and YAML file to `SchedulerConfig`. The command line wins over the file, the file over the defaults."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from scheduler.config import (
    GENERATION_CONFIGS,
    LOG_FORMATS,
    LOG_LEVELS,
    PREEMPTION_MODES,
    SCHEDULING_POLICIES,
    ConfigError,
    SchedulerConfig,
)
from scheduler.config_file import read_flags
from scheduler.frontend.parsing.choice import REASONING_CHOICES, TOOL_CALL_CHOICES


def parser() -> argparse.ArgumentParser:
    """Every flag with its unit and default. Defaults are suppressed here: `SchedulerConfig` owns them."""
    parser = argparse.ArgumentParser(
        prog="python -m scheduler",
        description="Octavo's scheduler: the public gRPC API, the queues and the block tables.",
        argument_default=argparse.SUPPRESS,
    )
    default = {field.name: field.default for field in fields(SchedulerConfig)}

    def flag(name: str, meaning: str, **options: Any) -> None:
        value = default[name[2:].replace("-", "_")]
        shown = "none" if value is None else " ".join(value) if isinstance(value, tuple) else value
        parser.add_argument(name, help=f"{meaning} (default: {shown})", **options)

    parser.add_argument(
        "--config", metavar="FILE", help="YAML file; flags of these names under scheduler: (default: none)"
    )
    parser.add_argument("--model", help="model directory, .gguf file or Hub id; tokenizer and chat template (required)")
    flag("--revision", "branch, tag or commit of a Hub model", metavar="REV")
    flag(
        "--served-model-name",
        "name that requests may give; none: the Hub id, or the last part of the path",
        metavar="NAME",
    )
    flag("--host", "address to listen on", metavar="ADDRESS")
    flag("--port", "TCP port of the public API; 0 picks a free one", type=int, metavar="PORT")
    flag("--metrics-port", "TCP port of Prometheus metrics over HTTP; 0 picks a free one", type=int, metavar="PORT")
    flag(
        "--frontends",
        "processes that share the port and take tokenising and streaming off the engine's; 0: none, it does both",
        type=int,
        metavar="N",
    )
    flag(
        "--worker",
        "address of a worker; may be given several times. dns:///NAME:PORT, or a NAME:PORT with several addresses, "
        "stands for all of them, and is looked up again every 2 seconds",
        action="append",
        metavar="HOST:PORT",
    )
    flag("--max-model-len", "tokens of prompt plus output at most; none: what the model allows", type=int, metavar="N")
    flag("--max-num-seqs", "sequences that run at once", type=int, metavar="N")
    flag("--max-num-batched-tokens", "tokens computed per step, the token budget", type=int, metavar="N")
    flag(
        "--max-plans-in-flight",
        "plans sent ahead of their results: 1, 2 or 4; with 4, short decode steps go in pairs",
        type=int,
        metavar="N",
    )
    flag("--max-num-waiting", "sequences that wait for a worker, before more are refused", type=int, metavar="N")
    flag("--max-num-waiting-tokens", "prompt tokens that wait, before more are refused", type=int, metavar="N")
    flag(
        "--scheduling-policy",
        "priority serves lower priorities first and preempts for them; fcfs looks at arrival alone",
        choices=SCHEDULING_POLICIES,
    )
    flag(
        "--max-overtakes",
        "how often a sequence that waits for blocks may be passed by others that fit",
        type=int,
        metavar="N",
    )
    flag(
        "--preemption-mode",
        "auto takes what costs less time; swap copies to the worker's host memory while it has room; recompute never",
        choices=PREEMPTION_MODES,
    )
    flag("--enable-prefix-caching", "share blocks of equal prefixes", action=argparse.BooleanOptionalAction)
    flag("--worker-grace", "seconds that requests wait for a lost worker", type=float, metavar="SECONDS")
    flag(
        "--step-timeout",
        "seconds that a step may take, besides --step-timeout-per-token, before its worker counts as hung; the first "
        "step of a session may take 4 times as long, loading and warm-up are not timed",
        type=float,
        metavar="SECONDS",
    )
    flag("--step-timeout-per-token", "seconds more for each token of the step", type=float, metavar="SECONDS")
    flag("--drain-grace", "seconds that running requests get after SIGTERM", type=float, metavar="SECONDS")
    flag(
        "--generation-config",
        "sampling fields that requests leave open: auto: as the model's generation_config says; none: temperature 1 "
        "and nothing else, whatever it says",
        choices=GENERATION_CONFIGS,
    )
    flag(
        "--tool-call-parser",
        "how tool calls are found in the output of chats with tools, for requests that do not say",
        choices=TOOL_CALL_CHOICES,
    )
    flag(
        "--reasoning-parser",
        "how reasoning is found in the output of chats, for requests that do not say",
        choices=REASONING_CHOICES,
    )
    flag("--record", "file to record the core's inputs to, for `octavo replay`; must not exist yet", metavar="FILE")
    flag("--log-level", "least level logged", choices=LOG_LEVELS)
    flag("--log-format", "auto is console on a terminal, else json", choices=LOG_FORMATS)
    flag(
        "--log-prompts",
        "log the prompt of each request, which is left out otherwise",
        action="store_true",
    )
    return parser


def parse(arguments: Sequence[str]) -> SchedulerConfig:
    """Raises ConfigError for a bad value or file; argparse itself exits on a malformed command line."""
    given = vars(parser().parse_args(arguments))
    path = given.pop("config", None)
    values = {**({} if path is None else _read_file(path)), **given}
    if "model" not in values:
        raise ConfigError("--model is required")
    if "worker" in values:
        values["worker"] = tuple(values["worker"])
    return SchedulerConfig(**values)


def _read_file(path: str) -> dict[str, Any]:
    """The file's values by field. Raises ConfigError."""
    types = {field.name.replace("_", "-"): str(field.type) for field in fields(SchedulerConfig)}
    flags = read_flags(path, "scheduler", types)
    if isinstance(flags.get("worker"), str):
        flags["worker"] = [flags["worker"]]
    for flag, value in flags.items():
        if not _fits(value, types[flag]):
            raise ConfigError(
                f"--config {path}: {flag} must be {_TYPE_NAMES.get(types[flag], types[flag])}, is {value!r}"
            )
    return {flag.replace("-", "_"): value for flag, value in flags.items()}


_TYPE_NAMES = {"tuple[str, ...]": "a str or a list of them"}


def _fits(value: object, type_name: str) -> bool:
    """Whether a value of the file is of a field's type. YAML's true and false are ints to Python, but not to us."""
    if type_name == "tuple[str, ...]":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    allowed = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "None": (type(None),)}
    kinds = tuple(kind for part in type_name.split(" | ") for kind in allowed[part])
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
