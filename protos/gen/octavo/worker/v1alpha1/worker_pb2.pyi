from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RowFlag(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_FLAG_UNSPECIFIED: _ClassVar[RowFlag]
    ROW_FLAG_NON_FINITE: _ClassVar[RowFlag]
    ROW_FLAG_DEAD_END: _ClassVar[RowFlag]
    ROW_FLAG_GRAMMAR_TOO_SLOW: _ClassVar[RowFlag]
ROW_FLAG_UNSPECIFIED: RowFlag
ROW_FLAG_NON_FINITE: RowFlag
ROW_FLAG_DEAD_END: RowFlag
ROW_FLAG_GRAMMAR_TOO_SLOW: RowFlag

class GetCapacityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapacityResponse(_message.Message):
    __slots__ = ("protocol_version", "rank", "world_size", "kv_groups", "num_device_blocks", "num_host_blocks", "logits_width", "max_model_len", "architecture", "dtype", "tokenizer_digest", "weights_digest", "config_digest")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_GROUPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    rank: int
    world_size: int
    kv_groups: _containers.RepeatedCompositeFieldContainer[KvGroup]
    num_device_blocks: int
    num_host_blocks: int
    logits_width: int
    max_model_len: int
    architecture: str
    dtype: str
    tokenizer_digest: bytes
    weights_digest: bytes
    config_digest: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., kv_groups: _Optional[_Iterable[_Union[KvGroup, _Mapping]]] = ..., num_device_blocks: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., logits_width: _Optional[int] = ..., max_model_len: _Optional[int] = ..., architecture: _Optional[str] = ..., dtype: _Optional[str] = ..., tokenizer_digest: _Optional[bytes] = ..., weights_digest: _Optional[bytes] = ..., config_digest: _Optional[bytes] = ...) -> None: ...

class KvGroup(_message.Message):
    __slots__ = ("num_layers", "block_size", "window", "bytes_per_block")
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    num_layers: int
    block_size: int
    window: int
    bytes_per_block: int
    def __init__(self, num_layers: _Optional[int] = ..., block_size: _Optional[int] = ..., window: _Optional[int] = ..., bytes_per_block: _Optional[int] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("open", "plans")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    open: Open
    plans: StepPlans
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., plans: _Optional[_Union[StepPlans, _Mapping]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("opened", "results", "event")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    results: StepResults
    event: Event
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., results: _Optional[_Union[StepResults, _Mapping]] = ..., event: _Optional[_Union[Event, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "config_digest", "num_device_blocks", "num_host_blocks", "group_epoch", "num_rows", "max_num_batched_tokens", "max_model_len")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    config_digest: bytes
    num_device_blocks: int
    num_host_blocks: int
    group_epoch: int
    num_rows: int
    max_num_batched_tokens: int
    max_model_len: int
    def __init__(self, protocol_version: _Optional[int] = ..., config_digest: _Optional[bytes] = ..., num_device_blocks: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., group_epoch: _Optional[int] = ..., num_rows: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("group_epoch",)
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_epoch: int
    def __init__(self, group_epoch: _Optional[int] = ...) -> None: ...

class StepPlans(_message.Message):
    __slots__ = ("plans",)
    PLANS_FIELD_NUMBER: _ClassVar[int]
    plans: _containers.RepeatedCompositeFieldContainer[StepPlan]
    def __init__(self, plans: _Optional[_Iterable[_Union[StepPlan, _Mapping]]] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("step_id", "released_rows", "swap_out", "swap_in", "copy_on_write", "admissions", "table_edits", "scheduled")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASED_ROWS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    COPY_ON_WRITE_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    TABLE_EDITS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    released_rows: _containers.RepeatedScalarFieldContainer[int]
    swap_out: BlockCopies
    swap_in: BlockCopies
    copy_on_write: BlockCopies
    admissions: _containers.RepeatedCompositeFieldContainer[Admission]
    table_edits: TableEdits
    scheduled: Scheduled
    def __init__(self, step_id: _Optional[int] = ..., released_rows: _Optional[_Iterable[int]] = ..., swap_out: _Optional[_Union[BlockCopies, _Mapping]] = ..., swap_in: _Optional[_Union[BlockCopies, _Mapping]] = ..., copy_on_write: _Optional[_Union[BlockCopies, _Mapping]] = ..., admissions: _Optional[_Iterable[_Union[Admission, _Mapping]]] = ..., table_edits: _Optional[_Union[TableEdits, _Mapping]] = ..., scheduled: _Optional[_Union[Scheduled, _Mapping]] = ...) -> None: ...

class BlockCopies(_message.Message):
    __slots__ = ("groups", "sources", "destinations")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedScalarFieldContainer[int]
    destinations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, groups: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[int]] = ..., destinations: _Optional[_Iterable[int]] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("sequence_id", "row", "num_prompt_tokens", "token_ids", "block_tables", "num_computed_tokens", "sampling", "adapter_id", "seed", "output_index", "num_scored_tokens")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLES_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_SCORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    row: int
    num_prompt_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_tables: _containers.RepeatedCompositeFieldContainer[BlockTable]
    num_computed_tokens: int
    sampling: Sampling
    adapter_id: int
    seed: int
    output_index: int
    num_scored_tokens: int
    def __init__(self, sequence_id: _Optional[int] = ..., row: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., block_tables: _Optional[_Iterable[_Union[BlockTable, _Mapping]]] = ..., num_computed_tokens: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., adapter_id: _Optional[int] = ..., seed: _Optional[int] = ..., output_index: _Optional[int] = ..., num_scored_tokens: _Optional[int] = ...) -> None: ...

class BlockTable(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "num_logprobs", "min_tokens", "masked_token_ids", "presence_penalty", "frequency_penalty", "repetition_penalty", "bias_token_ids", "biases", "allowed_token_ids", "bad_words", "grammar", "eos_token_ids", "num_prompt_logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MASKED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    num_logprobs: int
    min_tokens: int
    masked_token_ids: _containers.RepeatedScalarFieldContainer[int]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_token_ids: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    grammar: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., num_logprobs: _Optional[int] = ..., min_tokens: _Optional[int] = ..., masked_token_ids: _Optional[_Iterable[int]] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., bias_token_ids: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., grammar: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., num_prompt_logprobs: _Optional[int] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TableEdits(_message.Message):
    __slots__ = ("rows", "groups", "indices", "blocks")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Iterable[int]] = ..., groups: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Scheduled(_message.Message):
    __slots__ = ("rows", "num_tokens", "max_samples", "num_forced", "forced_tokens", "num_drafts", "draft_tokens")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_FORCED_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    max_samples: _containers.RepeatedScalarFieldContainer[int]
    num_forced: _containers.RepeatedScalarFieldContainer[int]
    forced_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_drafts: _containers.RepeatedScalarFieldContainer[int]
    draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., max_samples: _Optional[_Iterable[int]] = ..., num_forced: _Optional[_Iterable[int]] = ..., forced_tokens: _Optional[_Iterable[int]] = ..., num_drafts: _Optional[_Iterable[int]] = ..., draft_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class StepResults(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[StepResult]
    def __init__(self, results: _Optional[_Iterable[_Union[StepResult, _Mapping]]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step_id", "num_sampled", "tokens", "logprobs", "num_top", "top_tokens", "top_logprobs", "flags", "execute_ns", "copy_ns", "num_scored", "scored_logprobs", "scored_num_top", "scored_top_tokens", "scored_top_logprobs")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_NS_FIELD_NUMBER: _ClassVar[int]
    COPY_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCORED_FIELD_NUMBER: _ClassVar[int]
    SCORED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SCORED_NUM_TOP_FIELD_NUMBER: _ClassVar[int]
    SCORED_TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORED_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    num_sampled: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    num_top: _containers.RepeatedScalarFieldContainer[int]
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    flags: _containers.RepeatedScalarFieldContainer[RowFlag]
    execute_ns: int
    copy_ns: int
    num_scored: _containers.RepeatedScalarFieldContainer[int]
    scored_logprobs: _containers.RepeatedScalarFieldContainer[float]
    scored_num_top: _containers.RepeatedScalarFieldContainer[int]
    scored_top_tokens: _containers.RepeatedScalarFieldContainer[int]
    scored_top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, step_id: _Optional[int] = ..., num_sampled: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., num_top: _Optional[_Iterable[int]] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., flags: _Optional[_Iterable[_Union[RowFlag, str]]] = ..., execute_ns: _Optional[int] = ..., copy_ns: _Optional[int] = ..., num_scored: _Optional[_Iterable[int]] = ..., scored_logprobs: _Optional[_Iterable[float]] = ..., scored_num_top: _Optional[_Iterable[int]] = ..., scored_top_tokens: _Optional[_Iterable[int]] = ..., scored_top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("transfer_done", "adapter_loaded", "grammar_ready")
    TRANSFER_DONE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_LOADED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_READY_FIELD_NUMBER: _ClassVar[int]
    transfer_done: TransferDone
    adapter_loaded: AdapterLoaded
    grammar_ready: GrammarReady
    def __init__(self, transfer_done: _Optional[_Union[TransferDone, _Mapping]] = ..., adapter_loaded: _Optional[_Union[AdapterLoaded, _Mapping]] = ..., grammar_ready: _Optional[_Union[GrammarReady, _Mapping]] = ...) -> None: ...

class TransferDone(_message.Message):
    __slots__ = ("transfer_id",)
    TRANSFER_ID_FIELD_NUMBER: _ClassVar[int]
    transfer_id: int
    def __init__(self, transfer_id: _Optional[int] = ...) -> None: ...

class AdapterLoaded(_message.Message):
    __slots__ = ("adapter_id",)
    ADAPTER_ID_FIELD_NUMBER: _ClassVar[int]
    adapter_id: int
    def __init__(self, adapter_id: _Optional[int] = ...) -> None: ...

class GrammarReady(_message.Message):
    __slots__ = ("sequence_id",)
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    def __init__(self, sequence_id: _Optional[int] = ...) -> None: ...
