"""AdminService over a real gRPC connection, about a real core that is turned by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from octavo.serving.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, generation_pb2_grpc, sampling_pb2
from scheduler.core.config import CoreConfig
from scheduler.frontend.admin.service import AdminServicer
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.service import GenerationServicer
from scheduler.frontend.stats import BlockStats, CounterStats, QueueStats, Stats, WorkerStats
from scheduler.frontend.tokenizer import Tokenizer
from tests.oracle.tokenizer import byte_ids
from tests.scheduler.frontend.calls import failure, until
from tests.scheduler.frontend.driven_engine import DrivenEngine
from tests.scheduler.frontend.gated_tokenizer import gated

CONFIG = CoreConfig(
    num_blocks=8,
    block_size=4,
    max_num_seqs=2,
    max_num_batched_tokens=32,
    max_num_waiting=8,
    watermark=1,
    max_overtakes=0,
)
STATS = Stats(
    queues=QueueStats(running=1, waiting=2, swapped=3),
    blocks=BlockStats(block_size=4, total=8, free=5, cached=2, referenced=1),
    counters=CounterStats(steps=3, preemptions=5, preemptions_swap=4),
    workers=(
        WorkerStats(
            address="127.0.0.1:1",
            connected=True,
            epoch=4,
            restarts=2,
            queues=QueueStats(running=1, waiting=2, swapped=3),
            blocks=BlockStats(block_size=4, total=8, free=5, cached=2, referenced=1),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server on loopback, and stubs of it."""

    engine: DrivenEngine
    generation: Any
    admin: Any

    async def submit(self, request_id: str, num_tokens: int, *, max_tokens: int = 8, **fields: Any) -> Any:
        """A request that has reached the core; prompts of two requests share nothing."""
        first = sum(request_id.encode()) % 200
        request = generation_pb2.GenerateRequest(
            request_id=request_id,
            token_ids=generation_pb2.TokenIds(ids=[first] * num_tokens),
            sampling_params=sampling_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            **fields,
        )
        call = self.generation.Generate(request)
        await until(lambda: call.done() or request_id in {one.request_id for one in self.engine.frontend.requests()})
        assert not call.done(), "it was refused"
        return call


Test = Callable[[Service], Awaitable[None]]
Run = Callable[[Test], None]


@asynccontextmanager
async def serve(engine: DrivenEngine) -> AsyncIterator[Service]:
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(GenerationServicer(engine.frontend), server)
    admin = AdminServicer(lambda: STATS, engine.inspector, engine.frontend, engine.steps)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Service(
                engine=engine,
                generation=generation_pb2_grpc.GenerationServiceStub(channel),
                admin=admin_pb2_grpc.AdminServiceStub(channel),
            )
    finally:
        await server.stop(None)


@pytest.fixture
def run(byte_tokenizer: Tokenizer, model: ModelInfo) -> Run:
    """Runs a test against a server of its own."""

    def runner(test: Test) -> None:
        async def whole() -> None:
            async with serve(DrivenEngine.of(byte_tokenizer, model, CONFIG, buffered_steps=4)) as service:
                await asyncio.wait_for(test(service), 60)

        asyncio.run(whole())

    return runner


async def violation(call: Awaitable[Any]) -> tuple[str, str]:
    """Field and description of the one violation of an invalid request."""
    error, details = await failure(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    (found,) = details["BadRequest"].field_violations
    return found.field, found.description


def explain(service: Service, request_id: str, **fields: Any) -> Any:
    return service.admin.ExplainRequest(admin_pb2.ExplainRequestRequest(request_id=request_id, **fields))


def test_requests_are_listed_oldest_first_with_their_figures(run: Run) -> None:
    async def test(service: Service) -> None:
        engine = service.engine
        first = await service.submit("a", 10, tenant="acme", priority=-1)
        engine.step()
        engine.now_ns += 2_000_000_000
        second = await service.submit("b", 20)
        listed = await service.admin.ListRequests(admin_pb2.ListRequestsRequest())
        assert (listed.total, listed.next_page_token) == (2, "")
        running, waiting = listed.sequences
        assert (running.request_id, running.state) == ("a", admin_pb2.SEQUENCE_STATE_RUNNING)
        assert (running.tenant, running.priority, running.row, running.queue_position) == ("acme", -1, 0, 1)
        assert (running.prompt_tokens, running.output_tokens, running.max_tokens) == (10, 1, 8)
        assert (running.computed_tokens, running.blocks, running.age_seconds) == (10, 3, 2.001)
        assert (waiting.request_id, waiting.state) == ("b", admin_pb2.SEQUENCE_STATE_WAITING)
        assert (waiting.blocks, waiting.queue_position, waiting.HasField("row")) == (0, 1, False)
        first.cancel()
        second.cancel()

    run(test)


def test_lists_are_filtered(run: Run) -> None:
    async def test(service: Service) -> None:
        calls = [await service.submit("a", 4, tenant="acme")]
        service.engine.step()
        calls += [await service.submit("b", 4), await service.submit("c", 4, tenant="acme")]

        async def ids(**filters: Any) -> list[str]:
            listed = await service.admin.ListRequests(admin_pb2.ListRequestsRequest(**filters))
            assert listed.total == len(listed.sequences)
            return [sequence.request_id for sequence in listed.sequences]

        assert await ids(state=admin_pb2.SEQUENCE_STATE_RUNNING) == ["a"]
        assert await ids(state=admin_pb2.SEQUENCE_STATE_WAITING) == ["b", "c"]
        assert await ids(tenant="acme") == ["a", "c"]
        assert await ids(tenant="") == ["b"]
        assert await ids(tenant="acme", state=admin_pb2.SEQUENCE_STATE_WAITING) == ["c"]
        assert await ids(state=admin_pb2.SEQUENCE_STATE_SWAPPED) == []
        for call in calls:
            call.cancel()

    run(test)


def test_pages_follow_each_other_while_requests_come_and_go(run: Run) -> None:
    async def test(service: Service) -> None:
        calls = [await service.submit(name, 4) for name in "abcde"]
        first = await service.admin.ListRequests(admin_pb2.ListRequestsRequest(page_size=2))
        assert [sequence.request_id for sequence in first.sequences] == ["a", "b"]
        calls[0].cancel()
        await until(lambda: len(service.engine.frontend.requests()) == 4)
        calls.append(await service.submit("f", 4))
        rest: list[str] = []
        token = first.next_page_token
        while token:
            answer = await service.admin.ListRequests(admin_pb2.ListRequestsRequest(page_size=2, page_token=token))
            rest += [sequence.request_id for sequence in answer.sequences]
            token = answer.next_page_token
        assert rest == ["c", "d", "e", "f"]
        for call in calls:
            call.cancel()

    run(test)


def test_bad_limits_and_tokens_are_refused_with_their_numbers(run: Run) -> None:
    async def test(service: Service) -> None:
        admin = service.admin
        assert await violation(admin.ListRequests(admin_pb2.ListRequestsRequest(page_size=1001))) == (
            "page_size",
            "is 1001, must be in [1, 1000], or 0 for 100",
        )
        for token in ("x", "-1", "1" * 30, "¼"):
            field, description = await violation(admin.ListBlocks(admin_pb2.ListBlocksRequest(page_token=token)))
            assert field == "page_token"
            assert description.startswith(f"is {token!r}, must be")
        assert (await violation(explain(service, "a", max_holders=101)))[0] == "max_holders"
        assert (await violation(admin.ListRequests(admin_pb2.ListRequestsRequest(state=9)))) == (
            "state",
            "is 9, must be in [0, 4]",
        )
        assert (await violation(admin.ListBlocks(admin_pb2.ListBlocksRequest(state=9))))[0] == "state"
        assert (await violation(admin.DropPrefix(admin_pb2.DropPrefixRequest())))[0] == "selection"
        assert (await violation(admin.DropPrefix(admin_pb2.DropPrefixRequest(all=False))))[0] == "selection"

    run(test)


def test_an_unknown_request_is_not_found(run: Run) -> None:
    async def test(service: Service) -> None:
        call = await service.submit("a", 4)
        for answer in (
            explain(service, "b"),
            service.admin.GetBlockTable(admin_pb2.GetBlockTableRequest(request_id="b")),
            service.admin.GetBlockTable(admin_pb2.GetBlockTableRequest(request_id="a", index=3)),
        ):
            error, details = await failure(answer)
            assert error.code() is grpc.StatusCode.NOT_FOUND
            assert "is not a live request" in str(error.details())
            info = details["ErrorInfo"]
            assert (info.reason, info.domain, info.metadata["field"]) == ("REQUEST_NOT_LIVE", "octavo", "request_id")
        call.cancel()

    run(test)


def test_why_a_request_waits_and_who_holds_the_rest(run: Run) -> None:
    async def test(service: Service) -> None:
        calls = [await service.submit("big", 19)]
        service.engine.step()
        calls += [await service.submit("mine", 9), await service.submit("last", 4)]
        answer = await explain(service, "mine")
        # 19 tokens and one sampled are five blocks of eight; nine tokens are three.
        assert answer.summary == "needs 3 blocks, 3 free, 0 evictable, watermark 1"
        (told,) = answer.sequences
        assert told.constraint == admin_pb2.CONSTRAINT_BLOCKS
        assert (told.needs.blocks_needed, told.needs.blocks_free, told.needs.watermark) == (3, 3, 1)
        assert (told.needs.rows_free, told.needs.rows_total, told.needs.token_budget) == (1, 2, 32)
        assert answer.total_holders == 1
        (holder,) = answer.holders
        assert (holder.request_id, holder.blocks, holder.exclusive_blocks) == ("big", 5, 5)
        assert [record.kind for record in told.history] == [admin_pb2.DECISION_KIND_QUEUED]
        behind = await explain(service, "last")
        assert behind.summary == "waits behind mine, which needs 3 blocks, 3 free, 0 evictable, watermark 1"
        (told,) = behind.sequences
        assert (told.constraint, told.root_constraint) == (admin_pb2.CONSTRAINT_QUEUE, admin_pb2.CONSTRAINT_BLOCKS)
        assert told.root_request_id == "mine"
        running = await explain(service, "big")
        assert running.summary == "runs in row 0: 1 token in the next plan"
        admitted = running.sequences[0].history[1]
        assert admitted.kind == admin_pb2.DECISION_KIND_ADMITTED
        assert admitted.step_id == 1
        assert admitted.numbers["blocks"] == 5
        assert admitted.text.startswith("step 1: admitted, blocks 5")
        plans = [service.engine.plan(), service.engine.plan()]
        full = await explain(service, "big")
        assert full.summary == "runs in row 0: 1 token in the next plan, which needs the result of step 2"
        service.engine.answer(plans[0])
        service.engine.connected = False
        assert (await explain(service, "mine")).sequences[0].constraint == admin_pb2.CONSTRAINT_WORKER
        for call in calls:
            call.cancel()

    run(test)


def test_a_request_of_two_sequences_is_summed_up_by_its_first(run: Run) -> None:
    async def test(service: Service) -> None:
        calls = [await service.submit("big", 19)]
        service.engine.step()
        request = generation_pb2.GenerateRequest(
            request_id="pair",
            token_ids=generation_pb2.TokenIds(ids=[5] * 9),
            sampling_params=sampling_pb2.SamplingParams(max_tokens=8, n=2),
        )
        calls.append(service.generation.Generate(request))
        await until(lambda: service.engine.core.num_waiting == 2)
        answer = await explain(service, "pair")
        first, second = answer.sequences
        assert answer.summary == first.sentence == "needs 2 rows, 1 of 2 free"
        assert second.constraint == admin_pb2.CONSTRAINT_FORK
        assert second.root_constraint == admin_pb2.CONSTRAINT_ROWS
        assert second.sentence == "waits for the first sequence of its request, which needs 2 rows, 1 of 2 free"
        assert [entry.sequence.index for entry in answer.sequences] == [0, 1]
        for call in calls:
            call.cancel()

    run(test)


def test_a_request_that_is_being_tokenised_says_so(byte_model: Path, model: ModelInfo) -> None:
    async def test() -> None:
        tokenizer, gate = gated(byte_model)
        roomy = replace(model, max_model_len=8192)
        async with serve(DrivenEngine.of(tokenizer, roomy, CONFIG)) as service:
            try:
                await asyncio.wait_for(ask(service), 60)
            finally:
                gate.open()

    async def ask(service: Service) -> None:
        call = service.generation.Generate(generation_pb2.GenerateRequest(request_id="long", text="x" * 5000))
        await until(lambda: bool(service.engine.frontend.requests()))
        answer = await explain(service, "long")
        assert answer.sequences[0].constraint == admin_pb2.CONSTRAINT_PREPARING
        listed = await service.admin.ListRequests(admin_pb2.ListRequestsRequest())
        assert [sequence.state for sequence in listed.sequences] == [admin_pb2.SEQUENCE_STATE_PREPARING]
        call.cancel()

    asyncio.run(test())


def test_blocks_and_block_tables(run: Run) -> None:
    async def test(service: Service) -> None:
        call = await service.submit("a", 10, tenant="acme", cache_salt="s")
        service.engine.step()
        table = await service.admin.GetBlockTable(admin_pb2.GetBlockTableRequest(request_id="a", page_size=2))
        assert (table.block_size, table.sequence.request_id, table.next_page_token) == (4, "a", "2")
        assert [block.tokens for block in table.blocks] == [4, 4]
        assert all(block.indexed and (block.tenant, block.cache_salt) == ("acme", "s") for block in table.blocks)
        last = await service.admin.GetBlockTable(
            admin_pb2.GetBlockTableRequest(request_id="a", page_size=2, page_token=table.next_page_token)
        )
        (block,) = last.blocks
        assert (block.tokens, block.indexed, block.references, last.next_page_token) == (2, False, 1, "")
        assert [(user.request_id, user.index, user.table_index) for user in block.users] == [("a", 0, 2)]
        free = await service.admin.ListBlocks(admin_pb2.ListBlocksRequest(state=admin_pb2.BLOCK_STATE_FREE))
        assert (free.total, len(free.blocks)) == (5, 5)
        call.cancel()
        await until(lambda: service.engine.core.num_running == 0)
        cached = await service.admin.ListBlocks(admin_pb2.ListBlocksRequest(state=admin_pb2.BLOCK_STATE_CACHED))
        assert [(block.tokens, len(block.users)) for block in cached.blocks] == [(4, 0), (4, 0)]
        numbers: list[int] = []
        token = ""
        while True:
            answer = await service.admin.ListBlocks(admin_pb2.ListBlocksRequest(page_size=3, page_token=token))
            numbers += [block.block for block in answer.blocks]
            token = answer.next_page_token
            if not token:
                break
        assert numbers == list(range(8))

    run(test)


def test_probing_and_dropping_prefixes(run: Run) -> None:
    async def test(service: Service) -> None:
        text = "twelve bytes"

        async def probe(salt: str = "", **prompt: Any) -> Any:
            return await service.admin.ProbePrefix(admin_pb2.ProbePrefixRequest(cache_salt=salt, **prompt))

        call = service.generation.Generate(
            generation_pb2.GenerateRequest(
                request_id="a",
                text=text,
                cache_salt="s",
                tenant="acme",
                sampling_params=sampling_pb2.SamplingParams(max_tokens=8),
            )
        )
        await until(lambda: bool(service.engine.core.num_waiting))
        service.engine.step()
        found = await probe("s", text=text)
        assert (found.prompt_tokens, found.cached_tokens, found.cacheable_tokens, len(found.blocks)) == (12, 8, 8, 2)
        assert (await probe(text=text)).cached_tokens == 0
        longer = generation_pb2.TokenIds(ids=[*byte_ids(text), 1])
        assert (await probe("s", token_ids=longer)).cached_tokens == 12
        chat = generation_pb2.ChatPrompt(messages=[generation_pb2.ChatMessage(role="user", content="x")])
        assert (await probe("s", chat=chat)).prompt_tokens > 0
        assert (await violation(service.admin.ProbePrefix(admin_pb2.ProbePrefixRequest())))[0] == "prompt"
        foreign = admin_pb2.ProbePrefixRequest(token_ids=generation_pb2.TokenIds(ids=[99999]))
        assert (await violation(service.admin.ProbePrefix(foreign)))[0] == "token_ids.ids"
        kept = await service.admin.DropPrefix(admin_pb2.DropPrefixRequest(cache_salt="s"))
        assert (kept.dropped_blocks, kept.kept_blocks) == (0, 3)
        call.cancel()
        await until(lambda: service.engine.core.num_running == 0)
        other = await service.admin.DropPrefix(admin_pb2.DropPrefixRequest(tenant=""))
        assert (other.dropped_blocks, other.kept_blocks) == (0, 0)
        dropped = await service.admin.DropPrefix(admin_pb2.DropPrefixRequest(tenant="acme"))
        assert (dropped.dropped_blocks, dropped.kept_blocks) == (3, 0)
        assert (await probe("s", text=text)).cached_tokens == 0

    run(test)


def test_watched_steps_have_the_figures_of_their_plans(run: Run) -> None:
    async def test(service: Service) -> None:
        engine = service.engine
        watch = service.admin.WatchSteps(admin_pb2.WatchStepsRequest(max_steps=2))
        await until(lambda: engine.steps.num_watchers == 1)
        first, second = await service.submit("a", 10), await service.submit("b", 20)
        engine.step()
        engine.step()
        answers = [answer async for answer in watch]
        assert [answer.step.step_id for answer in answers] == [1, 2]
        step = answers[0].step
        assert (step.rows, step.tokens, step.sampled_tokens, step.admissions) == (1, 10, 1, 1)
        assert (step.queues.running, step.queues.waiting, step.queues.swapped) == (1, 1, 0)
        assert (step.free_blocks, step.execute_seconds, step.turnaround_seconds) == (5, 0.002, 0.001)
        assert answers[1].step.tokens == 1
        await until(lambda: engine.steps.num_watchers == 0)
        first.cancel()
        second.cancel()

    run(test)


def test_a_watcher_that_goes_away_is_forgotten_and_a_closed_feed_ends_the_others(run: Run) -> None:
    async def test(service: Service) -> None:
        steps = service.engine.steps
        gone, staying = (service.admin.WatchSteps(admin_pb2.WatchStepsRequest()) for _ in range(2))
        await until(lambda: steps.num_watchers == 2)
        gone.cancel()
        await until(lambda: steps.num_watchers == 1)
        steps.close()
        assert [answer async for answer in staying] == []
        assert await staying.code() is grpc.StatusCode.OK

    run(test)


def test_the_stats_have_the_swapped_ones(run: Run) -> None:
    async def test(service: Service) -> None:
        stats = await service.admin.GetStats(admin_pb2.GetStatsRequest())
        assert (stats.queues.waiting, stats.queues.swapped, stats.blocks.cached) == (2, 3, 2)
        assert (stats.counters.preemptions, stats.counters.preemptions_swap) == (5, 4)
        assert (stats.worker.address, stats.host_blocks.total) == ("127.0.0.1:1", 0)
        assert [(worker.address, worker.queues.swapped) for worker in stats.workers] == [("127.0.0.1:1", 3)]

    run(test)


def test_answers_read_well_as_json(run: Run) -> None:
    """What grpcurl prints: names for states, no number as a string but ids, no field that says nothing."""

    async def test(service: Service) -> None:
        call = await service.submit("a", 10)
        service.engine.step()
        listed = await service.admin.ListRequests(admin_pb2.ListRequestsRequest())
        assert json_format.MessageToDict(listed) == {
            "sequences": [
                {
                    "requestId": "a",
                    "state": "SEQUENCE_STATE_RUNNING",
                    "queuePosition": 1,
                    "ageSeconds": 0.001,
                    "promptTokens": 10,
                    "outputTokens": 1,
                    "maxTokens": 8,
                    "computedTokens": 10,
                    "blocks": 3,
                    "row": 0,
                    "sequenceId": "1",
                    "worker": "127.0.0.1:1",
                }
            ],
            "total": 1,
        }
        explained = json_format.MessageToDict(await explain(service, "a"))
        assert explained["summary"] == "runs in row 0: 1 token in the next plan"
        assert next(iter(explained)) == "summary"
        assert explained["holders"] == [{"requestId": "a", "blocks": 3, "exclusiveBlocks": 3}]
        call.cancel()

    run(test)


def test_every_state_and_kind_of_the_core_has_its_name_in_the_protos() -> None:
    from scheduler.core.block_views import BlockState
    from scheduler.core.explain import Constraint
    from scheduler.core.history import DecisionKind
    from scheduler.core.live import Queue

    for kind, message, left_out in (
        (Constraint, admin_pb2.Constraint, {"NONE"}),
        (DecisionKind, admin_pb2.DecisionKind, set()),
        (BlockState, admin_pb2.BlockState, set()),
        (Queue, admin_pb2.SequenceState, {"FINISHED"}),
    ):
        suffixes = {
            name.split("_", message.DESCRIPTOR.values[0].name.count("_"))[-1]
            for name in message.DESCRIPTOR.values_by_name
        }
        assert {entry.name for entry in kind} - left_out <= suffixes  # type: ignore[attr-defined]
