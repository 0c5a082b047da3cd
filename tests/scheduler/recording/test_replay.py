"""A recording replays to the same plans, whatever happened to its files; and what is not as recorded is found."""

from __future__ import annotations

import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from scheduler.core.config import CoreConfig
from scheduler.core.drop_prefix import PrefixSelection
from scheduler.core.plan import StepPlan
from scheduler.core.result import EndReason, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.core.sequence import SequenceSpec
from scheduler.recording.errors import RecordingError
from scheduler.recording.plans import PlanImage
from scheduler.recording.reader import Call, Recording
from scheduler.recording.recorded_scheduler import RecordedScheduler
from scheduler.recording.replay import Difference, perform, replay
from scheduler.recording.verbs import SCHEDULE, UPDATE, VERBS
from scheduler.recording.writer import RecordingWriter
from tests.scheduler.core.lab import Lab
from tests.scheduler.core.random_run import random_run
from tests.scheduler.core.test_machine import CoreMachine
from tests.scheduler.recording.service import fail, record_lab, repeat


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return random_run(seed=5, num_requests=300)


def _difference(path: Path) -> Difference:
    difference = replay(Recording(path)).difference
    assert difference is not None
    return difference


def test_a_random_run_replays_equal(lab: Lab, tmp_path: Path) -> None:
    record_lab(lab, tmp_path / "run.rec")
    recording = Recording(tmp_path / "run.rec")
    verdict = replay(recording)
    assert verdict.difference is None
    assert verdict.num_steps == lab.core.counters.steps > 50
    assert verdict.num_calls == len(lab.records), "each call is recorded once, those that the core makes itself are not"
    assert recording.notes == []


class RecordedMachine(CoreMachine):
    """Any use of the core, recorded in small segments and replayed."""

    def teardown(self) -> None:
        if self.lab is None:
            return
        self.lab.drain()
        with TemporaryDirectory() as folder:
            record_lab(self.lab, Path(folder) / "run.rec", max_segment_bytes=2000)
            verdict = replay(Recording(Path(folder) / "run.rec"))
        assert verdict.difference is None
        assert verdict.num_calls == len(self.lab.records)


def test_any_use_of_the_core_replays_equal() -> None:
    run_state_machine_as_test(
        RecordedMachine,
        settings=settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=50,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_segments_are_replayed_in_order(lab: Lab, tmp_path: Path) -> None:
    record_lab(lab, tmp_path / "run.rec", max_segment_bytes=4000)
    recording = Recording(tmp_path / "run.rec")
    assert len(recording.paths) > 10, "segments 2 and 10 must not be mixed up"
    assert all(path.stat().st_size < 10_000 for path in recording.paths)
    assert replay(recording).difference is None
    with pytest.raises(RecordingError, match="is segment 3 of a recording; give the first one"):
        Recording(tmp_path / "run.rec.3")


def test_a_segment_that_is_missing_or_foreign_is_named(lab: Lab, tmp_path: Path) -> None:
    record_lab(lab, tmp_path / "run.rec", max_segment_bytes=4000)
    record_lab(lab, tmp_path / "other.rec", max_segment_bytes=4000)
    (tmp_path / "other.rec.1").replace(tmp_path / "run.rec.1")
    with pytest.raises(RecordingError, match=r"run.rec.1 is not segment 1 of this recording"):
        replay(Recording(tmp_path / "run.rec"))
    (tmp_path / "run.rec.1").unlink()
    with pytest.raises(RecordingError, match=r"run.rec.1 is missing, but .*run.rec.2 is there"):
        Recording(tmp_path / "run.rec")


def test_a_torn_tail_is_ignored_with_a_note(lab: Lab, tmp_path: Path) -> None:
    record_lab(lab, tmp_path / "run.rec", max_segment_bytes=100_000)
    path = Recording(tmp_path / "run.rec").paths[-1]
    content = path.read_bytes()
    whole = replay(Recording(tmp_path / "run.rec"))
    for cut in (1, 5, len(content) // 2, len(content) - 4, len(content)):
        path.write_bytes(content[: len(content) - cut])
        recording = Recording(tmp_path / "run.rec")
        verdict = replay(recording)
        assert verdict.difference is None
        assert 0 < verdict.num_calls < whole.num_calls
        assert len(recording.notes) == 1 and path.name in recording.notes[0]


def test_a_tear_before_the_last_segment_is_an_error(lab: Lab, tmp_path: Path) -> None:
    record_lab(lab, tmp_path / "run.rec", max_segment_bytes=4000)
    path = tmp_path / "run.rec.2"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RecordingError, match=r"run.rec.2: .*torn.*but the next segment is there \(after step \d+\)"):
        replay(Recording(tmp_path / "run.rec"))


def test_a_damaged_byte_is_found_and_the_last_good_step_named(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    record_lab(lab, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    steps: list[int] = []
    with pytest.raises(RecordingError, match="damaged") as caught:
        steps.extend(call.outcome.step_id for call in Recording(path).calls() if isinstance(call.outcome, PlanImage))
    assert 0 < len(steps) < lab.core.counters.steps
    assert f"(after step {steps[-1]})" in str(caught.value)


def _rewrite(source: Path, target: Path, change: Callable[[Call], tuple[Any, ...]]) -> None:
    """A well-formed recording with the plans of another one and arguments that were changed."""
    recording = Recording(source)
    writer = RecordingWriter(target, recording.header.config, on_failure=fail)
    core = Scheduler(recording.header.config)
    for call in recording.calls():
        answer = perform(core, call.verb, call.arguments)
        if call.verb is SCHEDULE:
            writer.schedule(answer)
        else:
            writer.call(call.verb, *change(call))
    writer.close()


def test_a_changed_token_is_found_at_the_first_plan_that_depends_on_it(tmp_path: Path) -> None:
    config = CoreConfig(num_blocks=8, block_size=4, max_num_seqs=2, max_num_batched_tokens=8)
    writer = RecordingWriter(tmp_path / "run.rec", config, on_failure=fail)
    core = RecordedScheduler(config, writer)
    for sequence_id in (1, 2):
        core.add(SequenceSpec(sequence_id=sequence_id, prompt=(5, 6), max_tokens=6, stop_token_ids=frozenset({0})))
    while isinstance(plan := core.schedule(), StepPlan):
        core.update(
            StepResult(epoch=0, step_id=plan.step_id, num_sampled=plan.max_samples, tokens=(7,) * len(plan.rows))
        )
    writer.close()

    def stop_in_step_3(call: Call) -> tuple[Any, ...]:
        if call.verb is not UPDATE or call.arguments[0].step_id != 3:
            return call.arguments
        return (StepResult(epoch=0, step_id=3, num_sampled=(1, 1), tokens=(7, 0)),)

    _rewrite(tmp_path / "run.rec", tmp_path / "same.rec", lambda call: call.arguments)
    assert replay(Recording(tmp_path / "same.rec")).difference is None
    _rewrite(tmp_path / "run.rec", tmp_path / "changed.rec", stop_in_step_3)
    difference = _difference(tmp_path / "changed.rec")
    assert difference.step_id == 4
    text = "\n".join(difference.lines())
    assert "step 4 differs" in text
    assert "-  compute row 1: 1 token, sample" in text
    assert "+  release row 1" in text


def test_a_failure_of_the_core_is_recorded_and_one_that_does_not_replay_is_a_difference(tmp_path: Path) -> None:
    config = CoreConfig(num_blocks=8)
    writer = RecordingWriter(tmp_path / "run.rec", config, on_failure=fail)
    core = RecordedScheduler(config, writer)
    core.add(SequenceSpec(sequence_id=1, prompt=(5,), max_tokens=2))
    del core.blocks.pool
    with pytest.raises(AttributeError):
        core.schedule()
    difference = _difference(tmp_path / "run.rec")
    assert isinstance(difference.recorded, str) and difference.recorded.startswith("AttributeError: ")
    assert "+plan 1" in difference.lines()


def test_refused_calls_are_recorded_too(tmp_path: Path) -> None:
    config = CoreConfig(num_blocks=8)
    writer = RecordingWriter(tmp_path / "run.rec", config, on_failure=fail)
    core = RecordedScheduler(config, writer)
    assert isinstance(perform(core, UPDATE, (StepResult(epoch=0, step_id=9, num_sampled=(), tokens=()),)), Exception)
    writer.close()
    (call,) = Recording(tmp_path / "run.rec").calls()
    assert call.verb is UPDATE and call.arguments[0].step_id == 9
    assert replay(Recording(tmp_path / "run.rec")).difference is None


def test_every_verb_replays(tmp_path: Path) -> None:
    """Groups share a prompt, rates are passed by name, and dropped prefixes are found no more."""
    config = CoreConfig(num_blocks=16, num_host_blocks=4, block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
    writer = RecordingWriter(tmp_path / "run.rec", config, on_failure=fail)
    core = RecordedScheduler(config, writer)
    prompt = tuple(range(1, 10))

    def serve(first_id: int) -> None:
        core.add_group(
            tuple(SequenceSpec(sequence_id=first_id + i, prompt=prompt, max_tokens=3, seed=i) for i in range(3))
        )
        while isinstance(plan := core.schedule(), StepPlan):
            tokens = (7,) * sum(plan.max_samples)
            core.update(StepResult(epoch=core.epoch, step_id=plan.step_id, num_sampled=plan.max_samples, tokens=tokens))

    core.set_rates(prefill_tokens_per_s=1000, copy_bytes_per_s=1 << 30)
    serve(1)
    assert core.drop_prefix(PrefixSelection(cache_salt=""))[0] > 0
    serve(4)
    core.requeue_all(8, 2)
    serve(7)
    core.add(SequenceSpec(sequence_id=10, prompt=prompt, max_tokens=3, deadline_ns=5))
    core.add(SequenceSpec(sequence_id=11, prompt=prompt, max_tokens=3))
    core.add(SequenceSpec(sequence_id=12, prompt=prompt, max_tokens=3))
    core.expire(5)
    core.adopt(core.withdraw(12))
    core.finish(11, EndReason.ABORT)
    core.finish(12, EndReason.STOP, 0)
    core.finish_all(EndReason.WORKER_LOST)
    writer.close()
    assert {call.verb for call in Recording(tmp_path / "run.rec").calls()} == set(VERBS.values())
    assert core.counters.forks > 0
    verdict = replay(Recording(tmp_path / "run.rec"))
    assert verdict.difference is None and verdict.num_steps == core.counters.steps


def test_nothing_is_overwritten(lab: Lab, tmp_path: Path) -> None:
    record_lab(lab, tmp_path / "run.rec", max_segment_bytes=100_000)
    before = (tmp_path / "run.rec").read_bytes()
    with pytest.raises(RecordingError, match="segments of another recording are there"):
        RecordingWriter(tmp_path / "run.rec", lab.config, on_failure=fail)
    for path in tmp_path.glob("run.rec.*"):
        path.unlink()
    with pytest.raises(RecordingError, match="never overwritten"):
        RecordingWriter(tmp_path / "run.rec", lab.config, on_failure=fail)
    assert (tmp_path / "run.rec").read_bytes() == before
    with pytest.raises(RecordingError, match="No such file"):
        RecordingWriter(tmp_path / "folder" / "run.rec", lab.config, on_failure=fail)


def test_a_full_disk_ends_the_recording_and_not_the_service(lab: Lab, tmp_path: Path) -> None:
    failures: list[OSError] = []
    writer = RecordingWriter(tmp_path / "run.rec", lab.config, on_failure=failures.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        repeat(lab, RecordedScheduler(lab.config, writer))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.close()
    assert len(failures) == 1
    recording = Recording(tmp_path / "run.rec")
    assert replay(recording).difference is None, "what was written before is whole"
    assert len(recording.notes) == 1


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.rec"
    with pytest.raises(RecordingError, match="no such file"):
        Recording(path)
    path.write_text("hello, world")
    with pytest.raises(RecordingError, match="not a recording"):
        Recording(path)
    path.write_bytes(b"")
    with pytest.raises(RecordingError, match="ends within its header"):
        Recording(path)


def test_the_steady_decode_step_is_compact(tmp_path: Path) -> None:
    """Tokens below 65,536 take two bytes; all else about a step of 256 rows together less than one byte per token."""
    config = CoreConfig(num_blocks=4096, max_num_seqs=256, max_num_batched_tokens=2048, enable_prefix_caching=False)
    writer = RecordingWriter(tmp_path / "run.rec", config, on_failure=fail)
    core = RecordedScheduler(config, writer)
    for sequence_id in range(256):
        core.add(SequenceSpec(sequence_id=sequence_id, prompt=tuple(range(1, 2 + sequence_id % 16)), max_tokens=200))
    sizes = []
    while isinstance(plan := core.schedule(), StepPlan):
        tokens = tuple(range(30_000, 30_000 + sum(plan.max_samples)))
        core.update(StepResult(epoch=0, step_id=plan.step_id, num_sampled=plan.max_samples, tokens=tokens))
        writer.flush()
        sizes.append((tmp_path / "run.rec").stat().st_size)
    decode = [after - before for before, after in pairwise(sizes[20:120])]
    assert max(decode) < 3 * 256
