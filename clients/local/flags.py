"""Which flag of `octavo serve` goes to which service.

The services own their flags: values go through as they are, and a bad one is refused by the service that reads it. What
is missing here is unknown to `octavo serve`; a test compares these tables with both services' --help.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag that goes through. metavar: None for a switch."""

    name: str
    metavar: str | None
    help: str


def _flag(name: str, metavar: str | None, text: str) -> Flag:
    return Flag(name=name, metavar=metavar, help=text)


SHARED = (
    _flag("--revision", "REV", "branch, tag or commit of a model on the Hub"),
    _flag("--max-model-len", "TOKENS", "most tokens of prompt plus output"),
    _flag("--max-num-seqs", "N", "most sequences that run at a time"),
    _flag("--max-num-batched-tokens", "TOKENS", "token budget of a step"),
    _flag("--log-level", "LEVEL", "least severe level that is logged"),
    _flag("--log-format", "FORMAT", "how log lines look"),
    _flag("--config", "FILE", "YAML file with flags"),
)
SCHEDULER = (
    _flag("--enable-prefix-caching", None, "reuse the blocks of equal prompt beginnings"),
    _flag("--no-enable-prefix-caching", None, "do not"),
    _flag("--max-num-waiting", "N", "sequences that wait, before more are refused"),
    _flag("--frontends", "N", "processes that tokenise and stream"),
    _flag("--max-num-waiting-tokens", "N", "prompt tokens that wait, before more are refused"),
    _flag("--max-plans-in-flight", "N", "plans sent before a result is back"),
    _flag("--scheduling-policy", "POLICY", "order of service"),
    _flag("--max-overtakes", "N", "how often others may pass a sequence that waits for blocks"),
    _flag("--preemption-mode", "MODE", "what becomes of the blocks of a preempted sequence"),
    _flag("--tool-call-parser", "NAME", "how tool calls are found in the output"),
    _flag("--reasoning-parser", "NAME", "how reasoning is found in the output"),
    _flag("--generation-config", "auto | none", "sampling defaults: the model's, or none"),
    _flag("--record", "FILE", "record the scheduler's inputs, for octavo replay"),
    _flag("--worker-grace", "SECONDS", "how long requests wait for a lost worker"),
    _flag("--step-timeout", "SECONDS", "how long a step may take before its worker counts as hung"),
    _flag("--step-timeout-per-token", "SECONDS", "how much longer for each token of the step"),
    _flag("--drain-grace", "SECONDS", "how long running requests may take at shutdown"),
    _flag("--log-prompts", None, "log the prompt of each request"),
    _flag("--served-model-name", "NAME", "name of the model in requests and answers"),
)
WORKER = (
    _flag("--load-format", "FORMAT", "where the weights come from"),
    _flag("--dtype", "TYPE", "type of weights and KV cache"),
    _flag("--quantization", "KIND", "how the weights of projections are kept"),
    _flag("--kv-cache-dtype", "TYPE", "type of keys and values in the KV cache"),
    _flag("--block-size", "TOKENS", "tokens per KV cache block"),
    _flag("--gpu-memory-utilization", "FRACTION", "share of the device's memory that may be used"),
    _flag("--kv-cache-memory-bytes", "BYTES", "size of the KV cache"),
    _flag("--num-gpu-blocks-override", "BLOCKS", "number of KV cache blocks"),
    _flag("--swap-space", "BYTES", "host memory for swapped KV cache blocks"),
    _flag("--backend", "NAME", "implementation of the kernels"),
    _flag("--device", "DEVICE", "device that computes"),
    _flag("--exact", None, "one reduction order for every batch size"),
    _flag("--threads", "N", "CPU threads that compute"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare all of them, in one group per destination."""
    groups = (
        ("flags of both services", "", SHARED),
        ("flags of the scheduler", "units and defaults: python -m scheduler --help", SCHEDULER),
        ("flags of the worker", "units and defaults: python -m worker --help", WORKER),
    )
    for title, description, flags in groups:
        group = parser.add_argument_group(title, description)
        for flag in flags:
            if flag.metavar is None:
                group.add_argument(flag.name, action="store_true", help=flag.help)
            else:
                group.add_argument(flag.name, metavar=flag.metavar, help=flag.help)


def forwarded(args: argparse.Namespace, flags: Sequence[Flag]) -> list[str]:
    """The given ones among `flags`, as they are handed on."""
    given: list[str] = []
    for flag in flags:
        value = getattr(args, flag.name[2:].replace("-", "_"))
        if flag.metavar is None:
            given += [flag.name] if value else []
        elif value is not None:
            given.append(f"{flag.name}={value}")
    return given
