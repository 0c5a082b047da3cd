"""Command line and YAML file to `WorkerConfig`. The command line wins over the file, the file over the defaults."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from worker.config import (
    BACKENDS,
    DEVICES,
    DTYPES,
    KV_CACHE_DTYPES,
    LOAD_FORMATS,
    LOG_FORMATS,
    LOG_LEVELS,
    QUANTIZATIONS,
    ConfigError,
    WorkerConfig,
)
from worker.config_file import read_flags
from worker.sizes import parse_size

_SIZES = ("kv-cache-memory-bytes", "swap-space")


def parser() -> argparse.ArgumentParser:
    """Every flag with its unit and default. Defaults are suppressed here: `WorkerConfig` owns them."""
    parser = argparse.ArgumentParser(
        prog="python -m worker",
        description="Octavo's worker: a model and its KV cache, executing the scheduler's step plans over gRPC.",
        argument_default=argparse.SUPPRESS,
    )
    default = {field.name: field.default for field in fields(WorkerConfig)}

    def flag(name: str, meaning: str, **options: Any) -> None:
        value = default[name[2:].replace("-", "_")]
        shown = "none" if value is None else value
        parser.add_argument(name, help=f"{meaning} (default: {shown})", **options)

    parser.add_argument(
        "--config", metavar="FILE", help="YAML file; flags of these names under worker: (default: none)"
    )
    parser.add_argument("--model", help="model directory, .gguf file or Hub id (required)")
    flag("--revision", "branch, tag or commit of a Hub model", metavar="REV")
    flag("--host", "address to listen on", metavar="ADDRESS")
    flag("--port", "TCP port of the worker's API; 0 picks a free one", type=int, metavar="PORT")
    flag("--metrics-port", "TCP port of Prometheus metrics over HTTP; 0 picks a free one", type=int, metavar="PORT")
    flag(
        "--load-format",
        "auto reads the weights, safetensors or GGUF; dummy makes up random ones, to measure speed with",
        choices=LOAD_FORMATS,
    )
    flag("--dtype", "type of weights and KV cache; auto is the checkpoint's, float32 with --exact", choices=DTYPES)
    flag(
        "--quantization",
        "int8: the CPU keeps the weights of projections in 8 bits, one scale per output channel, made while loading",
        choices=QUANTIZATIONS,
    )
    flag("--block-size", "tokens per KV cache block", type=int, metavar="TOKENS")
    flag("--max-model-len", "tokens of a sequence at most; none: what the model allows", type=int, metavar="TOKENS")
    flag(
        "--kv-cache-dtype",
        "type of keys and values in the KV cache; auto is the weights', fp8_e4m3 takes half of bfloat16's room, with a "
        "scale per head measured at start",
        choices=KV_CACHE_DTYPES,
    )
    flag(
        "--gpu-memory-utilization",
        "fraction of a GPU's memory that the worker uses: for the weights, the largest step, which is profiled, and in "
        "what is left the KV cache; on a CPU, the KV cache's fraction of the host memory left after loading; none: "
        "0.9, on a CPU 0.5",
        type=float,
        metavar="FRACTION",
    )
    flag(
        "--max-num-batched-tokens",
        "tokens of a step at most, for which memory is kept; none: 8192 on a GPU, no limit on a CPU",
        type=int,
        metavar="TOKENS",
    )
    flag("--max-num-seqs", "the same for sequences; none: 256 on a GPU, no limit on a CPU", type=int, metavar="N")
    flag(
        "--kv-cache-memory-bytes",
        "size of the KV cache, in bytes or as in 4GiB, in place of a fraction",
        type=_size,
        metavar="SIZE",
    )
    flag("--num-gpu-blocks-override", "size of the KV cache in blocks, in place of both", type=int, metavar="BLOCKS")
    flag(
        "--swap-space",
        "host memory for KV cache blocks that are swapped out, in bytes or as in 4GiB; 0: no swapping; none: a quarter "
        "of the KV cache's size, at most a quarter of the host memory that it leaves",
        type=_size,
        metavar="SIZE",
    )
    flag(
        "--backend",
        "kernels; auto is cpu (native) on a CPU, and on a GPU triton, or torch where Triton is not installed",
        choices=BACKENDS,
    )
    flag("--device", "where tensors live; auto is cuda where there is a GPU, else cpu", choices=DEVICES)
    flag("--exact", "float32 on the CPU, results independent of what else is in a step", action="store_true")
    flag("--threads", "CPU threads of a step; none: as many as the process may use CPUs", type=int, metavar="N")
    flag("--log-level", "least level logged", choices=LOG_LEVELS)
    flag("--log-format", "auto is console on a terminal, else json", choices=LOG_FORMATS)
    return parser


def parse(arguments: Sequence[str]) -> WorkerConfig:
    """Raises ConfigError for a bad value or file; argparse itself exits on a malformed command line."""
    given = vars(parser().parse_args(arguments))
    path = given.pop("config", None)
    values = {**({} if path is None else _read_file(path)), **given}
    if "model" not in values:
        raise ConfigError("--model is required")
    return WorkerConfig(**values)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:  # argparse shows the message of its own exception only
        raise argparse.ArgumentTypeError(str(error)) from error


def _read_file(path: str) -> dict[str, Any]:
    """The file's values by field. Raises ConfigError."""
    types = {field.name.replace("_", "-"): str(field.type) for field in fields(WorkerConfig)}
    flags = read_flags(path, "worker", types)
    for flag in _SIZES:
        if isinstance(text := flags.get(flag), str):
            try:
                flags[flag] = parse_size(text)
            except ValueError as error:
                raise ConfigError(f"--config {path}: {flag} {error}") from error
    for flag, value in flags.items():
        if not _fits(value, types[flag]):
            raise ConfigError(f"--config {path}: {flag} must be {types[flag]}, is {value!r}")
    return {flag.replace("-", "_"): value for flag, value in flags.items()}


def _fits(value: object, type_name: str) -> bool:
    """Whether a value of the file is of a field's type. YAML's true and false are ints to Python, but not to us."""
    allowed = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "None": (type(None),)}
    kinds = tuple(kind for part in type_name.split(" | ") for kind in allowed[part])
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
