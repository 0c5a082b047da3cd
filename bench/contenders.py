"""Who takes part: one script each, in an environment of its own, all speaking the protocol of `measure`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.prepare import Model
from bench.workload import THREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How to start a contender.

    python: of its environment, or None for our own. workloads: what it runs; empty: all. by_default: takes part unless
    others are named.
    """

    name: str
    module: str
    model: Path
    arguments: tuple[str, ...] = ()
    python: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workloads: tuple[str, ...] = ()
    by_default: bool = True

    @property
    def installed(self) -> bool:
        return self.python is None or self.python.exists()

    @property
    def command(self) -> list[str]:
        return [str(self.python or sys.executable), "-m", self.module, str(self.model), *self.arguments]


OCTAVO, OCTAVO_STREAMED, WORKER_ALONE = "octavo", "octavo-streamed", "worker-alone"
_VLLM_ENV = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # What its documentation advises for speed.
    "LD_PRELOAD": str(Path(".venv-vllm/lib/libiomp5.so").resolve()),
    "OMP_NUM_THREADS": str(THREADS),
    # Its own cache of compiled code does not load in 0.32; inductor's does.
    "VLLM_USE_AOT_COMPILE": "0",
    "TORCHINDUCTOR_CACHE_DIR": str(Path(".run/bench/inductor").resolve()),
}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def ours(model: Model) -> list[Spec]:
    """Octavo through gRPC, with whole answers and token by token, and its worker alone."""
    # What docs/operating.md advises for Python clients, and the services set for themselves.
    env = _OFFLINE | {"GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener"}
    return [
        Spec(name=OCTAVO, module="bench.octavo", model=model.directory, env=env),
        Spec(
            name=OCTAVO_STREAMED,
            module="bench.octavo",
            model=model.directory,
            arguments=("--streamed",),
            env=env,
            workloads=("W1", "W4@8", "W4@16", "W4@32"),
        ),
        # The worker's __main__ sets the same for the worker that Octavo starts.
        Spec(
            name=WORKER_ALONE,
            module="bench.worker_alone",
            model=model.directory,
            env=_OFFLINE | {"GOMP_SPINCOUNT": "1000"},
            workloads=("W1", "W2", "W4@8", "W4@16", "W4@32"),
        ),
    ]


def peers(model: Model) -> list[Spec]:
    """All that are known, installed or not."""
    return [
        Spec(
            name="vllm",
            module="bench.peer_vllm",
            model=model.directory,
            python=_venv("vllm"),
            env=_OFFLINE | _VLLM_ENV,
        ),
        Spec(
            name="openvino",
            module="bench.peer_openvino",
            model=model.directory,
            python=_venv("openvino"),
            env=_OFFLINE,
        ),
        Spec(
            name="llamacpp",
            module="bench.peer_llamacpp",
            model=model.gguf,
            python=_venv("llamacpp"),
            workloads=("W2", "W4@8", "W5"),
        ),
        Spec(
            name="transformers",
            module="bench.peer_transformers",
            model=model.directory,
            env=_OFFLINE,
            workloads=("W2", "W4@8", "W4@16"),
        ),
        Spec(
            name="transformers-continuous",
            module="bench.peer_transformers",
            model=model.directory,
            arguments=("--continuous",),
            env=_OFFLINE,
            by_default=False,
        ),
    ]


def _venv(name: str) -> Path:
    return Path(f".venv-{name}/bin/python")
