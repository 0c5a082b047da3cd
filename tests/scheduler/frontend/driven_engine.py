"""A real core under a real front end, turned by hand, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.core.config import CoreConfig
from scheduler.core.plan import StepPlan
from scheduler.core.result import EndReason, StepResult
from scheduler.core.scheduler import Scheduler
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.inspector import InspectedWorker, Inspector
from scheduler.messages import Add, Finish, Message, StepUpdate
from scheduler.step_feed import StepFeed, StepTap

WORKER = "127.0.0.1:1"


@dataclass(slots=True)
class DrivenEngine:
    """now_ns: the clock of all parts. connected: whether there is said to be a worker."""

    core: Scheduler
    frontend: Frontend = field(init=False)
    inspector: Inspector = field(init=False)
    steps: StepFeed = field(init=False)
    tap: StepTap = field(init=False)
    now_ns: int = 0
    connected: bool = True

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, model: ModelInfo, config: CoreConfig, *, buffered_steps: int = 256
    ) -> DrivenEngine:
        engine = cls(Scheduler(config))
        engine.frontend = Frontend(tokenizer=tokenizer, model=model, send=engine.send, clock_ns=lambda: engine.now_ns)
        engine.inspector = Inspector(
            lambda: [InspectedWorker(number=1, address=WORKER, core=engine.core, connected=engine.connected)],
            engine.frontend.requests,
            clock_ns=lambda: engine.now_ns,
        )
        engine.steps = StepFeed(capacity=buffered_steps, clock_ns=lambda: engine.now_ns)
        engine.tap = engine.steps.tap(engine.core, WORKER)
        return engine

    def send(self, message: Message) -> None:
        if isinstance(message, Add):
            self.core.add_group(message.specs)
        elif isinstance(message, Finish):
            self.core.finish(message.sequence_id, EndReason.STOP, message.num_output_tokens)
        else:
            self.core.finish(message.sequence_id, EndReason.ABORT)

    def plan(self) -> StepPlan:
        """Plans a step, which must be possible."""
        plan = self.core.schedule()
        assert isinstance(plan, StepPlan)
        self.tap.planned(plan)
        return plan

    def answer(self, plan: StepPlan, token: int = 97) -> None:
        """The worker's result of the oldest plan in flight: the same token for every row that samples."""
        result = StepResult(
            epoch=self.core.epoch,
            step_id=plan.step_id,
            num_sampled=plan.max_samples,
            tokens=(token,) * sum(plan.max_samples),
            execute_ns=2_000_000,
        )
        output = self.core.update(result)
        self.tap.settled(result)
        self.frontend.deliver(
            StepUpdate(
                now_ns=self.now_ns, sequence_ids=output.sequence_ids, token_ids=output.token_ids, ends=output.ends
            )
        )

    def step(self) -> StepPlan:
        """Plans and answers one step, which takes a millisecond."""
        plan = self.plan()
        self.now_ns += 1_000_000
        self.answer(plan)
        return plan
