from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("queues", "blocks", "counters", "worker")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    queues: QueueStats
    blocks: BlockStats
    counters: CounterStats
    worker: WorkerStats
    def __init__(self, queues: _Optional[_Union[QueueStats, _Mapping]] = ..., blocks: _Optional[_Union[BlockStats, _Mapping]] = ..., counters: _Optional[_Union[CounterStats, _Mapping]] = ..., worker: _Optional[_Union[WorkerStats, _Mapping]] = ...) -> None: ...

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

class CounterStats(_message.Message):
    __slots__ = ("steps", "preemptions", "finished", "prefix_cache_queries", "prefix_cache_hits", "generated_tokens", "computed_tokens", "kept_tokens", "recomputed_tokens", "wasted_tokens")
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
    def __init__(self, steps: _Optional[int] = ..., preemptions: _Optional[int] = ..., finished: _Optional[int] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., kept_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., wasted_tokens: _Optional[int] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("address", "connected", "epoch", "restarts")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    address: str
    connected: bool
    epoch: int
    restarts: int
    def __init__(self, address: _Optional[str] = ..., connected: _Optional[bool] = ..., epoch: _Optional[int] = ..., restarts: _Optional[int] = ...) -> None: ...
