"""Writes a recording: calls and outcomes as they happen, in frames of whole turns of the engine.

A frame is written when a turn ends (`schedule` has no more plans), when it is large, or when its first record is a
second old: one system call per step, and a process that is killed loses the turn at hand at most.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduler.core.config import CoreConfig
from scheduler.core.plan import Idle, StepPlan, Waiting
from scheduler.recording.errors import RecordingError
from scheduler.recording.packing import Packer
from scheduler.recording.plans import COLUMNS, OutcomePacker
from scheduler.recording.segments import Header, SegmentWriter, segment_path
from scheduler.recording.verbs import SCHEDULE, Verb

MAX_SEGMENT_BYTES = 256 << 20
_MAX_FRAME_BYTES = 64 << 10
_MAX_FRAME_AGE_NS = 1_000_000_000


class RecordingWriter:
    """A recording that is being made.

    path: of the first segment; no file of it or of a later segment may be there, so nothing is ever overwritten.
    max_segment_bytes: where the next segment begins. clock_ns: the clock whose times the core is given.
    on_failure: told once if the disk fails while serving; the recording ends there, and serving goes on.

    Raises RecordingError if the first segment cannot be made.
    """

    def __init__(
        self,
        path: Path,
        config: CoreConfig,
        *,
        on_failure: Callable[[OSError], None],
        max_segment_bytes: int = MAX_SEGMENT_BYTES,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if any(path.parent.glob(f"{path.name}.[0-9]*")):
            raise RecordingError(
                f"{path}: segments of another recording are there; move them away or take another name"
            )
        self._path = path
        self._config = config
        self._on_failure = on_failure
        self._max_segment_bytes = max_segment_bytes
        self._max_frame_bytes = min(_MAX_FRAME_BYTES, max_segment_bytes)
        self._clock_ns = clock_ns
        self._recording = secrets.token_hex(8)
        self._num_segments = 0
        self._packer = Packer()
        self._frame_ns = 0
        try:
            self._segment: SegmentWriter | None = self._next_segment(clock_ns())
        except FileExistsError as error:
            raise RecordingError(f"{path}: exists; a recording is never overwritten") from error
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from error

    def call(self, verb: Verb, *arguments: Any) -> None:
        """Records a call of the core, before it is made."""
        if self._segment is not None:
            self._begin_record(verb)
            for kind, argument in zip(verb.arguments, arguments, strict=True):
                kind.pack(self._packer, argument)
            self._flush_if_large()

    def schedule(self, answer: StepPlan | Waiting | Idle | Exception) -> None:
        """Records a call of `schedule` with what it answered or raised."""
        if self._segment is not None:
            self._begin_record(SCHEDULE)
            self._outcomes.pack(self._packer, answer)
            if isinstance(answer, StepPlan):
                self._flush_if_large()
            else:
                self.flush()

    def flush(self) -> None:
        """Writes what is buffered, and begins the next segment when this one is full."""
        if self._segment is None or not self._packer.buffer:
            return
        try:
            self._segment.append(self._packer.take())
            if self._segment.size >= self._max_segment_bytes:
                self._segment.close()
                self._segment = self._next_segment(self._packer.now_ns)
        except OSError as error:
            self._segment = None
            self._on_failure(error)

    def close(self) -> None:
        """Writes what is buffered and closes the file; what comes later is not recorded."""
        self.flush()
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _begin_record(self, verb: Verb) -> None:
        packer, now_ns = self._packer, self._clock_ns()
        if not packer.buffer:
            self._frame_ns = now_ns
        packer.unsigned(verb.number)
        packer.unsigned(now_ns - packer.now_ns)
        packer.now_ns = now_ns

    def _flush_if_large(self) -> None:
        packer = self._packer
        if len(packer.buffer) > self._max_frame_bytes or packer.now_ns - self._frame_ns > _MAX_FRAME_AGE_NS:
            self.flush()

    def _next_segment(self, now_ns: int) -> SegmentWriter:
        header = Header(
            recording=self._recording,
            segment=self._num_segments,
            start_ns=now_ns,
            wall_ns=time.time_ns(),
            columns=COLUMNS,
            config=self._config,
        )
        self._packer.now_ns = now_ns
        self._outcomes = OutcomePacker()
        self._num_segments += 1
        return SegmentWriter(segment_path(self._path, header.segment), header)
