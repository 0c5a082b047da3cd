"""Command line and YAML file to `SchedulerConfig`. The command line wins over the file, the file over the defaults."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from scheduler.config import ConfigError, SchedulerConfig

_SECTION, _OTHER_SECTION = "scheduler", "worker"


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
        shown = "none" if value is None else value
        parser.add_argument(name, help=f"{meaning} (default: {shown})", **options)

    parser.add_argument("--config", metavar="FILE", help="YAML file with flags of these names (default: none)")
    parser.add_argument("--model", help="model directory, .gguf file or Hub id; tokenizer and chat template (required)")
    flag("--revision", "branch, tag or commit of a Hub model", metavar="REV")
    flag(
        "--served-model-name",
        "name that requests may give; none: the Hub id, or the last part of the path",
        metavar="NAME",
    )
    flag("--host", "address to listen on", metavar="ADDRESS")
    flag("--port", "TCP port of the public API; 0 picks a free one", type=int, metavar="PORT")
    flag("--worker", "address of the worker", metavar="HOST:PORT")
    flag("--max-model-len", "tokens of prompt plus output at most; none: what the model allows", type=int, metavar="N")
    flag("--max-num-seqs", "sequences that run at once", type=int, metavar="N")
    flag("--max-num-batched-tokens", "tokens computed per step, the token budget", type=int, metavar="N")
    flag("--max-plans-in-flight", "plans sent ahead of their results: 1 or 2", type=int, metavar="N")
    flag("--max-num-waiting", "sequences that wait, before more are refused", type=int, metavar="N")
    flag(
        "--scheduling-policy",
        "priority serves lower priorities first and preempts for them; fcfs looks at arrival alone",
        choices=["priority", "fcfs"],
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
        choices=["auto", "recompute", "swap"],
    )
    flag("--enable-prefix-caching", "share blocks of equal prefixes", action=argparse.BooleanOptionalAction)
    flag("--worker-grace", "seconds that requests wait for a lost worker", type=float, metavar="SECONDS")
    flag("--drain-grace", "seconds that running requests get after SIGTERM", type=float, metavar="SECONDS")
    flag("--record", "file to record the core's inputs to, for `octavo replay`; must not exist yet", metavar="FILE")
    flag("--log-level", "least level logged", choices=["debug", "info", "warning", "error"])
    flag("--log-format", "auto is console on a terminal, else json", choices=["auto", "json", "console"])
    return parser


def parse(arguments: Sequence[str]) -> SchedulerConfig:
    """Raises ConfigError for a bad value or file; argparse itself exits on a malformed command line."""
    given = vars(parser().parse_args(arguments))
    path = given.pop("config", None)
    values = {**(_read_file(path) if path else {}), **given}
    if "model" not in values:
        raise ConfigError("--model is required")
    return SchedulerConfig(**values)


def _read_file(path: str) -> dict[str, Any]:
    """Flags from the top level and from the section `scheduler:`; the section of the other service is not ours."""
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: must be a mapping of flags to values")
    if isinstance(content.get(_OTHER_SECTION), dict):
        del content[_OTHER_SECTION]
    section = content.pop(_SECTION, {})
    if not isinstance(section, dict):
        raise ConfigError(f"--config {path}: {_SECTION} must be a mapping of flags to values")
    values = {str(key).replace("-", "_"): value for key, value in {**content, **section}.items()}
    types = {field.name: field.type for field in fields(SchedulerConfig)}
    for name, value in values.items():
        if name not in types:
            raise ConfigError(f"--config {path}: unknown flag {name.replace('_', '-')}")
        if not _fits(value, str(types[name])):
            raise ConfigError(f"--config {path}: {name.replace('_', '-')} must be {types[name]}, is {value!r}")
    return values


def _fits(value: object, type_name: str) -> bool:
    allowed = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "None": (type(None),)}
    kinds = tuple(kind for part in type_name.split(" | ") for kind in allowed[part])
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
