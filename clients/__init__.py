"""Python clients of an Octavo server.

from clients import Client

with Client("127.0.0.1:50051") as client:
    for delta in client.generate("Once upon a time", max_tokens=40):
        print(delta.text, end="", flush=True)
"""

from clients.admin import AdminClient
from clients.aio import AsyncClient, AsyncDeltaStream
from clients.errors import (
    AlreadyExistsError,
    DeadlineError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    OctavoError,
    ResourceExhaustedError,
    UnavailableError,
    Violation,
)
from clients.request import Message, SamplingParams
from clients.results import (
    Choice,
    Completion,
    Delta,
    FinishReason,
    ModelInfo,
    ScoredPrompt,
    TokenLogprob,
    Tokens,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from clients.stats import Stats
from clients.sync import Client, DeltaStream

__all__ = [
    "AdminClient",
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncDeltaStream",
    "Choice",
    "Client",
    "Completion",
    "DeadlineError",
    "Delta",
    "DeltaStream",
    "FinishReason",
    "InternalError",
    "InvalidRequestError",
    "Message",
    "ModelInfo",
    "NotFoundError",
    "OctavoError",
    "ResourceExhaustedError",
    "SamplingParams",
    "ScoredPrompt",
    "Stats",
    "TokenLogprob",
    "Tokens",
    "ToolCall",
    "ToolCallDelta",
    "TopLogprob",
    "UnavailableError",
    "Usage",
    "Violation",
]
