// A decoder's weights and one step's batch, as decoder_step.py passes them. All fields are 8 bytes wide.
#pragma once

#include "linear.h"
#include "sample.h"

namespace octavo::OCTAVO_ISA {

struct LayerWeights {
    const float* input_norm;  // [C]
    LinearWeights qkv;        // [(H + 2 G) D, C]
    const float* q_norm;      // [D], with k_norm; null without
    const float* k_norm;
    LinearWeights output;  // [C, H D]
    const float* post_attention_norm;
    LinearWeights gate_up;  // [2 I, C]
    LinearWeights down;     // [C, I]
};

struct DecoderWeights {
    std::int64_t num_layers, query_heads, kv_heads, head_dim;
    double eps, scale;
    std::int64_t window;  // 0: none
    double soft_cap;      // 0: none
    const void* embedding;  // [V, C]
    std::int64_t bfloat16;
    const float* cos_sin;  // [max_positions, D]
    std::int64_t max_positions;
    const LayerWeights* layers;
    const float* final_norm;
    LinearWeights lm_head;  // [V, C]
};

struct LayerCache {
    void* keys;  // [num_blocks, G, block_size, D]
    void* values;
};

struct DecoderStepArguments {
    const DecoderWeights* decoder;
    const LayerCache* caches;
    std::int64_t bfloat16, num_blocks, block_size;
    const std::int64_t* token_ids;        // [tokens]
    const std::int32_t* positions;        // [tokens]
    const std::int64_t* slot_mapping;     // [tokens]
    const std::int32_t* query_start_loc;  // [num_seqs + 1]
    const std::int32_t* seq_lens;         // [num_seqs]
    const std::int32_t* block_tables;     // [num_seqs, table_width], rows table_stride elements apart
    std::int64_t table_stride, table_width, num_seqs, tokens;
    const std::int64_t* logits_indices;  // [num_logits], places in 0..tokens - 1
    std::int64_t num_logits;
    float* logits;  // [num_logits, V], or null where nobody wants them
    float* hidden;  // [num_logits, C]: what the vocabulary projection would read, in place of its results; or null
    std::int64_t num_threads;
    std::int64_t samples;  // whether `sampling`, of num_logits rows, counts; logits may be null only then
    SamplingColumns sampling;
};

}  // namespace octavo::OCTAVO_ISA
