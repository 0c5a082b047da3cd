"""The model's tokenizer: text and chat messages to token ids, and the tables that turn ids into text again.

Owns no state of a request. Safe to use from several threads; encoding releases the interpreter's lock, rendering a
chat template does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.frontend.chat_template import ChatTemplate
from scheduler.frontend.detokenizer import Detokenizer
from scheduler.frontend.directory_tokenizer import read_directory
from scheduler.frontend.errors import UnsupportedModelError
from scheduler.frontend.gguf_tokenizer import read_gguf
from scheduler.frontend.model_files import locate
from scheduler.frontend.sampling_defaults import SamplingDefaults
from scheduler.frontend.token_bytes import build_token_bytes
from scheduler.frontend.tokenizer_parts import TokenizerParts


class Tokenizer:
    """See the module. The attributes are read-only.

    has_text: False for a model that comes without a tokenizer: it takes token ids and gives no text.
    eos_token_ids: ids that end a generation. special_token_ids: ids that are left out of the text by default.
    token_bytes: bytes of each id. vocab_size: one more than the highest id. max_token_bytes: of the longest one.
    digest: SHA-256 as the worker computes it, of tokenizer.json or of a GGUF file's token list.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._bos_prefix = _bos_prefix(parts)
        self._template = (
            None if parts.chat_template is None else ChatTemplate(parts.chat_template, parts.special_tokens)
        )
        self.has_text = parts.backend is not None
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.sampling_defaults: SamplingDefaults = parts.sampling_defaults
        self.digest = parts.digest
        self.token_bytes: tuple[bytes, ...] = ()
        self.max_token_bytes = 0
        self.special_token_ids: frozenset[int] = frozenset()
        if parts.backend is not None:
            self.token_bytes = build_token_bytes(parts.backend)
            self.max_token_bytes = max(map(len, self.token_bytes), default=0)
            added = parts.backend.get_added_tokens_decoder()
            self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None and self.has_text

    def encode(self, text: str, *, rendered: bool = False) -> tuple[int, ...]:
        """Ids of a text, with a BOS in front where the model wants one.

        rendered: the text is a conversation's; its template has written BOS itself, so none is added.
        """
        if rendered:
            return self._encode(text, add_special_tokens=False)
        if self._bos_prefix is None:
            return self._encode(text, add_special_tokens=True)
        return self._bos_prefix + self._encode(text, add_special_tokens=False)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """Text of a conversation; each message has a role and a content. Raises ChatTemplateError."""
        if self._template is None:
            raise ValueError("the model has no chat template")
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh one, for the output of one sequence."""
        return Detokenizer(self.token_bytes, self.special_token_ids if skip_special_tokens else ())

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        if self._backend is None:
            raise ValueError("the model has no tokenizer")
        # Not `encode`: that one holds the interpreter's lock until it is done, and finds offsets that nobody reads.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)


def load_tokenizer(model: str, revision: str | None = None) -> Tokenizer:
    """Loads the tokenizer of a directory, a .gguf file or a Hub id (`revision`: branch, tag or commit of it).

    Raises ModelNotFoundError or UnsupportedModelError.
    """
    path = locate(model, revision)
    if path.is_dir():
        return Tokenizer(read_directory(path))
    return Tokenizer(_read_file(path))


def _read_file(path: Path) -> TokenizerParts:
    if path.suffix != ".gguf":
        raise UnsupportedModelError(f"{path}: not a model directory, and not a file that ends in .gguf")
    return read_gguf(path)


def _bos_prefix(parts: TokenizerParts) -> tuple[int, ...] | None:
    """What goes in front of plain text; None if the backend's post-processor sees to it."""
    if parts.add_bos is None:
        return None
    return (parts.bos_token_id,) if parts.add_bos and parts.bos_token_id is not None else ()
