"""Figures of engines and front ends as Prometheus families. Nothing is counted here; everything is read at a scrape.

Names are those that dashboards and gateways for vLLM know, where they mean the same; ours begin with `octavo:`. What
belongs to a worker group carries its label `worker`, what belongs to requests does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler.frontend.stats import Stats
from scheduler.metrics.request_metrics import RequestMetrics

_GROUP: Final = ("model_name", "worker")
_MODEL: Final = ("model_name",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One worker group. waiting_tokens: prompt tokens of the sequences that wait. in_flight_tokens: token positions in
    plans whose results are not back, so that at every moment computed = kept + recomputed + wasted + in flight."""

    stats: Stats
    waiting_tokens: int
    in_flight_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that a scrape shows, of one moment."""

    groups: Sequence[GroupFigures]
    requests: RequestMetrics


# Per worker group: name, help, and where the figure is.
_GROUP_GAUGES: Final[tuple[tuple[str, str, Callable[[GroupFigures], float]], ...]] = (
    ("vllm:num_requests_running", "Sequences that hold a row on the worker.", lambda g: g.stats.queues.running),
    ("vllm:num_requests_waiting", "Sequences that wait for admission.", lambda g: g.stats.queues.waiting),
    ("octavo:num_requests_swapped", "Sequences whose KV is in host memory.", lambda g: g.stats.queues.swapped),
    (
        "vllm:kv_cache_usage_perc",
        "Share of the KV cache blocks that sequences use; 1 is all.",
        lambda g: g.stats.blocks.referenced / g.stats.blocks.total,
    ),
    ("octavo:waiting_tokens", "Prompt tokens of the sequences that wait.", lambda g: g.waiting_tokens),
    ("octavo:in_flight_tokens", "Token positions in plans whose results are not back.", lambda g: g.in_flight_tokens),
    ("octavo:worker_connected", "Whether a session with the worker is open.", lambda g: g.stats.worker.connected),
)
_GROUP_COUNTERS: Final[tuple[tuple[str, str, Callable[[GroupFigures], float]], ...]] = (
    (
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda g: g.stats.counters.prefix_cache_queries,
    ),
    ("vllm:prefix_cache_hits", "Prompt tokens found there.", lambda g: g.stats.counters.prefix_cache_hits),
    ("vllm:generation_tokens", "Tokens generated and kept.", lambda g: g.stats.counters.generated_tokens),
    ("vllm:num_preemptions", "Sequences that lost their row to others.", lambda g: g.stats.counters.preemptions),
    ("octavo:steps", "Step plans sent.", lambda g: g.stats.counters.steps),
    ("octavo:computed_tokens", "Token positions planned for computation.", lambda g: g.stats.counters.computed_tokens),
    ("octavo:kept_tokens", "Of those, computed the first time and used.", lambda g: g.stats.counters.kept_tokens),
    (
        "octavo:recomputed_tokens",
        "Of those, computed again after a preemption or a worker's death.",
        lambda g: g.stats.counters.recomputed_tokens,
    ),
    (
        "octavo:wasted_tokens",
        "Of those, dropped: past an end, or lost with a worker.",
        lambda g: g.stats.counters.wasted_tokens,
    ),
    ("octavo:worker_restarts", "Sessions opened after the first.", lambda g: g.stats.worker.restarts),
)
_HISTOGRAMS: Final = (
    ("vllm:time_to_first_token_seconds", "From arrival to the first token.", "time_to_first_token"),
    ("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.", "inter_token_latency"),
    ("vllm:e2e_request_latency_seconds", "From arrival to the end, of requests that ended well.", "e2e_latency"),
    ("vllm:request_queue_time_seconds", "From arrival to the first step with a token of it.", "queue_time"),
    ("vllm:request_prefill_time_seconds", "From there to the first generated token.", "prefill_time"),
    ("vllm:request_decode_time_seconds", "From there to the last generated token.", "decode_time"),
)


class FiguresCollector(Collector):
    """read: gives the figures of one moment; called once per scrape, on the scraping thread."""

    def __init__(self, model_name: str, read: Callable[[], Figures]) -> None:
        self._model_name = model_name
        self._read = read

    def describe(self) -> list[Metric]:
        """Nothing: registering must not read figures."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family per metric."""
        figures = self._read()
        yield from self._group_families(figures.groups)
        yield from self._request_families(figures.requests)

    def _group_families(self, groups: Sequence[GroupFigures]) -> Iterator[Metric]:
        labelled = [((self._model_name, group.stats.worker.address), group) for group in groups]
        for name, text, value in _GROUP_GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_GROUP)
            for labels, group in labelled:
                gauge.add_metric(labels, value(group))
            yield gauge
        for name, text, value in _GROUP_COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_GROUP)
            for labels, group in labelled:
                counter.add_metric(labels, value(group))
            yield counter
        info = InfoMetricFamily("vllm:cache_config", "The KV cache of the worker.", labels=_GROUP)
        blocks = GaugeMetricFamily("octavo:kv_cache_blocks", "KV cache blocks by state.", labels=(*_GROUP, "state"))
        host = GaugeMetricFamily("octavo:host_blocks", "Blocks in host memory by state.", labels=(*_GROUP, "state"))
        preempted = CounterMetricFamily("octavo:preemptions", "Preemptions by mode.", labels=(*_GROUP, "mode"))
        moved = CounterMetricFamily(
            "octavo:swapped_blocks", "Blocks copied to host memory and back.", labels=(*_GROUP, "direction")
        )
        for labels, group in labelled:
            pool, counters = group.stats.blocks, group.stats.counters
            info.add_metric(labels, {"block_size": str(pool.block_size), "num_gpu_blocks": str(pool.total)})
            for state in ("free", "cached", "referenced"):
                blocks.add_metric((*labels, state), getattr(pool, state))
            host.add_metric((*labels, "free"), group.stats.host_blocks.free)
            host.add_metric((*labels, "used"), group.stats.host_blocks.total - group.stats.host_blocks.free)
            preempted.add_metric((*labels, "recompute"), counters.preemptions - counters.preemptions_swap)
            preempted.add_metric((*labels, "swap"), counters.preemptions_swap)
            moved.add_metric((*labels, "out"), counters.swapped_out_blocks)
            moved.add_metric((*labels, "in"), counters.swapped_in_blocks)
        yield from (info, blocks, host, preempted, moved)

    def _request_families(self, requests: RequestMetrics) -> Iterator[Metric]:
        labels = (self._model_name,)
        for name, text, attribute in _HISTOGRAMS:
            histogram = getattr(requests, attribute)
            family = HistogramMetricFamily(name, text, labels=_MODEL)
            family.add_metric(labels, histogram.cumulative(), histogram.total_s)
            yield family
        prompt = CounterMetricFamily("vllm:prompt_tokens", "Prompt tokens of admitted requests.", labels=_MODEL)
        prompt.add_metric(labels, requests.prompt_tokens)
        success = CounterMetricFamily(
            "vllm:request_success", "Sequences that ended well, by reason.", labels=(*_MODEL, "finished_reason")
        )
        failed = CounterMetricFamily(
            "octavo:request_failure", "Sequences that did not end well, by reason.", labels=(*_MODEL, "reason")
        )
        for reason in ("stop", "length"):
            success.add_metric((*labels, reason), requests.finished[reason])
        for reason in (
            "abort",
            "deadline",
            *sorted(requests.finished.keys() - {"stop", "length", "abort", "deadline"}),
        ):
            failed.add_metric((*labels, reason), requests.finished[reason])
        refused = CounterMetricFamily(
            "octavo:requests_refused", "Requests that were never accepted, by reason.", labels=(*_MODEL, "reason")
        )
        for reason, count in sorted(requests.refused.items()):
            refused.add_metric((*labels, reason), count)
        live = GaugeMetricFamily(
            "octavo:live_requests", "Requests whose callers are not done with them.", labels=_MODEL
        )
        live.add_metric(labels, requests.live)
        unread = GaugeMetricFamily(
            "octavo:unread_tokens", "Generated tokens that their callers could have taken and have not.", labels=_MODEL
        )
        unread.add_metric(labels, requests.unread_tokens)
        yield from (prompt, success, failed, refused, live, unread)
