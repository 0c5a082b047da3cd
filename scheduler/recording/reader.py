"""Reads a recording: the calls of the core in order, across all its segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.recording.errors import RecordingError
from scheduler.recording.packing import Unpacker
from scheduler.recording.plans import Outcome, OutcomeUnpacker, PlanImage
from scheduler.recording.segments import Frame, Header, TornError, read_frames, segment_paths
from scheduler.recording.verbs import SCHEDULE, VERBS, Verb


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the core. time_ns: on the clock that the core was given. outcome: of `schedule`, else None."""

    time_ns: int
    verb: Verb
    arguments: tuple[Any, ...]
    outcome: Outcome | None


class Recording:
    """A finished or interrupted recording.

    header: of the first segment. notes: what is worth knowing about how it ends, filled while `calls` runs.
    Raises RecordingError if FILE is not the first segment of a recording.
    """

    def __init__(self, path: Path) -> None:
        self.paths = segment_paths(path)
        self.notes: list[str] = []
        self._last_step_id = 0
        try:
            self.header = Header.from_json(next(read_frames(path)).body, path)
        except (TornError, StopIteration) as error:
            raise RecordingError(f"{path}: ends within its header") from error
        if self.header.segment != 0:
            raise RecordingError(f"{path} is segment {self.header.segment} of a recording; give the first one")

    def calls(self) -> Iterator[Call]:
        """All calls, oldest first. Raises RecordingError where the recording is damaged, naming the step before."""
        self.notes.clear()
        self._last_step_id = 0
        try:
            for index, path in enumerate(self.paths):
                yield from self._segment(index, path)
        except RecordingError as error:
            raise RecordingError(f"{error} (after step {self._last_step_id})") from error

    def _segment(self, index: int, path: Path) -> Iterator[Call]:
        frames = read_frames(path)
        try:
            header_frame = next(frames, None)
            if header_frame is None:
                raise TornError(f"{path}: ends within its header")
            header = Header.from_json(header_frame.body, path)
            if (header.recording, header.segment) != (self.header.recording, index):
                raise RecordingError(f"{path} is not segment {index} of this recording")
            outcomes, now_ns = OutcomeUnpacker(header.columns), header.start_ns
            for frame in frames:
                for call in self._frame(path, frame, outcomes, now_ns):
                    now_ns = call.time_ns
                    yield call
        except TornError as error:
            if index != len(self.paths) - 1:
                raise RecordingError(f"{error}, but the next segment is there") from error
            self.notes.append(str(error))

    def _frame(self, path: Path, frame: Frame, outcomes: OutcomeUnpacker, now_ns: int) -> Iterator[Call]:
        unpacker = Unpacker(frame.body)
        unpacker.now_ns = now_ns
        while not unpacker.at_end:
            try:
                verb = VERBS[unpacker.unsigned()]
                unpacker.now_ns += unpacker.unsigned()
                arguments = tuple(kind.unpack(unpacker) for kind in verb.arguments)
                outcome = outcomes.unpack(unpacker) if verb is SCHEDULE else None
            except (RecordingError, KeyError, TypeError, ValueError) as error:
                raise RecordingError(
                    f"{path}: no record that this version reads in the frame at byte {frame.offset}: {error}"
                ) from error
            if isinstance(outcome, PlanImage):
                self._last_step_id = outcome.step_id
            yield Call(unpacker.now_ns, verb, arguments, outcome)
