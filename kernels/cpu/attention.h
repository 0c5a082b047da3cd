// Paged attention as the tasks that threads share, for the op alone and for the layers of a step.
//
// A call is two phases, and every thread must have finished the first before any begins the second: attention_task of
// every task, then, if there are `merges`, attention_merge of every task. Neither the order of the tasks nor the
// threads that take them change a bit of the result.
#pragma once

#include "parallel.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

enum AttentionStatus { kAttentionOk = 0, kAttentionLengths = 1, kAttentionBlock = 2, kAttentionMemory = 3 };

struct AttentionArguments {
    const float* q;         // [tokens, query_heads, D], D and the heads dense
    std::int64_t q_stride;  // elements from one token to the next
    std::int64_t tokens, query_heads;
    const void* key_cache;    // [num_blocks, kv_heads, D, block_size] in words, see attention_split.h
    const void* value_cache;  // [num_blocks, kv_heads, block_size, D]
    std::int64_t bfloat16, num_blocks, kv_heads, block_size, head_dim;
    const std::int32_t* query_start_loc;     // [num_seqs + 1]
    const std::int32_t* seq_lens;            // [num_seqs]
    const std::int32_t* block_tables;        // [num_seqs, table_width], rows table_stride elements apart
    std::int64_t table_stride, table_width, num_seqs;
    double scale;
    std::int64_t window;   // 0: none
    double soft_cap;       // 0: none
    float* out;            // [tokens, query_heads, D], the heads dense
    std::int64_t out_stride, num_threads;
};

struct AttentionTask {
    std::int32_t sequence, kv_head, query_block, split;  // split -1: all of them, one after the other
    float* partial;                                      // where a split's task leaves its result
};

// The tasks of a batch, in the order in which to start them; layers of one shape share them.
struct AttentionTasks {
    AttentionTask* tasks;  // in the scratch memory given
    std::int64_t count;
    bool merges;

    // Of a call whose lengths fit. kAttentionMemory if memory ran out. Reads no tensor and no block table.
    int make(const AttentionArguments& a, Scratch& scratch);
};

// kAttentionLengths if the sequences do not fit the tokens and the width of the block table.
int check_lengths(const AttentionArguments& a);

// kAttentionBlock if the block table names a block that does not exist where a query looks.
int check_block_tables(const AttentionArguments& a);

// `next`: what the thread will most likely do then, whose keys it may fetch meanwhile; or nullptr.
int attention_task(const AttentionArguments& a, const AttentionTask& task, const AttentionTask* next);

// Does something for the first task of each run of splits; `task` is in an AttentionTasks.
int attention_merge(const AttentionArguments& a, const AttentionTask* task);

}  // namespace octavo::OCTAVO_ISA
