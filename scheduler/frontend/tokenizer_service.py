"""TokenizerService: text to ids and back, as generation does it, with the same limits and errors."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc

from octavo.serving.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from scheduler.frontend.errors import InvalidRequestError, Violation
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.prompts import EncodedPrompt
from scheduler.frontend.request import ChatPrompt
from scheduler.frontend.statuses import with_status
from scheduler.frontend.validation import check_token_ids
from scheduler.frontend.wire import to_prompt

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Serves the front end's tokenizer; long prompts leave the event loop there."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    @with_status
    async def Tokenize(  # noqa: N802 - the names are the proto's, here and below
        self, request: tokenizer_pb2.TokenizeRequest, context: _Context
    ) -> tokenizer_pb2.TokenizeResponse:
        prompt = await self._encode(request, special_tokens=not request.without_special_tokens)
        token_bytes = self._frontend.tokenizer.token_bytes
        return tokenizer_pb2.TokenizeResponse(
            token_ids=prompt.token_ids,
            token_bytes=[token_bytes[id_] if id_ < len(token_bytes) else b"" for id_ in prompt.token_ids]
            if request.with_token_bytes
            else (),
            rendered=prompt.text if request.HasField("chat") else "",
            max_model_len=self._frontend.model.max_model_len,
        )

    @with_status
    async def CountTokens(  # noqa: N802
        self, request: tokenizer_pb2.CountTokensRequest, context: _Context
    ) -> tokenizer_pb2.CountTokensResponse:
        prompt = await self._encode(request, special_tokens=True)
        return tokenizer_pb2.CountTokensResponse(
            count=len(prompt.token_ids), max_model_len=self._frontend.model.max_model_len
        )

    @with_status
    async def Detokenize(  # noqa: N802
        self, request: tokenizer_pb2.DetokenizeRequest, context: _Context
    ) -> tokenizer_pb2.DetokenizeResponse:
        self._frontend.check_model(request.model)
        tokenizer, model = self._frontend.tokenizer, self._frontend.model
        violations = [*check_token_ids("token_ids", request.token_ids, model)]
        if not tokenizer.has_text:
            violations.append(Violation(field="token_ids", description="the model has no tokenizer, and ids no text"))
        if len(request.token_ids) > model.max_model_len:
            limit = f"has {len(request.token_ids)} ids, must have at most {model.max_model_len} (max_model_len)"
            violations.insert(0, Violation(field="token_ids", description=limit))
        if violations:
            raise InvalidRequestError(tuple(violations))
        detokenizer = tokenizer.detokenizer(
            skip_special_tokens=not request.HasField("skip_special_tokens") or request.skip_special_tokens,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
            begins_text=True,
        )
        return tokenizer_pb2.DetokenizeResponse(text=detokenizer.feed(request.token_ids) + detokenizer.flush())

    async def _encode(
        self, request: tokenizer_pb2.TokenizeRequest | tokenizer_pb2.CountTokensRequest, *, special_tokens: bool
    ) -> EncodedPrompt:
        self._frontend.check_model(request.model)
        given = to_prompt(request)
        if isinstance(given, ChatPrompt) and not special_tokens:
            limit = "is true, must not be for a chat, whose template writes the special tokens"
            raise InvalidRequestError((Violation(field="without_special_tokens", description=limit),))
        prompt = await self._frontend.encode(given, special_tokens=special_tokens)
        violations = prompt.violations or tuple(check_token_ids(prompt.field, prompt.token_ids, self._frontend.model))
        if violations:
            raise InvalidRequestError(violations)
        return prompt
