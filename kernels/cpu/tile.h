// The one inner loop of all matrix products: ROWS rows of `a` times VECS * 16 columns of `b`.
//
// Invariant: an output is one chain of fused multiply-adds over k, from the first to the last. Neither the number of
// rows and columns in the tile nor a cut of k into several calls changes an output's bits.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

// Rows that keep two Vec of accumulators each in registers, over a right-hand side stored as T: 24 of 32 zmm; 12 of 16
// ymm. A widened bfloat16 cannot be the memory operand of a multiply-add and takes registers of its own.
#if defined(__AVX512F__)
template <typename T>
constexpr int kTileRows = 12;
#elif (defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__)
template <typename T>
constexpr int kTileRows = 3;
template <>
constexpr int kTileRows<BFloat16> = 2;
#else
template <typename T>
constexpr int kTileRows = 1;
#endif

template <int ROWS, int VECS>
struct Tile {
    Vec sum[ROWS][VECS];

    void clear() {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < VECS; ++c) sum[r][c] = zero();
    }

    // a: element (r, k) at a[r * a_stride + k]. b.load(k, columns) gives row k of the right-hand side.
    template <typename Columns>
    void accumulate(const float* a, std::ptrdiff_t a_stride, const Columns& b, std::ptrdiff_t count) {
        if constexpr (Columns::kWidens && kNativeLanes < 16 && VECS > 1) {
            accumulate_narrow(a, a_stride, b, count);
            return;
        }
        for (std::ptrdiff_t k = 0; k < count; ++k) {
            Vec columns[VECS];
            b.load(k, columns);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) {
                const Vec x = broadcast(a[r * a_stride + k]);
#pragma GCC unroll 16
                for (int c = 0; c < VECS; ++c) sum[r][c] = fma(x, columns[c], sum[r][c]);
            }
        }
    }

private:
    // The same where columns take registers of their own: there are enough for those of a's elements and one column.
    template <typename Columns>
    void accumulate_narrow(const float* a, std::ptrdiff_t a_stride, const Columns& b, std::ptrdiff_t count) {
        for (std::ptrdiff_t k = 0; k < count; ++k) {
            NativeFloat x[ROWS];
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) x[r] = native_broadcast(a[r * a_stride + k]);
#pragma GCC unroll 16
            for (int i = 0; i < VECS * kParts; ++i) {
                const NativeFloat column = b.native(k, i);
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r) {
                    NativeFloat& s = sum[r][i / kParts].part[i % kParts];
                    s = native_fma(x[r], column, s);
                }
            }
        }
    }
};

// Plain rows of T, `stride` elements apart.
template <typename T>
struct RowColumns {
    static constexpr bool kWidens = sizeof(T) < sizeof(float);

    const T* base;
    std::ptrdiff_t stride;

    NativeFloat native(std::ptrdiff_t k, int i) const { return native_load(base + k * stride + i * kNativeLanes); }

    template <int VECS>
    void load(std::ptrdiff_t k, Vec (&columns)[VECS]) const {
#pragma GCC unroll 16
        for (int c = 0; c < VECS; ++c) columns[c] = OCTAVO_ISA::load(base + k * stride + c * kLanes);
    }
};

template <int N>
struct Int {
    static constexpr int value = N;
};

// Calls f(Int<rows>) for rows in 1..MAX.
template <int MAX, typename F>
inline void with_rows(int rows, const F& f) {
    if constexpr (MAX == 1) {
        f(Int<1>{});
    } else if (rows == MAX) {
        f(Int<MAX>{});
    } else {
        with_rows<MAX - 1>(rows, f);
    }
}

// Cuts `total` rows into the fewest tiles of up to MAX, as even as possible; calls f(first row, Int<rows of the tile>).
template <int MAX, typename F>
inline void for_row_tiles(std::ptrdiff_t total, const F& f) {
    const std::ptrdiff_t tiles = (total + MAX - 1) / MAX;
    for (std::ptrdiff_t t = 0; t < tiles; ++t) {
        const std::ptrdiff_t begin = total * t / tiles, end = total * (t + 1) / tiles;
        with_rows<MAX>(static_cast<int>(end - begin), [&](auto rows) { f(begin, rows); });
    }
}

}  // namespace octavo::OCTAVO_ISA
