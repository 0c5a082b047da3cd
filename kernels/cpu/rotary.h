// Rotary embedding and cache write of some of a call's tokens, for threads that share them.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

enum RopeStatus { kRopeOk = 0, kRopePosition = 1, kRopeSlot = 2 };

// q, k and v: [tokens, heads, D], D and the heads dense, tokens `stride` elements apart.
struct RopeAndCacheArguments {
    float* q;
    std::int64_t q_stride, q_heads;
    float* k;
    std::int64_t k_stride;
    const float* v;
    std::int64_t v_stride, kv_heads;
    const float* cos_sin;  // [max_positions, D]
    std::int64_t max_positions;
    const std::int32_t* positions;     // [tokens]
    const std::int64_t* slot_mapping;  // [tokens]
    void* key_cache;                   // [num_blocks, kv_heads, D, block_size] in words, see attention_split.h
    void* value_cache;                 // [num_blocks, kv_heads, block_size, D]
    std::int64_t bfloat16, num_blocks, block_size, head_dim, tokens, num_threads;
};

// The status of a call; anything but kRopeOk names the first value out of range.
int check_rope_and_cache(const RopeAndCacheArguments& a);

// Tokens [begin, end) of a call whose values are in range.
void rope_and_cache_tokens(const RopeAndCacheArguments& a, std::int64_t begin, std::int64_t end);

}  // namespace octavo::OCTAVO_ISA
