"""What is measured: the shapes of Llama-3-8B on a GPU, and tiny ones that run every line on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A Llama; sizes as in its config.json."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """streams: sequences at once. context: tokens of each in the decode benchmark. prefill: tokens of the prompt in the
    prefill benchmark. rows: tokens in the benchmarks of elementwise ops. prompt, output: tokens of each request of the
    whole model. budget: tokens per step. copy_bytes, matmul: of the two ceilings. repeats: timings per median."""

    dtype: str
    model: Model
    block_size: int
    streams: tuple[int, ...]
    context: int
    prefill: int
    rows: int
    prompt: int
    output: int
    budget: int
    copy_bytes: int
    matmul: int
    repeats: int

    def requests(self, streams: int) -> str:
        """The name of a workload of the whole model: the same in every part that runs it."""
        return f"{streams} x ({self.prompt} + {self.output})"


LLAMA_3_8B = Model(
    hidden=4096,
    intermediate=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    max_positions=8192,
)

FULL = Sizes(
    dtype="bfloat16",
    model=LLAMA_3_8B,
    block_size=16,
    streams=(1, 16, 64),
    context=4096,
    prefill=8192,
    rows=8192,
    prompt=1000,
    output=65,
    budget=8192,
    copy_bytes=4 << 30,
    matmul=8192,
    repeats=30,
)

DRY = Sizes(
    dtype="float32",
    model=Model(hidden=64, intermediate=96, layers=1, heads=4, kv_heads=2, head_dim=16, vocab=320, max_positions=128),
    block_size=16,
    streams=(2,),
    context=40,
    prefill=20,
    rows=3,
    prompt=18,
    output=3,
    budget=32,
    copy_bytes=1 << 12,
    matmul=16,
    repeats=2,
)
