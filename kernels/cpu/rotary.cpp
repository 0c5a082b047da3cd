// Rotary position embedding of q and k in place, fused with the write of k and v to the paged KV cache.
//
// Halves layout: element i of a head pairs with element i + D/2. Plain loops: without contraction every element is two
// products and one sum, rounded one by one, whether the compiler makes it a vector or not.
#include <type_traits>

#include "parallel.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

enum Status { kOk = 0, kPositionOutOfRange = 1, kSlotOutOfRange = 2 };

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

inline void write(const float* from, float* to, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline void write(const float* from, BFloat16* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t bits = bit_cast<std::uint32_t>(from[i]);
        const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        to[i].bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
    }
}

struct Heads {
    float* base;          // [T, count, D], D and the heads dense
    std::int64_t stride;  // elements from one token to the next
    std::int64_t count;
};

template <typename T>
struct RopeAndCache {
    Heads q, k, v;
    const float* cos_sin;  // [max_positions, D]
    std::int64_t max_positions;
    const std::int32_t* positions;     // [T]
    const std::int64_t* slot_mapping;  // [T]
    T* key_cache;                      // [N, G, B, D]
    T* value_cache;
    std::int64_t num_blocks, block_size, head_dim;

    int check(std::int64_t tokens) const {
        for (std::int64_t t = 0; t < tokens; ++t) {
            if (positions[t] < 0 || positions[t] >= max_positions) return kPositionOutOfRange;
            if (slot_mapping[t] < 0 || slot_mapping[t] >= num_blocks * block_size) return kSlotOutOfRange;
        }
        return kOk;
    }

    void token(std::int64_t t) const {
        const float* angles = cos_sin + positions[t] * head_dim;
        for (std::int64_t h = 0; h < q.count; ++h) rotate(q.base + t * q.stride + h * head_dim, angles, head_dim / 2);
        const std::int64_t block = slot_mapping[t] / block_size, offset = slot_mapping[t] % block_size;
        for (std::int64_t g = 0; g < k.count; ++g) {
            float* key = k.base + t * k.stride + g * head_dim;
            rotate(key, angles, head_dim / 2);
            const std::int64_t slot = ((block * k.count + g) * block_size + offset) * head_dim;
            write(key, key_cache + slot, head_dim);
            write(v.base + t * v.stride + g * head_dim, value_cache + slot, head_dim);
        }
    }

    int run(std::int64_t tokens, int num_threads) const {
        // Checked before anything is written: a refused call leaves q, k and the cache as they were.
        if (const int status = check(tokens); status != kOk) return status;
        const int threads = tokens * (q.count + 2 * k.count) * head_dim <= kSerialElements ? 1 : num_threads;
        parallel_ranges(tokens, threads, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t t = begin; t < end; ++t) token(t);
        });
        return kOk;
    }
};

}  // namespace
}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

// Returns 0, 1 for a position outside cos_sin, 2 for a slot outside the cache.
OCTAVO_EXPORT(rope_and_cache)(float* q, std::int64_t q_stride, std::int64_t q_heads, float* k, std::int64_t k_stride,
                              float* v, std::int64_t v_stride, std::int64_t kv_heads, const float* cos_sin,
                              std::int64_t max_positions, const std::int32_t* positions,
                              const std::int64_t* slot_mapping, void* key_cache, void* value_cache, int bfloat16,
                              std::int64_t num_blocks, std::int64_t block_size, std::int64_t head_dim,
                              std::int64_t tokens, int num_threads) {
    const auto run = [&](auto* keys, auto* values) {
        using T = std::remove_pointer_t<decltype(keys)>;
        return RopeAndCache<T>{{q, q_stride, q_heads}, {k, k_stride, kv_heads}, {v, v_stride, kv_heads}, cos_sin,
                               max_positions, positions, slot_mapping, keys, values, num_blocks, block_size, head_dim}
            .run(tokens, num_threads);
    };
    return bfloat16 ? run(static_cast<BFloat16*>(key_cache), static_cast<BFloat16*>(value_cache))
                    : run(static_cast<float*>(key_cache), static_cast<float*>(value_cache));
}
