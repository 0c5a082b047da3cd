"""What a tokenizer is made of, whatever files it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers

from scheduler.frontend.sampling_defaults import SamplingDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """Read by `directory_tokenizer` and `gguf_tokenizer`, put together by `tokenizer`.

    backend: None for a model that comes without a tokenizer and takes token ids only.
    add_bos: whether plain text gets a BOS in front; None leaves it to the backend's own post-processor.
    tool_chat_template: another one, for chats with tools; None if that is the same.
    special_tokens: template variables such as bos_token, by name.
    digest: SHA-256 as the worker computes it; empty without a backend.
    """

    backend: tokenizers.Tokenizer | None
    add_bos: bool | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    tool_chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    digest: bytes = b""
