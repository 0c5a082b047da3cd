"""A worker whose memory runs out for real: the kernel refuses what it asks for, in the middle of its work.

The limit is set from outside on the live process: RLIMIT_DATA, on what it may have mapped to write to. A step that
lacks memory fails and takes nobody along; where memory is lacking for more than a step, the process ends and the next
one goes on with its sequences.
"""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from clients import Delta, DeltaStream, InternalError
from clients.results import join
from tests.integration.checksums import assert_closed_form
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import wait_until
from tests.integration.restarts import restarting
from tests.oracle.tokenizer import byte_ids
from tests.oracle.uniform import UniformOracle

PROMPTS = [f"Memory runs out beside me, number {number}" for number in range(3)]
OUTPUT = 80
MIB = 1 << 20
# Scoring the whole prompt makes the worker keep its hidden states: 4 bytes x 256 x 3500, several times.
LARGE_PROMPT = "z" * 3500
POOL = ["--num-gpu-blocks-override", "512"]
FLAGS = ["--worker-grace", "60", "--max-num-seqs", "8", "--max-num-batched-tokens", "4096"]


@contextlib.contextmanager
def limited(server: Cluster, spare_bytes: int) -> Iterator[None]:
    """The worker's process as it is may write to no more memory than it has now, and a little to spare."""
    pid = server.worker.process.pid
    found = re.search(r"VmData:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    resource.prlimit(pid, resource.RLIMIT_DATA, (int(found[1]) * 1024 + spare_bytes, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        if server.worker.process.pid == pid:
            resource.prlimit(pid, resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def begin(server: Cluster) -> list[tuple[DeltaStream, list[Delta]]]:
    streams = [server.generate(prompt, max_tokens=OUTPUT, ignore_eos=True, logprobs=5) for prompt in PROMPTS]
    return [(stream, list(islice(stream, 5))) for stream in streams]


def assert_unharmed(uniform: UniformOracle, begun: list[tuple[DeltaStream, list[Delta]]]) -> None:
    for prompt, (stream, head) in zip(PROMPTS, begun, strict=True):
        completion = join(stream.request_id, [*head, *stream], stream.usage)
        assert len(completion.token_ids) == OUTPUT
        assert_closed_form(uniform, byte_ids(prompt), completion)


@pytest.mark.slow  # six seconds
def test_a_step_that_lacks_memory_fails_alone(uniform: UniformOracle, uniform_model: Path, tmp_path: Path) -> None:
    with cluster(uniform_model, tmp_path, worker_args=POOL, scheduler_args=FLAGS) as server:
        # Enough for a session and small steps, not for the large one, whose request ends with an error.
        begun, pid = begin(server), server.worker.process.pid
        killed = pytest.raises(InternalError, match="workers died while the request was computed")
        with limited(server, 2 * MIB), killed:
            collect(server.generate(LARGE_PROMPT, max_tokens=2, prompt_logprobs=5))
        assert_unharmed(uniform, begun)
        assert server.worker.process.pid == pid
        assert "can't allocate memory" in server.worker.log_text()
        assert "can't allocate memory" in server.scheduler.log_text()
        server.wait_empty()


@pytest.mark.slow  # six seconds
def test_a_worker_that_lacks_memory_for_a_session_ends_and_the_next_one_goes_on(
    uniform: UniformOracle, uniform_model: Path, tmp_path: Path
) -> None:
    # Tables of so many rows take 49 MB, which never come from what the heap has left; the limit is below what the
    # process has without them, once the large step has failed and ended the session.
    flags = [*FLAGS, "--max-num-seqs", "3000"]
    with cluster(uniform_model, tmp_path, worker_args=POOL, scheduler_args=flags) as server:
        begun = begin(server)
        with restarting(server.workers) as deaths, limited(server, -16 * MIB):
            large = server.generate(LARGE_PROMPT, max_tokens=2, prompt_logprobs=5)
            wait_until(lambda: deaths, "the worker dies")
            assert len(collect(large).token_ids) == 2
        assert_unharmed(uniform, begun)
        assert "out of memory" in server.worker.log_text()
        server.wait_empty()
