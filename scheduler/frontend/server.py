"""What a front end serves, in the engine's process or in one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import grpc

from octavo.serving.v1 import generation_pb2, generation_pb2_grpc, tokenizer_pb2, tokenizer_pb2_grpc
from scheduler.config import SchedulerConfig
from scheduler.frontend.frontend import Frontend
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.parsing.choice import ParserDefaults
from scheduler.frontend.sampling_defaults import SamplingDefaults
from scheduler.frontend.service import GenerationServicer
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.frontend.tokenizer_service import TokenizerServicer
from scheduler.messages import Message

SERVICES: Final = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in ((generation_pb2, "GenerationService"), (tokenizer_pb2, "TokenizerService"))
)


def make_frontend(
    config: SchedulerConfig,
    model: ModelInfo,
    tokenizer: Tokenizer,
    send: Callable[[Message], None],
    *,
    why_unavailable: Callable[[], str],
    sequence_ids: Iterator[int] | None = None,
) -> Frontend:
    """The front end that the flags ask for; arguments as its own."""
    return Frontend(
        tokenizer=tokenizer,
        model=model,
        send=send,
        why_unavailable=why_unavailable,
        max_preparing=config.max_num_waiting,
        sequence_ids=sequence_ids,
        defaults=SamplingDefaults() if config.generation_config == "none" else None,
        parsers=ParserDefaults(tool_call=config.tool_call_parser, reasoning=config.reasoning_parser),
    )


def add_services(server: grpc.aio.Server, frontend: Frontend, config: SchedulerConfig) -> None:
    """Has a server serve SERVICES from now on."""
    generation = GenerationServicer(frontend, log_prompts=config.log_prompts)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server)
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(TokenizerServicer(frontend), server)
