from octavo.serving.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SequenceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEQUENCE_STATE_UNSPECIFIED: _ClassVar[SequenceState]
    SEQUENCE_STATE_PREPARING: _ClassVar[SequenceState]
    SEQUENCE_STATE_WAITING: _ClassVar[SequenceState]
    SEQUENCE_STATE_RUNNING: _ClassVar[SequenceState]
    SEQUENCE_STATE_SWAPPED: _ClassVar[SequenceState]

class Constraint(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSTRAINT_UNSPECIFIED: _ClassVar[Constraint]
    CONSTRAINT_PREPARING: _ClassVar[Constraint]
    CONSTRAINT_WORKER: _ClassVar[Constraint]
    CONSTRAINT_RESULT: _ClassVar[Constraint]
    CONSTRAINT_SWAPPED: _ClassVar[Constraint]
    CONSTRAINT_QUEUE: _ClassVar[Constraint]
    CONSTRAINT_ROWS: _ClassVar[Constraint]
    CONSTRAINT_TOKEN_BUDGET: _ClassVar[Constraint]
    CONSTRAINT_BLOCKS: _ClassVar[Constraint]
    CONSTRAINT_FORK: _ClassVar[Constraint]
    CONSTRAINT_SUSPECTS: _ClassVar[Constraint]

class DecisionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_KIND_UNSPECIFIED: _ClassVar[DecisionKind]
    DECISION_KIND_QUEUED: _ClassVar[DecisionKind]
    DECISION_KIND_ADMITTED: _ClassVar[DecisionKind]
    DECISION_KIND_PREFIX_HIT: _ClassVar[DecisionKind]
    DECISION_KIND_PREEMPTED: _ClassVar[DecisionKind]
    DECISION_KIND_SWAPPED_OUT: _ClassVar[DecisionKind]
    DECISION_KIND_SWAPPED_IN: _ClassVar[DecisionKind]
    DECISION_KIND_FORKED: _ClassVar[DecisionKind]
    DECISION_KIND_REQUEUED: _ClassVar[DecisionKind]
    DECISION_KIND_OVERTAKEN: _ClassVar[DecisionKind]
    DECISION_KIND_CLEARED: _ClassVar[DecisionKind]
    DECISION_KIND_ADOPTED: _ClassVar[DecisionKind]

class BlockState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_STATE_UNSPECIFIED: _ClassVar[BlockState]
    BLOCK_STATE_FREE: _ClassVar[BlockState]
    BLOCK_STATE_CACHED: _ClassVar[BlockState]
    BLOCK_STATE_REFERENCED: _ClassVar[BlockState]
SEQUENCE_STATE_UNSPECIFIED: SequenceState
SEQUENCE_STATE_PREPARING: SequenceState
SEQUENCE_STATE_WAITING: SequenceState
SEQUENCE_STATE_RUNNING: SequenceState
SEQUENCE_STATE_SWAPPED: SequenceState
CONSTRAINT_UNSPECIFIED: Constraint
CONSTRAINT_PREPARING: Constraint
CONSTRAINT_WORKER: Constraint
CONSTRAINT_RESULT: Constraint
CONSTRAINT_SWAPPED: Constraint
CONSTRAINT_QUEUE: Constraint
CONSTRAINT_ROWS: Constraint
CONSTRAINT_TOKEN_BUDGET: Constraint
CONSTRAINT_BLOCKS: Constraint
CONSTRAINT_FORK: Constraint
CONSTRAINT_SUSPECTS: Constraint
DECISION_KIND_UNSPECIFIED: DecisionKind
DECISION_KIND_QUEUED: DecisionKind
DECISION_KIND_ADMITTED: DecisionKind
DECISION_KIND_PREFIX_HIT: DecisionKind
DECISION_KIND_PREEMPTED: DecisionKind
DECISION_KIND_SWAPPED_OUT: DecisionKind
DECISION_KIND_SWAPPED_IN: DecisionKind
DECISION_KIND_FORKED: DecisionKind
DECISION_KIND_REQUEUED: DecisionKind
DECISION_KIND_OVERTAKEN: DecisionKind
DECISION_KIND_CLEARED: DecisionKind
DECISION_KIND_ADOPTED: DecisionKind
BLOCK_STATE_UNSPECIFIED: BlockState
BLOCK_STATE_FREE: BlockState
BLOCK_STATE_CACHED: BlockState
BLOCK_STATE_REFERENCED: BlockState

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("queues", "blocks", "counters", "worker", "host_blocks", "workers")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    queues: QueueStats
    blocks: BlockStats
    counters: CounterStats
    worker: WorkerStats
    host_blocks: HostBlockStats
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStats]
    def __init__(self, queues: _Optional[_Union[QueueStats, _Mapping]] = ..., blocks: _Optional[_Union[BlockStats, _Mapping]] = ..., counters: _Optional[_Union[CounterStats, _Mapping]] = ..., worker: _Optional[_Union[WorkerStats, _Mapping]] = ..., host_blocks: _Optional[_Union[HostBlockStats, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerStats, _Mapping]]] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("running", "waiting", "swapped")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    swapped: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., swapped: _Optional[int] = ...) -> None: ...

class BlockStats(_message.Message):
    __slots__ = ("block_size", "total", "free", "cached", "referenced")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    total: int
    free: int
    cached: int
    referenced: int
    def __init__(self, block_size: _Optional[int] = ..., total: _Optional[int] = ..., free: _Optional[int] = ..., cached: _Optional[int] = ..., referenced: _Optional[int] = ...) -> None: ...

class HostBlockStats(_message.Message):
    __slots__ = ("total", "free")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    total: int
    free: int
    def __init__(self, total: _Optional[int] = ..., free: _Optional[int] = ...) -> None: ...

class CounterStats(_message.Message):
    __slots__ = ("steps", "preemptions", "finished", "prefix_cache_queries", "prefix_cache_hits", "generated_tokens", "computed_tokens", "kept_tokens", "recomputed_tokens", "wasted_tokens", "preemptions_swap", "swapped_out_blocks", "swapped_in_blocks", "forks")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WASTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_SWAP_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    preemptions: int
    finished: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    generated_tokens: int
    computed_tokens: int
    kept_tokens: int
    recomputed_tokens: int
    wasted_tokens: int
    preemptions_swap: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    forks: int
    def __init__(self, steps: _Optional[int] = ..., preemptions: _Optional[int] = ..., finished: _Optional[int] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., kept_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., wasted_tokens: _Optional[int] = ..., preemptions_swap: _Optional[int] = ..., swapped_out_blocks: _Optional[int] = ..., swapped_in_blocks: _Optional[int] = ..., forks: _Optional[int] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("address", "connected", "epoch", "restarts", "queues", "blocks", "host_blocks", "suspects", "hangs", "leaving")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    HANGS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    address: str
    connected: bool
    epoch: int
    restarts: int
    queues: QueueStats
    blocks: BlockStats
    host_blocks: HostBlockStats
    suspects: int
    hangs: int
    leaving: bool
    def __init__(self, address: _Optional[str] = ..., connected: _Optional[bool] = ..., epoch: _Optional[int] = ..., restarts: _Optional[int] = ..., queues: _Optional[_Union[QueueStats, _Mapping]] = ..., blocks: _Optional[_Union[BlockStats, _Mapping]] = ..., host_blocks: _Optional[_Union[HostBlockStats, _Mapping]] = ..., suspects: _Optional[int] = ..., hangs: _Optional[int] = ..., leaving: _Optional[bool] = ...) -> None: ...

class SequenceInfo(_message.Message):
    __slots__ = ("request_id", "index", "state", "queue_position", "age_seconds", "tenant", "priority", "prompt_tokens", "output_tokens", "max_tokens", "computed_tokens", "blocks", "host_blocks", "preemptions", "overtaken", "row", "sequence_id", "worker")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    OVERTAKEN_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    state: SequenceState
    queue_position: int
    age_seconds: float
    tenant: str
    priority: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    computed_tokens: int
    blocks: int
    host_blocks: int
    preemptions: int
    overtaken: int
    row: int
    sequence_id: int
    worker: str
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., state: _Optional[_Union[SequenceState, str]] = ..., queue_position: _Optional[int] = ..., age_seconds: _Optional[float] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., blocks: _Optional[int] = ..., host_blocks: _Optional[int] = ..., preemptions: _Optional[int] = ..., overtaken: _Optional[int] = ..., row: _Optional[int] = ..., sequence_id: _Optional[int] = ..., worker: _Optional[str] = ...) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("state", "tenant", "page_size", "page_token")
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    state: SequenceState
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, state: _Optional[_Union[SequenceState, str]] = ..., tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("sequences", "total", "next_page_token")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceInfo]
    total: int
    next_page_token: str
    def __init__(self, sequences: _Optional[_Iterable[_Union[SequenceInfo, _Mapping]]] = ..., total: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExplainRequestRequest(_message.Message):
    __slots__ = ("request_id", "max_holders")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_HOLDERS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    max_holders: int
    def __init__(self, request_id: _Optional[str] = ..., max_holders: _Optional[int] = ...) -> None: ...

class ExplainRequestResponse(_message.Message):
    __slots__ = ("summary", "sequences", "holders", "total_holders")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_HOLDERS_FIELD_NUMBER: _ClassVar[int]
    summary: str
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceExplanation]
    holders: _containers.RepeatedCompositeFieldContainer[BlockHolder]
    total_holders: int
    def __init__(self, summary: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[SequenceExplanation, _Mapping]]] = ..., holders: _Optional[_Iterable[_Union[BlockHolder, _Mapping]]] = ..., total_holders: _Optional[int] = ...) -> None: ...

class SequenceExplanation(_message.Message):
    __slots__ = ("sentence", "constraint", "root_constraint", "root_request_id", "needs", "sequence", "history", "history_dropped")
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    ROOT_CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    ROOT_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    HISTORY_DROPPED_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    constraint: Constraint
    root_constraint: Constraint
    root_request_id: str
    needs: Needs
    sequence: SequenceInfo
    history: _containers.RepeatedCompositeFieldContainer[DecisionRecord]
    history_dropped: int
    def __init__(self, sentence: _Optional[str] = ..., constraint: _Optional[_Union[Constraint, str]] = ..., root_constraint: _Optional[_Union[Constraint, str]] = ..., root_request_id: _Optional[str] = ..., needs: _Optional[_Union[Needs, _Mapping]] = ..., sequence: _Optional[_Union[SequenceInfo, _Mapping]] = ..., history: _Optional[_Iterable[_Union[DecisionRecord, _Mapping]]] = ..., history_dropped: _Optional[int] = ...) -> None: ...

class Needs(_message.Message):
    __slots__ = ("blocks_needed", "blocks_cached", "blocks_free", "blocks_evictable", "watermark", "rows_needed", "rows_free", "rows_total", "tokens_available", "token_budget", "plans_in_flight")
    BLOCKS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_EVICTABLE_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ROWS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FREE_FIELD_NUMBER: _ClassVar[int]
    ROWS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    PLANS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    blocks_needed: int
    blocks_cached: int
    blocks_free: int
    blocks_evictable: int
    watermark: int
    rows_needed: int
    rows_free: int
    rows_total: int
    tokens_available: int
    token_budget: int
    plans_in_flight: int
    def __init__(self, blocks_needed: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_evictable: _Optional[int] = ..., watermark: _Optional[int] = ..., rows_needed: _Optional[int] = ..., rows_free: _Optional[int] = ..., rows_total: _Optional[int] = ..., tokens_available: _Optional[int] = ..., token_budget: _Optional[int] = ..., plans_in_flight: _Optional[int] = ...) -> None: ...

class BlockHolder(_message.Message):
    __slots__ = ("request_id", "index", "blocks", "exclusive_blocks", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    blocks: int
    exclusive_blocks: int
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., blocks: _Optional[int] = ..., exclusive_blocks: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class DecisionRecord(_message.Message):
    __slots__ = ("step_id", "kind", "text", "numbers")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    kind: DecisionKind
    text: str
    numbers: _containers.ScalarMap[str, int]
    def __init__(self, step_id: _Optional[int] = ..., kind: _Optional[_Union[DecisionKind, str]] = ..., text: _Optional[str] = ..., numbers: _Optional[_Mapping[str, int]] = ...) -> None: ...

class BlockInfo(_message.Message):
    __slots__ = ("block", "state", "references", "indexed", "tokens", "users", "tenant", "cache_salt", "worker")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    INDEXED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    block: int
    state: BlockState
    references: int
    indexed: bool
    tokens: int
    users: _containers.RepeatedCompositeFieldContainer[BlockUser]
    tenant: str
    cache_salt: str
    worker: str
    def __init__(self, block: _Optional[int] = ..., state: _Optional[_Union[BlockState, str]] = ..., references: _Optional[int] = ..., indexed: _Optional[bool] = ..., tokens: _Optional[int] = ..., users: _Optional[_Iterable[_Union[BlockUser, _Mapping]]] = ..., tenant: _Optional[str] = ..., cache_salt: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class BlockUser(_message.Message):
    __slots__ = ("request_id", "index", "table_index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    table_index: int
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., table_index: _Optional[int] = ...) -> None: ...

class ListBlocksRequest(_message.Message):
    __slots__ = ("state", "page_size", "page_token", "worker")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    state: BlockState
    page_size: int
    page_token: str
    worker: str
    def __init__(self, state: _Optional[_Union[BlockState, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class ListBlocksResponse(_message.Message):
    __slots__ = ("blocks", "total", "next_page_token")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockInfo]
    total: int
    next_page_token: str
    def __init__(self, blocks: _Optional[_Iterable[_Union[BlockInfo, _Mapping]]] = ..., total: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetBlockTableRequest(_message.Message):
    __slots__ = ("request_id", "index", "page_size", "page_token")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    page_size: int
    page_token: str
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetBlockTableResponse(_message.Message):
    __slots__ = ("sequence", "block_size", "blocks", "next_page_token")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sequence: SequenceInfo
    block_size: int
    blocks: _containers.RepeatedCompositeFieldContainer[BlockInfo]
    next_page_token: str
    def __init__(self, sequence: _Optional[_Union[SequenceInfo, _Mapping]] = ..., block_size: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[BlockInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ProbePrefixRequest(_message.Message):
    __slots__ = ("text", "chat", "token_ids", "cache_salt")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: _generation_pb2.ChatPrompt
    token_ids: _generation_pb2.TokenIds
    cache_salt: str
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[_generation_pb2.ChatPrompt, _Mapping]] = ..., token_ids: _Optional[_Union[_generation_pb2.TokenIds, _Mapping]] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class ProbePrefixResponse(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "cacheable_tokens", "blocks", "worker")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHEABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    cacheable_tokens: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    worker: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., cacheable_tokens: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., worker: _Optional[str] = ...) -> None: ...

class DropPrefixRequest(_message.Message):
    __slots__ = ("cache_salt", "tenant", "all")
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    cache_salt: str
    tenant: str
    all: bool
    def __init__(self, cache_salt: _Optional[str] = ..., tenant: _Optional[str] = ..., all: _Optional[bool] = ...) -> None: ...

class DropPrefixResponse(_message.Message):
    __slots__ = ("dropped_blocks", "kept_blocks")
    DROPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    dropped_blocks: int
    kept_blocks: int
    def __init__(self, dropped_blocks: _Optional[int] = ..., kept_blocks: _Optional[int] = ...) -> None: ...

class WatchStepsRequest(_message.Message):
    __slots__ = ("max_steps",)
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    max_steps: int
    def __init__(self, max_steps: _Optional[int] = ...) -> None: ...

class WatchStepsResponse(_message.Message):
    __slots__ = ("step", "skipped_steps")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    step: StepSummary
    skipped_steps: int
    def __init__(self, step: _Optional[_Union[StepSummary, _Mapping]] = ..., skipped_steps: _Optional[int] = ...) -> None: ...

class StepSummary(_message.Message):
    __slots__ = ("step_id", "rows", "tokens", "sampled_tokens", "admissions", "released_rows", "preemptions", "swapped_out_blocks", "swapped_in_blocks", "copied_blocks", "queues", "free_blocks", "cached_blocks", "execute_seconds", "turnaround_seconds", "worker")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_ROWS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TURNAROUND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    rows: int
    tokens: int
    sampled_tokens: int
    admissions: int
    released_rows: int
    preemptions: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    copied_blocks: int
    queues: QueueStats
    free_blocks: int
    cached_blocks: int
    execute_seconds: float
    turnaround_seconds: float
    worker: str
    def __init__(self, step_id: _Optional[int] = ..., rows: _Optional[int] = ..., tokens: _Optional[int] = ..., sampled_tokens: _Optional[int] = ..., admissions: _Optional[int] = ..., released_rows: _Optional[int] = ..., preemptions: _Optional[int] = ..., swapped_out_blocks: _Optional[int] = ..., swapped_in_blocks: _Optional[int] = ..., copied_blocks: _Optional[int] = ..., queues: _Optional[_Union[QueueStats, _Mapping]] = ..., free_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., execute_seconds: _Optional[float] = ..., turnaround_seconds: _Optional[float] = ..., worker: _Optional[str] = ...) -> None: ...
