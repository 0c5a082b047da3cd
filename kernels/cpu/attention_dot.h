// Attention's two products by the processor's dot product of bfloat16 pairs (AVX512-BF16, vdpbf16ps).
//
// Queries, times the scale, and the softmax's weights are rounded to bfloat16, to nearest even; products are exact, sums
// are in float32. A score adds pairs of neighbours in the head from the first to the last, an output element pairs of
// keys by position, an even one and the next; of a pair the second product comes first (dot_product.h). A key beside
// which there is none to see has zeros beside it: what a query gets depends on the keys that it sees alone.
#pragma once

#include "tile.h"

#if defined(__AVX512BF16__)

namespace octavo::OCTAVO_ISA {

// `count` floats, a multiple of kLanes -> bfloat16, which may lie in the first half of the same memory.
inline void round_to_bfloat16(const float* from, std::int64_t count, float* words) {
    for (std::int64_t i = 0; i < count; i += kLanes) {
        const __m256bh rounded = _mm512_cvtneps_pbh(load(from + i).part[0]);
        std::memcpy(words + i / 2, &rounded, sizeof(rounded));
    }
}

inline __m512bh broadcast_pair(const float* word) { return bit_cast<__m512bh>(_mm512_set1_ps(*word)); }

template <int ROWS, int VECS>
struct DotTile {
    __m512 sum[ROWS][VECS];

    void clear() {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
            for (int c = 0; c < VECS; ++c) sum[r][c] = _mm512_setzero_ps();
    }

    // A pair of each row, `stride` words apart, times one of each column.
    inline __attribute__((always_inline)) void add(const float* pairs, std::ptrdiff_t stride,
                                                   const __m512bh (&columns)[VECS]) {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const __m512bh pair = broadcast_pair(pairs + r * stride);
#pragma GCC unroll 4
            for (int c = 0; c < VECS; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], pair, columns[c]);
        }
    }
};

// Rows `stride` words apart of `words` pairs each times two groups of 16 keys, whose words are `key_stride` apart. A
// line of each of `next` is fetched with each word.
template <int ROWS>
DotTile<ROWS, 2> dot_keys(const float* q, std::ptrdiff_t stride, std::int64_t words, const float* const (&keys)[2],
                          std::ptrdiff_t key_stride, const char* const (&next)[2]) {
    DotTile<ROWS, 2> tile;
    tile.clear();
    for (std::int64_t word = 0; word < words; ++word) {
        __m512bh columns[2];
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
            __builtin_prefetch(next[g] + word * 64, 0, 2);
            std::memcpy(&columns[g], keys[g] + word * key_stride, sizeof(columns[g]));
        }
        tile.add(q + word, stride, columns);
    }
    return tile;
}

// Weighted sums of values in CHUNKS times 32 columns, the last of which are `last` (32 or 16).
template <int ROWS, int CHUNKS>
class ValueSums {
public:
    explicit ValueSums(std::int64_t last) : last_(last == 32 ? 0xffffffffu : 0xffffu) { tile_.clear(); }

    // Two keys' values, and the rows' weights of both in one word each.
    inline __attribute__((always_inline)) void add(const BFloat16* even, const BFloat16* odd, const float* weights,
                                                   std::ptrdiff_t stride) {
        __m512bh columns[2 * CHUNKS];
#pragma GCC unroll 2
        for (int c = 0; c < CHUNKS; ++c) {
            const __mmask32 mask = c + 1 < CHUNKS ? 0xffffffffu : last_;
            const __m512i first = _mm512_maskz_loadu_epi16(mask, even + 32 * c);
            const __m512i second = _mm512_maskz_loadu_epi16(mask, odd + 32 * c);
            columns[2 * c] = bit_cast<__m512bh>(_mm512_unpacklo_epi16(first, second));
            columns[2 * c + 1] = bit_cast<__m512bh>(_mm512_unpackhi_epi16(first, second));
        }
        tile_.add(weights, stride, columns);
    }

    // -> out, rows `stride` elements apart. Unpacking has left the halves of 8 columns in two vectors.
    void write(float* out, std::ptrdiff_t stride) const {
        const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i high = low + _mm512_set1_epi64(0x800000008);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
            for (int c = 0; c < CHUNKS; ++c) {
                const __m512 a = tile_.sum[r][2 * c], b = tile_.sum[r][2 * c + 1];
                float* to = out + r * stride + 32 * c;
                store(to, Vec{{_mm512_permutex2var_ps(a, low, b)}});
                if (c + 1 < CHUNKS || last_ >> 16 != 0) store(to + kLanes, Vec{{_mm512_permutex2var_ps(a, high, b)}});
            }
    }

private:
    DotTile<ROWS, 2 * CHUNKS> tile_;
    __mmask32 last_;
};

}  // namespace octavo::OCTAVO_ISA

#endif  // __AVX512BF16__
