// y = x @ weight.T + bias over bfloat16 weights, by the processor's dot product of pairs (AVX512-BF16, vdpbf16ps).
//
// Weights are packed once: [N / 32 panels][ceil(K / 2)][32 columns][2], zeros after column N and after k = K - 1: a
// 32-bit word is two neighbours in k, what a lane of the instruction multiplies. Activations are rounded to bfloat16
// once per call, into memory that all threads read.
//
// Numerics. x is rounded to nearest even (subnormal values to zero, NaN stays NaN), a relative error of up to 2^-9 per
// element. Products are exact; a lane adds that of the odd k and then that of the even k to its float32 sum, each
// addition rounded to nearest even, subnormal sums flushed to zero. An output is one chain of such pairs over k, then
// one addition of the bias: its bits depend on neither the other rows nor on threads and blocking. They differ from
// those of the fused multiply-adds in linear.cpp, so that a processor without the instruction gives slightly other
// values; weights in float32, exact mode among them, never come here.
//
// Few rows: bound by reading the weights once, from as many panels at a time as keep the adders busy. Many rows: bound
// by arithmetic, 24 sums in registers per tile; a thread takes all rows through a slice of two panels (kDepth deep)
// that stays in its second-level cache.
#pragma once

#if defined(__AVX512BF16__)

#include "linear.h"
#include "parallel.h"
#include "tile.h"

namespace octavo::OCTAVO_ISA {

class DotLinear {
public:
    explicit DotLinear(const LinearArguments& arguments)
        : a(arguments), pairs(pairs_of(a.k)), x_stride((pairs + kLanes - 1) / kLanes * kLanes + kLanes) {}

    static void pack(const BFloat16* weight, BFloat16* packed, std::int64_t n, std::int64_t k, std::int64_t threads) {
        const std::int64_t size = pairs_of(k) * 2 * kPanel;  // elements of a panel
        parallel_ranges((n + kPanel - 1) / kPanel, threads, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t panel = begin; panel < end; ++panel) {
                BFloat16* out = packed + panel * size;
                std::memset(static_cast<void*>(out), 0, static_cast<std::size_t>(size) * sizeof(BFloat16));
                for (int c = 0; c < kPanel && panel * kPanel + c < n; ++c) {
                    const BFloat16* row = weight + (panel * kPanel + c) * k;
                    for (std::int64_t i = 0; i < k; ++i) out[i / 2 * 2 * kPanel + c * 2 + i % 2] = row[i];
                }
            }
        });
    }

    std::size_t scratch_bytes() const { return static_cast<std::size_t>(a.rows * x_stride) * sizeof(Pair); }

    void prepare(void* scratch, std::int64_t begin, std::int64_t end) const {
        for (std::int64_t row = begin; row < end; ++row) round_row(row, static_cast<Pair*>(scratch) + row * x_stride);
    }

    // Rows [row, row_end) through panels [panel, panel_end): as many of them together as hide the latency of the sums.
    void block(const void* scratch, std::int64_t row, std::int64_t row_end, std::int64_t panel,
               std::int64_t panel_end) const {
        const Pair* x = static_cast<const Pair*>(scratch);
        if (row_end - row <= 2)
            for (; panel + 4 <= panel_end; panel += 4) slices<4>(x, row, row_end, panel);
        for (; panel + 2 <= panel_end; panel += 2) slices<2>(x, row, row_end, panel);
        for (; panel < panel_end; ++panel) slices<1>(x, row, row_end, panel);
    }

private:
    using Pair = std::uint32_t;  // two bfloat16, the lower k in the low half

    static constexpr int kRows = 6;
    static constexpr std::int64_t kDepth = 1024;  // pairs: 128 KiB per panel

    const LinearArguments& a;
    const std::int64_t pairs;
    const std::int64_t x_stride;  // pairs; a cache line over the row, or long rows would compete for cache sets

    static std::int64_t pairs_of(std::int64_t k) { return (k + 1) / 2; }

    void round_row(std::int64_t row, Pair* out) const {
        const float* x = a.x + row * a.x_stride;
        for (std::int64_t i = 0; i < 2 * pairs; i += kLanes) {
            const __m256bh rounded = _mm512_cvtneps_pbh(load_up_to(x + i, a.k - i).part[0]);
            std::memcpy(out + i / 2, &rounded, sizeof(rounded));
        }
    }

    // Rows [row, row + ROWS) by PANELS panels from `panel` on, over pairs [begin, end). Sums wait in y between calls.
    template <int ROWS, int PANELS>
    void tile(const Pair* x, std::int64_t row, std::int64_t panel, std::int64_t begin, std::int64_t end) const {
        constexpr int kVecs = 2 * PANELS;
        Vec sum[ROWS][kVecs];
        each<ROWS, kVecs>(panel, row, [&](int r, int c, float* y, std::ptrdiff_t left) {
            sum[r][c] = begin == 0 || left <= 0 ? zero() : load_up_to(y, left);
        });
        const Pair* weights = static_cast<const Pair*>(a.packed) + panel * pairs * kPanel;
        x += row * x_stride;
        for (std::int64_t k = begin; k < end; ++k) {
            __m512bh columns[kVecs];
#pragma GCC unroll 16
            for (int c = 0; c < kVecs; ++c)
                std::memcpy(&columns[c], weights + c / 2 * pairs * kPanel + k * kPanel + c % 2 * kLanes, 64);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) {
                const __m512bh pair = bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x[r * x_stride + k])));
#pragma GCC unroll 16
                for (int c = 0; c < kVecs; ++c)
                    sum[r][c].part[0] = _mm512_dpbf16_ps(sum[r][c].part[0], pair, columns[c]);
            }
        }
        const bool add_bias = a.bias != nullptr && end == pairs;
        each<ROWS, kVecs>(panel, row, [&](int r, int c, float* y, std::ptrdiff_t left) {
            if (left <= 0) return;
            const Vec added = add_bias ? load_up_to(a.bias + panel * kPanel + c * kLanes, left) : zero();
            store_up_to(y, sum[r][c] + added, left);
        });
    }

    // f(row of the tile, vector of the tile, its place in y, columns left from there on).
    template <int ROWS, int VECS, typename F>
    void each(std::int64_t panel, std::int64_t row, const F& f) const {
#pragma GCC unroll 16
        for (int c = 0; c < VECS; ++c) {
            const std::int64_t column = panel * kPanel + c * kLanes;
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) f(r, c, a.y + (row + r) * a.y_stride + column, a.n - column);
        }
    }

    template <int PANELS>
    void slices(const Pair* x, std::int64_t row, std::int64_t row_end, std::int64_t panel) const {
        for (std::int64_t begin = 0; begin < pairs; begin += kDepth) {
            const std::int64_t end = pairs - begin < kDepth ? pairs : begin + kDepth;
            for_row_tiles<(PANELS == 4 ? 2 : kRows)>(row_end - row, [&](std::ptrdiff_t first, auto tile_rows) {
                this->template tile<decltype(tile_rows)::value, PANELS>(x, row + first, panel, begin, end);
            });
        }
    }
};

}  // namespace octavo::OCTAVO_ISA

#endif  // __AVX512BF16__
