"""TokenizerService over a real gRPC connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.serving.v1 import generation_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.tokenizer import Tokenizer, load_tokenizer
from scheduler.frontend.tokenizer_parts import TokenizerParts
from scheduler.frontend.tokenizer_service import TokenizerServicer
from tests.oracle.tokenizer import BOS, END_OF_TURN, byte_ids
from tests.scheduler.frontend.test_whole_text import backend

LONG = 20_000
CHAT = generation_pb2.ChatPrompt(messages=[generation_pb2.ChatMessage(role="user", content="é")])


def run(tokenizer: Tokenizer, model: ModelInfo, test: Callable[[Any], Awaitable[None]]) -> None:
    async def whole() -> None:
        server = grpc.aio.server()
        frontend = Frontend(tokenizer=tokenizer, model=model, send=lambda message: None)
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(TokenizerServicer(frontend), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await asyncio.wait_for(test(tokenizer_pb2_grpc.TokenizerServiceStub(channel)), 60)
        await server.stop(None)

    asyncio.run(whole())


def test_there_and_back(byte_tokenizer: Tokenizer, model: ModelInfo) -> None:
    async def test(stub: Any) -> None:
        request = tokenizer_pb2.TokenizeRequest(text="é<|bos|>", with_token_bytes=True)
        there = await stub.Tokenize(request)
        assert list(there.token_ids) == [*byte_ids("é"), BOS]
        assert list(there.token_bytes) == [b"\xc3", b"\xa9", b"<|bos|>"]
        assert (there.rendered, there.max_model_len) == ("", 64)
        assert (await stub.CountTokens(tokenizer_pb2.CountTokensRequest(text="é<|bos|>"))).count == 3
        back = tokenizer_pb2.DetokenizeRequest(token_ids=[*there.token_ids, BOS, 319])
        assert (await stub.Detokenize(back)).text == "éw]"
        back.skip_special_tokens = False
        assert (await stub.Detokenize(back)).text == "é<|bos|><|bos|>w]"
        back.spaces_between_special_tokens = True
        assert (await stub.Detokenize(back)).text == "é<|bos|> <|bos|>w]"
        cut = tokenizer_pb2.DetokenizeRequest(token_ids=byte_ids("é")[:1])
        assert (await stub.Detokenize(cut)).text == "\ufffd"

    run(byte_tokenizer, model, test)


def test_a_chat_shows_what_its_template_makes_of_it(byte_tokenizer: Tokenizer, model: ModelInfo) -> None:
    async def test(stub: Any) -> None:
        answer = await stub.Tokenize(tokenizer_pb2.TokenizeRequest(chat=CHAT))
        assert answer.rendered == "user: é<|end_of_turn|>assistant: "
        assert list(answer.token_ids) == [*byte_ids("user: é"), END_OF_TURN, *byte_ids("assistant: ")]
        assert (await stub.CountTokens(tokenizer_pb2.CountTokensRequest(chat=CHAT))).count == len(answer.token_ids)

    run(byte_tokenizer, model, test)


def test_more_tokens_than_a_request_may_have_are_counted(byte_tokenizer: Tokenizer, model: ModelInfo) -> None:
    async def test(stub: Any) -> None:
        counted = await stub.CountTokens(tokenizer_pb2.CountTokensRequest(text="x" * LONG))  # in a thread
        assert (counted.count, counted.max_model_len) == (LONG, 2048)

    run(byte_tokenizer, replace(model, max_model_len=2048), test)


def test_special_tokens_around_a_text_can_be_left_out(model: ModelInfo) -> None:

    tokenizer = Tokenizer(TokenizerParts(backend=backend("llama"), add_bos=True, bos_token_id=7))

    async def test(stub: Any) -> None:
        assert (await stub.Tokenize(tokenizer_pb2.TokenizeRequest(text="a"))).token_ids[0] == 7
        bare = tokenizer_pb2.TokenizeRequest(text="a", without_special_tokens=True)
        assert 7 not in (await stub.Tokenize(bare)).token_ids

    run(tokenizer, model, test)


@pytest.mark.parametrize(
    ("method", "request_", "code", "field", "named"),
    [
        ("Tokenize", tokenizer_pb2.TokenizeRequest(), "INVALID_ARGUMENT", "prompt", "is missing"),
        ("CountTokens", tokenizer_pb2.CountTokensRequest(text="x" * 961), "INVALID_ARGUMENT", "text", "at most 960"),
        (
            "Tokenize",
            tokenizer_pb2.TokenizeRequest(token_ids=generation_pb2.TokenIds(ids=[1, 320])),
            "INVALID_ARGUMENT",
            "token_ids.ids",
            "has 320 at index 1",
        ),
        (
            "Tokenize",
            tokenizer_pb2.TokenizeRequest(chat=CHAT, without_special_tokens=True),
            "INVALID_ARGUMENT",
            "without_special_tokens",
            "must not be for a chat",
        ),
        ("Tokenize", tokenizer_pb2.TokenizeRequest(text="x", model="other"), "NOT_FOUND", "", "'other' is not served"),
        (
            "Detokenize",
            tokenizer_pb2.DetokenizeRequest(token_ids=[320]),
            "INVALID_ARGUMENT",
            "token_ids",
            "must be below 320",
        ),
        (
            "Detokenize",
            tokenizer_pb2.DetokenizeRequest(token_ids=[1] * 65),
            "INVALID_ARGUMENT",
            "token_ids",
            "has 65 ids, must have at most 64",
        ),
        ("Detokenize", tokenizer_pb2.DetokenizeRequest(model="other"), "NOT_FOUND", "", "'other' is not served"),
    ],
)
def test_what_is_wrong_is_named(
    method: str, request_: Any, code: str, field: str, named: str, byte_tokenizer: Tokenizer, model: ModelInfo
) -> None:
    async def test(stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await getattr(stub, method)(request_)
        assert error.value.code().name == code
        assert named in str(error.value.details())
        status = rpc_status.from_call(error.value)
        assert status is not None
        bad = error_details_pb2.BadRequest()
        fields = [each.field for detail in status.details if detail.Unpack(bad) for each in bad.field_violations]
        assert fields == ([field] if field else [])

    run(byte_tokenizer, model, test)


def test_a_model_without_text_says_so(tmp_path: Any, model: ModelInfo) -> None:
    async def test(stub: Any) -> None:
        for call, given in (
            (stub.Tokenize, tokenizer_pb2.TokenizeRequest(text="x")),
            (stub.Detokenize, tokenizer_pb2.DetokenizeRequest(token_ids=[1])),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="the model has no tokenizer"):
                await call(given)

    run(load_tokenizer(str(tmp_path)), model, test)
