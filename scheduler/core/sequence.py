"""What the core is told about a sequence when it is added."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Resolved sampling parameters, as `Sampling` in worker.proto. The core passes them on to the worker and looks at
    none of them but num_prompt_logprobs.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    num_logprobs: None for no logprobs, 0 for the sampled token's only, k for the k most likely besides.
    min_tokens: output tokens before which none of masked_token_ids is drawn.
    presence_penalty, frequency_penalty: 0 is off. repetition_penalty: 1 is off.
    logit_bias: (id, what is added), by id. allowed_token_ids: by id; empty is all.
    bad_words: sequences of ids that are not to be generated.
    grammar: what the output must match, in the form of llguidance; empty is anything. eos_token_ids: what may end it.
    num_prompt_logprobs: as num_logprobs, of the prompt's tokens but the first. The prompt is computed in full then.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_logprobs: int | None = None
    min_tokens: int = 0
    masked_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str = ""
    eos_token_ids: tuple[int, ...] = ()
    num_prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """A sequence as it is added to the core.

    sequence_id: unique over the life of the scheduler.
    prompt: token ids, at least one.
    max_tokens: tokens to generate at most, >= 1.
    open_ended: max_tokens is the context limit, not a wish: the core lowers it to what its pool holds, and the sequence
      ends with LENGTH there.
    stop_token_ids: ids that end the sequence (EOS among them unless the caller ignores it).
    seed: of the draws.
    tenant: whom its blocks are charged to.
    priority: lower goes first; ties go in order of arrival.
    cache_salt: part of every prefix key; sequences share blocks only with equal salts.
    deadline_ns: on the clock that `schedule` is given; None is no deadline.
    arrival: its place in the order of arrival over all workers; None: the core counts its own arrivals.
    """

    sequence_id: int
    prompt: tuple[int, ...]
    max_tokens: int
    open_ended: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    seed: int = 0
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    deadline_ns: int | None = None
    arrival: int | None = None
