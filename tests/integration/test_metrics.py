"""What both services tell Prometheus: names and labels against a list, and tokens that add up whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import free_port, wait_until
from tests.integration.scrape import Scrape

GROUP = {"model_name", "worker"}
MODEL = {"model_name"}
PROCESS = {
    f"process_{name}": set[str]()
    for name in (
        "cpu_seconds",
        "max_fds",
        "open_fds",
        "resident_memory_bytes",
        "start_time_seconds",
        "virtual_memory_bytes",
    )
}
SCHEDULER = PROCESS | {
    "vllm:num_requests_running": GROUP,
    "vllm:num_requests_waiting": GROUP,
    "vllm:kv_cache_usage_perc": GROUP,
    "vllm:prefix_cache_queries": GROUP,
    "vllm:prefix_cache_hits": GROUP,
    "vllm:generation_tokens": GROUP,
    "vllm:num_preemptions": GROUP,
    "vllm:cache_config_info": GROUP | {"block_size", "num_gpu_blocks"},
    "vllm:time_to_first_token_seconds": MODEL,
    "vllm:inter_token_latency_seconds": MODEL,
    "vllm:e2e_request_latency_seconds": MODEL,
    "vllm:request_queue_time_seconds": MODEL,
    "vllm:request_prefill_time_seconds": MODEL,
    "vllm:request_decode_time_seconds": MODEL,
    "vllm:prompt_tokens": MODEL,
    "vllm:request_success": MODEL | {"finished_reason"},
    "octavo:request_failure": MODEL | {"reason"},
    "octavo:requests_refused": MODEL | {"reason"},
    "octavo:live_requests": MODEL,
    "octavo:unread_tokens": MODEL,
    "octavo:num_requests_swapped": GROUP,
    "octavo:waiting_tokens": GROUP,
    "octavo:in_flight_tokens": GROUP,
    "octavo:worker_connected": GROUP,
    "octavo:worker_restarts": GROUP,
    "octavo:steps": GROUP,
    "octavo:computed_tokens": GROUP,
    "octavo:kept_tokens": GROUP,
    "octavo:recomputed_tokens": GROUP,
    "octavo:wasted_tokens": GROUP,
    "octavo:kv_cache_blocks": GROUP | {"state"},
    "octavo:host_blocks": GROUP | {"state"},
    "octavo:preemptions": GROUP | {"mode"},
    "octavo:swapped_blocks": GROUP | {"direction"},
}
WORKER = PROCESS | {
    f"octavo:worker_{name}": set[str]()
    for name in (
        "steps",
        "computed_tokens",
        "sampled_tokens",
        "step_seconds",
        "copy_seconds",
        "step_failures",
        "sessions",
        "model_loaded",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Services with small limits. port, worker_port: of their metrics."""

    services: Cluster
    port: int
    worker_port: int

    def scrape(self) -> Scrape:
        """The scheduler's metrics, whose tokens and blocks add up at every moment."""
        scrape = Scrape.of(self.port)
        parts = ("kept_tokens_total", "recomputed_tokens_total", "wasted_tokens_total", "in_flight_tokens")
        assert scrape.value("octavo:computed_tokens_total") == sum(scrape.value(f"octavo:{part}") for part in parts)
        assert scrape.value("octavo:kv_cache_blocks") == 40
        return scrape

    def idle(self) -> Scrape:
        """The metrics once every gauge of work is at zero."""
        gauges = (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "octavo:num_requests_swapped",
            "octavo:waiting_tokens",
            "octavo:in_flight_tokens",
            "octavo:live_requests",
            "octavo:unread_tokens",
        )

        def at_rest() -> Scrape | None:
            scrape = self.scrape()
            return None if any(scrape.value(gauge) for gauge in gauges) else scrape

        scrape = wait_until(at_rest, "all gauges of work are at zero")
        assert scrape is not None
        return scrape


@pytest.fixture(scope="module")
def measured(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    port, worker_port = free_port(), free_port()
    with cluster(
        uniform_model,
        tmp_path_factory.mktemp("metrics"),
        worker_args=["--num-gpu-blocks-override", "40", "--metrics-port", str(worker_port)],
        scheduler_args=["--max-num-seqs", "4", "--metrics-port", str(port), "--max-num-waiting", "4"],
    ) as running:
        yield Measured(services=running, port=port, worker_port=worker_port)


def test_names_and_labels_are_those_of_the_list(measured: Measured) -> None:
    measured.services.complete("x", max_tokens=1)
    with pytest.raises(Exception, match="top_p"):
        measured.services.complete("x", top_p=0)
    scrape = measured.idle()
    assert scrape.labels() == SCHEDULER
    assert scrape.value("vllm:cache_config_info", block_size="16", num_gpu_blocks="40") == 1
    assert scrape.value("octavo:requests_refused_total", reason="INVALID_REQUEST") == 1
    assert Scrape.of(measured.worker_port).labels() == WORKER


def test_a_request_is_counted_where_it_belongs(measured: Measured) -> None:
    before, worker_before = measured.idle(), Scrape.of(measured.worker_port)
    measured.services.complete("y" * 40, max_tokens=30, ignore_eos=True)
    after, worker_after = measured.idle(), Scrape.of(measured.worker_port)

    def grown(sample: str, **labels: str) -> float:
        return after.value(sample, **labels) - before.value(sample, **labels)

    assert grown("vllm:prompt_tokens_total") == grown("vllm:prefix_cache_queries_total") == 40
    assert grown("vllm:generation_tokens_total") == 30
    assert grown("vllm:request_success_total", finished_reason="length") == 1
    assert grown("vllm:time_to_first_token_seconds_count") == 1
    assert grown("vllm:inter_token_latency_seconds_count") == 29
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert grown(f"vllm:{name}_seconds_count") == 1
    between, whole = grown("vllm:inter_token_latency_seconds_sum"), grown("vllm:e2e_request_latency_seconds_sum")
    assert between == pytest.approx(grown("vllm:request_decode_time_seconds_sum"))
    assert 0 < between < whole
    computed = worker_after.value("octavo:worker_computed_tokens_total")
    assert computed - worker_before.value("octavo:worker_computed_tokens_total") == grown(
        "octavo:computed_tokens_total"
    )
    assert worker_after.value("octavo:worker_sampled_tokens_total") > worker_before.value(
        "octavo:worker_sampled_tokens_total"
    )


def test_tokens_add_up_over_preemptions_a_cancel_and_the_death_of_the_worker(measured: Measured) -> None:
    before = measured.idle()
    services = measured.services
    streams = [
        services.generate(f"{index}" * 50, max_tokens=250, ignore_eos=True, seed=index, temperature=1.0)
        for index in range(5)
    ]
    try:
        for stream in streams[:2]:
            next(stream)
        wait_until(lambda: measured.scrape().value("octavo:preemptions_total"), "one is preempted")
        streams.pop().close()
        services.worker.kill()
        services.worker.start()
        for stream in streams:
            collect(stream)
    finally:
        for stream in streams:
            stream.close()
    after = measured.idle()

    def grown(sample: str, **labels: str) -> float:
        return after.value(sample, **labels) - before.value(sample, **labels)

    assert grown("octavo:worker_restarts_total") == 1
    assert grown("octavo:recomputed_tokens_total") > 0
    assert grown("octavo:wasted_tokens_total") > 0
    assert grown("vllm:request_success_total", finished_reason="length") == 4
    assert grown("octavo:request_failure_total", reason="abort") == 1
    assert 4 * 250 <= grown("vllm:generation_tokens_total") < 5 * 250
    assert grown("vllm:num_preemptions_total") == grown("octavo:preemptions_total")
