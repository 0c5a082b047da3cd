"""The worker's configuration, validated once."""

from __future__ import annotations

from dataclasses import dataclass


class ConfigError(Exception):
    """A flag has a value that cannot be; the message names the flag, the value and the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One field per flag of `python -m worker`, of the same name; see `worker.flags` for meanings and units."""

    model: str
    revision: str | None = None
    host: str = "127.0.0.1"
    port: int = 50052
    metrics_port: int | None = None
    load_format: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    block_size: int = 16
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    swap_space: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_cache_dtype: str = "auto"
    backend: str = "auto"
    device: str = "auto"
    exact: bool = False
    threads: int | None = None
    log_level: str = "info"
    log_format: str = "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("--model is required")
        self._one_of("load_format", LOAD_FORMATS)
        self._one_of("dtype", DTYPES)
        self._one_of("kv_cache_dtype", KV_CACHE_DTYPES)
        self._one_of("quantization", QUANTIZATIONS)
        self._one_of("backend", BACKENDS)
        self._one_of("device", DEVICES)
        self._one_of("log_level", LOG_LEVELS)
        self._one_of("log_format", LOG_FORMATS)
        for field in ("port", "metrics_port"):
            value = getattr(self, field)
            if value is not None and not 0 <= value <= 65535:
                raise ConfigError(f"{_flag(field)} must be in [0, 65535], is {value}")
        if self.gpu_memory_utilization is not None and not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(f"--gpu-memory-utilization must be in (0, 1], is {self.gpu_memory_utilization}")
        for field in _AT_LEAST_1:
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{_flag(field)} must be at least 1, is {value}")
        if self.swap_space is not None and self.swap_space < 0:
            raise ConfigError(f"--swap-space must be at least 0, is {self.swap_space}")
        if self.exact and self.dtype == "bfloat16":
            raise ConfigError("--exact computes in float32; --dtype must be auto or float32, is bfloat16")
        if self.exact and self.kv_cache_dtype != "auto":
            raise ConfigError(f"--exact computes in float32; --kv-cache-dtype must be auto, is {self.kv_cache_dtype}")
        if self.exact and self.device == "cuda":
            raise ConfigError("--exact is for CPUs; --device must be auto or cpu, is cuda")
        if self.exact and self.backend not in ("auto", "cpu"):
            raise ConfigError(f"--exact needs the native kernels; --backend must be auto or cpu, is {self.backend}")
        if self.exact and self.quantization != "none":
            raise ConfigError(
                f"--exact computes with the weights as they are; --quantization must be none, is {self.quantization}"
            )
        if self.quantization != "none" and self.backend not in ("auto", "cpu"):
            raise ConfigError(
                f"--quantization {self.quantization} needs the native kernels; --backend must be auto or cpu, "
                f"is {self.backend}"
            )
        if self.quantization != "none" and self.device == "cuda":
            raise ConfigError(f"--quantization {self.quantization} is for CPUs; --device must be auto or cpu, is cuda")
        if self.backend == "cpu" and self.device == "cuda":
            raise ConfigError("--backend cpu needs --device auto or cpu, is cuda")

    def _one_of(self, field: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, field)
        if value not in choices:
            raise ConfigError(f"{_flag(field)} must be one of {', '.join(choices)}, is {value!r}")


LOAD_FORMATS = ("auto", "dummy")
DTYPES = ("auto", "float32", "bfloat16")
QUANTIZATIONS = ("none", "int8")
KV_CACHE_DTYPES = ("auto", "fp8_e4m3")
BACKENDS = ("auto", "cpu", "triton", "torch")
DEVICES = ("auto", "cpu", "cuda")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "json", "console")
_AT_LEAST_1 = (
    "block_size",
    "max_model_len",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "max_num_batched_tokens",
    "max_num_seqs",
    "threads",
)


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")
