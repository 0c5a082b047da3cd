// Rotary position embedding of q and k in place, fused with the write of k and v to the paged KV cache.
//
// Halves layout: element i of a head pairs with element i + D/2. Plain loops: without contraction every element is two
// products and one sum, rounded one by one, whether the compiler makes it a vector or not.
#include "rotary.h"

#include "parallel.h"

namespace octavo::OCTAVO_ISA {
namespace {

inline void rotate(float* head, const float* cos_sin, std::int64_t half) {
    float* __restrict first = head;
    float* __restrict second = head + half;
    const float* __restrict cos = cos_sin;
    const float* __restrict sin = cos_sin + half;
    for (std::int64_t i = 0; i < half; ++i) {
        const float a = first[i], b = second[i];
        first[i] = a * cos[i] - b * sin[i];
        second[i] = b * cos[i] + a * sin[i];
    }
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline BFloat16 round_to_bfloat16(float x) {
    const std::uint32_t bits = bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
}

inline void write_value(const float* from, float* to, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

inline void write_value(const float* from, BFloat16* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = round_to_bfloat16(from[i]);
}

// A key's words lie block_size words apart, see attention_split.h.
inline void write_key(const float* from, float* to, std::int64_t block_size, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i * block_size] = from[i];
}

inline void write_key(const float* from, BFloat16* to, std::int64_t block_size, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 2) {
        const BFloat16 pair[2] = {round_to_bfloat16(from[i]), round_to_bfloat16(from[i + 1])};
        std::memcpy(to + i * block_size, pair, sizeof(pair));
    }
}

template <typename T>
void rope_and_cache_token(const RopeAndCacheArguments& a, std::int64_t t) {
    const std::int64_t head_dim = a.head_dim, half = head_dim / 2;
    const float* angles = a.cos_sin + a.positions[t] * head_dim;
    for (std::int64_t h = 0; h < a.q_heads; ++h) rotate(a.q + t * a.q_stride + h * head_dim, angles, half);
    const std::int64_t block = a.slot_mapping[t] / a.block_size, offset = a.slot_mapping[t] % a.block_size;
    for (std::int64_t g = 0; g < a.kv_heads; ++g) {
        float* key = a.k + t * a.k_stride + g * head_dim;
        rotate(key, angles, half);
        const std::int64_t first = (block * a.kv_heads + g) * a.block_size * head_dim;
        constexpr std::int64_t kPerWord = sizeof(float) / sizeof(T);
        write_key(key, static_cast<T*>(a.key_cache) + first + offset * kPerWord, a.block_size, head_dim);
        write_value(a.v + t * a.v_stride + g * head_dim, static_cast<T*>(a.value_cache) + first + offset * head_dim,
                    head_dim);
    }
}

}  // namespace

int check_rope_and_cache(const RopeAndCacheArguments& a) {
    for (std::int64_t t = 0; t < a.tokens; ++t) {
        if (a.positions[t] < 0 || a.positions[t] >= a.max_positions) return kRopePosition;
        if (a.slot_mapping[t] < 0 || a.slot_mapping[t] >= a.num_blocks * a.block_size) return kRopeSlot;
    }
    return kRopeOk;
}

void rope_and_cache_tokens(const RopeAndCacheArguments& a, std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
        a.bfloat16 ? rope_and_cache_token<BFloat16>(a, t) : rope_and_cache_token<float>(a, t);
}

}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

OCTAVO_EXPORT(rope_and_cache, RopeAndCacheArguments) {
    // Checked before anything is written: a refused call leaves q, k and the cache as they were.
    if (const int status = check_rope_and_cache(a); status != kRopeOk) return status;
    const bool small = a.tokens * (a.q_heads + 2 * a.kv_heads) * a.head_dim <= kSerialElements;
    parallel_ranges(a.tokens, small ? 1 : a.num_threads, [&](std::int64_t begin, std::int64_t end) {
        rope_and_cache_tokens(a, begin, end);
    });
    return kRopeOk;
}
