"""A hand-driven engine for tests: records what the front end sends, and answers what the test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.core.result import End, EndReason
from scheduler.core.sequence import SequenceSpec
from scheduler.messages import Add, Finish, Message, Started, StepUpdate


class EngineScript:
    """Each call of a verb is one step. now_ns: the clock that both sides read; moved by hand."""

    def __init__(self) -> None:
        self.added: list[SequenceSpec] = []
        self.cancelled: list[int] = []
        self.finished: list[tuple[int, int]] = []
        self.now_ns = 0
        self.deliver: Callable[[StepUpdate], None] = lambda update: None

    def send(self, message: Message) -> None:
        if isinstance(message, Add):
            self.added += message.specs
        elif isinstance(message, Finish):
            self.finished.append((message.sequence_id, message.num_output_tokens))
        else:
            self.cancelled.append(message.sequence_id)

    def update(self, **columns: object) -> None:
        self.deliver(StepUpdate(now_ns=self.now_ns, **columns))  # type: ignore[arg-type]

    def start(self, sequence_id: int, cached_tokens: int = 0) -> None:
        self.update(started=(Started(sequence_id=sequence_id, cached_tokens=cached_tokens),))

    def tokens(self, sequence_id: int, token_ids: Sequence[int]) -> None:
        """One step per token."""
        for token_id in token_ids:
            self.update(sequence_ids=(sequence_id,), token_ids=(token_id,))

    def end(
        self,
        sequence_id: int,
        reason: EndReason,
        last: int | None = None,
        stop_token_id: int | None = None,
        count: int = 0,
    ) -> None:
        """The end, in one step with the last token if there is one."""
        ids = ((), ()) if last is None else ((sequence_id,), (last,))
        end = End(sequence_id=sequence_id, reason=reason, num_output_tokens=count, stop_token_id=stop_token_id)
        self.update(sequence_ids=ids[0], token_ids=ids[1], ends=(end,))
