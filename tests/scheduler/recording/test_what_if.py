"""What a recording says about other limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from scheduler.core.config import CoreConfig
from scheduler.core.result import EndReason
from scheduler.core.scheduler import Scheduler
from scheduler.recording.__main__ import what_if_config
from scheduler.recording.measures import Measures, percentile
from scheduler.recording.reader import Recording
from scheduler.recording.replay import replay
from scheduler.recording.simulation import Simulation
from scheduler.recording.step_model import fit
from scheduler.recording.verbs import ADD_GROUP
from scheduler.recording.workload import Workload
from tests.scheduler.recording.service import CONFIG, Events, arrivals, record_service

_BUSY = arrivals(count=300, gap_ns=4e6, seed=1)


class Study:
    """A recording, and runs of its workload with other limits."""

    def __init__(self, path: Path) -> None:
        self.workload, self.recorded = Workload(), Measures()
        assert replay(Recording(path), self.workload.observe).difference is None
        assert replay(Recording(path), self.recorded.observe).difference is None
        self.model = fit(self.workload.samples)

    def run(self, config: CoreConfig) -> Measures:
        measures = Measures()
        Simulation(self.workload, config, self.model, measures.observe).run()
        return measures


def _study(folder: Path, events: Events, config: CoreConfig = CONFIG) -> Study:
    record_service(folder / "run.rec", events, config)
    return Study(folder / "run.rec")


@pytest.fixture(name="busy", scope="module")
def _busy(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return _study(tmp_path_factory.mktemp("busy"), Events(arrivals=_BUSY))


def test_the_recorded_limits_give_the_recorded_figures(busy: Study) -> None:
    simulated, recorded = busy.run(CONFIG), busy.recorded
    assert busy.model.median_error < 1e-6
    assert simulated.num_steps == pytest.approx(recorded.num_steps, rel=0.01)
    assert simulated.ends == recorded.ends
    assert len(simulated.ttft_ns) == len(recorded.ttft_ns) == len(_BUSY)
    assert simulated.output_tokens_per_s == pytest.approx(recorded.output_tokens_per_s, rel=0.01)
    for column in ("ttft_ns", "inter_token_ns", "queue_ns"):
        for percent in (50, 95, 99):
            expected = percentile(getattr(recorded, column), percent)
            assert percentile(getattr(simulated, column), percent) == pytest.approx(expected, rel=0.02, abs=1000)


def test_fewer_blocks_mean_more_preemptions_and_the_same_outputs(busy: Study) -> None:
    before, after = busy.run(CONFIG), busy.run(what_if_config(CONFIG, {"num_blocks": 24}))
    assert after.counters["preemptions"] > before.counters["preemptions"]
    assert after.ends == before.ends, "lengths and stops are the recorded ones"
    assert after.counters["generated_tokens"] == before.counters["generated_tokens"]
    assert percentile(after.ttft_ns, 95) > percentile(before.ttft_ns, 95)


def test_a_host_pool_turns_recomputing_into_swapping_and_copies_take_time(busy: Study) -> None:
    tight = what_if_config(CONFIG, {"num_blocks": 24, "preemption_mode": "swap"})
    recomputing, swapping = busy.run(tight), busy.run(replace(tight, num_host_blocks=64))
    assert recomputing.counters["preemptions_swap"] == 0 < swapping.counters["preemptions_swap"]
    assert swapping.counters["recomputed_tokens"] < recomputing.counters["recomputed_tokens"]
    slow = busy.run(replace(tight, num_host_blocks=64, bytes_per_block=1 << 26))
    assert slow.output_tokens_per_s < swapping.output_tokens_per_s
    assert slow.ends == swapping.ends == busy.recorded.ends


def test_fewer_rows_mean_a_longer_queue(busy: Study) -> None:
    before, after = busy.run(CONFIG), busy.run(replace(CONFIG, max_num_seqs=2))
    assert percentile(after.queue_ns, 50) > 2 * percentile(before.queue_ns, 50)
    assert max(sample.running for sample in after.timeline.samples) == 2


def test_a_pool_too_small_for_some_refuses_them(busy: Study) -> None:
    after = busy.run(what_if_config(CONFIG, {"num_blocks": 12}))
    too_large = sum(len(spec.prompt) + spec.max_tokens - 1 > 12 * CONFIG.block_size for _, spec in _BUSY)
    assert after.refused == too_large > 0
    assert after.ends.total() == len(_BUSY) - too_large


def test_a_run_in_which_all_are_refused_takes_no_time() -> None:
    nothing = Measures()
    nothing.observe(Scheduler(CONFIG), 5, ADD_GROUP, ((_BUSY[0][1],),), ValueError())
    assert (nothing.refused, nothing.duration_s, nothing.output_tokens_per_s) == (1, 0.0, 0.0)


def test_a_pause_is_seen_as_one(tmp_path: Path) -> None:
    study = _study(tmp_path, Events(arrivals=arrivals(count=4, gap_ns=1e12, seed=3)))
    for measures in (study.recorded, study.run(CONFIG)):
        samples = measures.timeline.samples
        pauses = [before for before, after in pairwise(samples) if after.seconds - before.seconds > 100]
        assert [(pause.running, pause.usage) for pause in pauses] == [(0, 0.0)] * 3


def test_the_watermark_keeps_its_share_of_the_pool() -> None:
    assert what_if_config(CONFIG, {"num_blocks": 10 * CONFIG.num_blocks}).watermark == 10 * CONFIG.watermark
    assert what_if_config(CONFIG, {"max_num_seqs": 3}).watermark == CONFIG.watermark
    with pytest.raises(ValueError, match="num_blocks"):
        what_if_config(CONFIG, {"num_blocks": 0})


def test_cancels_and_deadlines_come_at_their_recorded_times(tmp_path: Path) -> None:
    sequences = arrivals(count=200, gap_ns=3e6, seed=2, patience_ns=20_000_000)
    cancels = tuple((time_ns + 7_000_000, spec.sequence_id) for time_ns, spec in sequences[::7])
    study = _study(tmp_path, Events(arrivals=sequences, cancels=cancels))
    assert study.recorded.ends[EndReason.ABORT] > 5 and study.recorded.ends[EndReason.DEADLINE] > 5
    assert study.run(CONFIG).ends == study.recorded.ends
    slower = study.run(replace(CONFIG, max_num_seqs=1)).ends
    assert slower[EndReason.ABORT] > study.recorded.ends[EndReason.ABORT]
    assert slower[EndReason.DEADLINE] > study.recorded.ends[EndReason.DEADLINE]
    assert slower.total() == len(sequences)


def test_stop_strings_end_sequences_with_the_recorded_token_whenever_that_comes(tmp_path: Path) -> None:
    stops = {spec.sequence_id: 3 for _, spec in _BUSY[::3] if spec.max_tokens > 5}
    study = _study(tmp_path, Events(arrivals=_BUSY, stops=stops))
    simulated = study.run(CONFIG)
    assert simulated.ends == study.recorded.ends
    assert simulated.counters["generated_tokens"] == study.recorded.counters["generated_tokens"]
    slower = study.run(replace(CONFIG, max_num_seqs=2))
    assert slower.ends == study.recorded.ends
    assert slower.counters["generated_tokens"] == study.recorded.counters["generated_tokens"]


def test_a_lost_worker_is_lost_for_as_long(tmp_path: Path) -> None:
    lost = ((300_000_000, 500_000_000), (800_000_000, 850_000_000))
    study = _study(tmp_path, Events(arrivals=_BUSY, lost=lost))
    simulated = study.run(CONFIG)
    assert simulated.ends == study.recorded.ends
    assert simulated.num_steps == pytest.approx(study.recorded.num_steps, rel=0.02)
    assert max(simulated.inter_token_ns) == pytest.approx(max(study.recorded.inter_token_ns), rel=0.05)
    assert max(simulated.inter_token_ns) > 200_000_000


def test_sequences_that_live_on_at_the_end_of_a_recording_do_not_keep_the_simulation_busy(tmp_path: Path) -> None:
    record_service(tmp_path / "run.rec", Events(arrivals=_BUSY))
    content = (tmp_path / "run.rec").read_bytes()
    (tmp_path / "run.rec").write_bytes(content[: len(content) // 2])
    study = Study(tmp_path / "run.rec")
    simulated = study.run(CONFIG)
    assert simulated.ends.total() == pytest.approx(study.recorded.ends.total(), abs=2)
    assert simulated.ends.total() < len(_BUSY)


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile([30, 10, 20, 40], percent) for percent in (1, 25, 50, 51, 99, 100)] == [10, 10, 20, 30, 40, 40]
    assert percentile([], 50) != percentile([], 50)
