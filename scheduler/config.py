"""The scheduler's configuration, validated once."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.frontend.parsing.choice import NONE, REASONING_CHOICES, TOOL_CALL_CHOICES


class ConfigError(Exception):
    """A flag has a value that cannot be; the message names the flag, the value and the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """One field per flag of `python -m scheduler`, of the same name; see `scheduler.flags` for meanings and units."""

    model: str
    revision: str | None = None
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 50051
    metrics_port: int | None = None
    frontends: int = 0
    worker: tuple[str, ...] = ("127.0.0.1:50052",)
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_plans_in_flight: int = 4
    max_num_waiting: int = 4096
    max_num_waiting_tokens: int = 4_000_000
    max_overtakes: int = 8
    scheduling_policy: str = "priority"
    preemption_mode: str = "auto"
    enable_prefix_caching: bool = True
    worker_grace: float = 60.0
    step_timeout: float = 10.0
    step_timeout_per_token: float = 0.2
    drain_grace: float = 30.0
    generation_config: str = "auto"
    tool_call_parser: str = NONE
    reasoning_parser: str = NONE
    record: str | None = None
    log_level: str = "info"
    log_format: str = "auto"
    log_prompts: bool = False

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("--model is required")
        self._at_least("max_num_seqs", 1)
        self._at_least("frontends", 0)
        self._at_least("max_num_waiting", 1)
        self._at_least("max_num_waiting_tokens", 1)
        self._at_least("max_overtakes", 0)
        self._one_of("scheduling_policy", SCHEDULING_POLICIES)
        self._one_of("preemption_mode", PREEMPTION_MODES)
        self._one_of("generation_config", GENERATION_CONFIGS)
        self._one_of("tool_call_parser", TOOL_CALL_CHOICES)
        self._one_of("reasoning_parser", REASONING_CHOICES)
        self._one_of("log_level", LOG_LEVELS)
        self._one_of("log_format", LOG_FORMATS)
        self._at_least("max_num_batched_tokens", self.max_num_seqs, "--max-num-seqs")
        self._seconds("worker_grace")
        self._seconds("drain_grace")
        self._seconds("step_timeout", above=0.0)
        self._seconds("step_timeout_per_token")
        if not self.worker or not all(self.worker):
            raise ConfigError("--worker must be HOST:PORT, is empty")
        for target in self.worker:
            if ":" not in target:
                raise ConfigError(f"--worker must be HOST:PORT, is {target!r}, without a port")
        if self.max_model_len is not None:
            self._at_least("max_model_len", 2)
        if self.max_plans_in_flight not in (1, 2, 4):
            raise ConfigError(f"--max-plans-in-flight must be 1, 2 or 4, is {self.max_plans_in_flight}")
        self._port("port")
        self._port("metrics_port")

    def _port(self, field: str) -> None:
        value = getattr(self, field)
        if value is not None and not 0 <= value <= 65535:
            raise ConfigError(f"{_flag(field)} must be in [0, 65535], is {value}")

    def _one_of(self, field: str, values: tuple[str, ...]) -> None:
        if getattr(self, field) not in values:
            raise ConfigError(f"{_flag(field)} must be one of {', '.join(values)}, is {getattr(self, field)!r}")

    def _at_least(self, field: str, limit: float, why: str = "") -> None:
        value = getattr(self, field)
        if not value >= limit:
            raise ConfigError(f"{_flag(field)} must be at least {limit}{f' ({why})' if why else ''}, is {value}")

    def _seconds(self, field: str, *, above: float | None = None) -> None:
        value = getattr(self, field)
        if not 0 <= value <= MAX_SECONDS or value == above:
            interval = f"[0, {MAX_SECONDS}]" if above is None else f"({above:g}, {MAX_SECONDS}]"
            raise ConfigError(f"{_flag(field)} must be in {interval} seconds, is {value}")


GENERATION_CONFIGS = ("auto", "none")
SCHEDULING_POLICIES = ("priority", "fcfs")
PREEMPTION_MODES = ("auto", "recompute", "swap")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "json", "console")
# A year. Times are nanoseconds in 64 bits further on, and nobody waits longer.
MAX_SECONDS = 365 * 24 * 3600


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")
