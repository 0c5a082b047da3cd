"""The model's tokenizer: text and chat messages to token ids, and the tables that turn ids into text again.

Owns no state of a request. Safe to use from several threads; encoding releases the interpreter's lock, rendering a
chat template does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scheduler.frontend.chat_template import ChatTemplate
from scheduler.frontend.detokenizer import Detokenizer, SlowDetokenizer
from scheduler.frontend.directory_tokenizer import read_directory
from scheduler.frontend.errors import UnsupportedModelError
from scheduler.frontend.gguf_tokenizer import read_gguf
from scheduler.frontend.model_files import locate
from scheduler.frontend.sampling_defaults import SamplingDefaults
from scheduler.frontend.token_bytes import TokenBytes, build_token_bytes
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
            None
            if parts.chat_template is None
            else ChatTemplate(parts.chat_template, parts.special_tokens, parts.tool_chat_template)
        )
        self.has_text = parts.backend is not None
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.sampling_defaults: SamplingDefaults = parts.sampling_defaults
        self.digest = parts.digest
        self.special_token_ids: frozenset[int] = frozenset()
        self._texts = TokenBytes()
        if parts.backend is not None:
            self._texts = build_token_bytes(parts.backend)
            added = parts.backend.get_added_tokens_decoder()
            self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.token_bytes = self._texts.table
        self.max_token_bytes = max(map(len, self.token_bytes), default=0)
        self._shown_bytes = {frozenset[int](): self._bytes_without(self.special_token_ids)}

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None and self.has_text

    def encode(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        """Ids of a text.

        special_tokens: with those around it that the model wants, such as a BOS in front; a rendered conversation has
        them already.
        """
        if not special_tokens:
            return self._encode(text, add_special_tokens=False)
        if self._bos_prefix is None:
            return self._encode(text, add_special_tokens=True)
        return self._bos_prefix + self._encode(text, add_special_tokens=False)

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises ValueError if the model has none."""
        if self._template is None:
            raise ValueError("the model has no chat template")
        return self._template

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = False,
        begins_text: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """A fresh one, for one sequence.

        begins_text: the ids begin a text rather than continue a prompt. shown: special tokens that are not skipped; to
        be taken from a small set of choices, because the table of each is kept.
        """
        texts = self._texts
        table = self._skipping(shown) if skip_special_tokens else texts.table
        begins = texts.begins if begins_text else None
        spaces = texts.leading_spaces if begins_text else 0
        if begins is None and not spaces and not spaces_between_special_tokens:
            return Detokenizer(table, errors=texts.errors)
        spaced = self.special_token_ids if spaces_between_special_tokens else ()
        return SlowDetokenizer(table, errors=texts.errors, begins=begins, leading_spaces=spaces, spaced=spaced)

    def special_token_id(self, text: str) -> int | None:
        """The special token of this text, if there is one."""
        token_id = None if self._backend is None else self._backend.token_to_id(text)
        return token_id if token_id in self.special_token_ids else None

    def _skipping(self, shown: frozenset[int]) -> Sequence[bytes]:
        """The bytes of all ids but the special ones, which have none."""
        if shown not in self._shown_bytes:
            self._shown_bytes[shown] = self._bytes_without(self.special_token_ids - shown)
        return self._shown_bytes[shown]

    def _bytes_without(self, skipped: frozenset[int]) -> tuple[bytes, ...]:
        return tuple(b"" if id_ in skipped else text for id_, text in enumerate(self.token_bytes))

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
