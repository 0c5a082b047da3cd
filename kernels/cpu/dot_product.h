// The linear layer's inner product by the processor's dot product of bfloat16 pairs (AVX512-BF16, vdpbf16ps), over
// weights in bfloat16 or int8.
//
// Weights in bfloat16 are kept in 12 bits: the low byte of their 16 as it is, which ends in the exponent's last bit, and
// a code of four bits for the high one, the sign and which of seven neighbouring values the rest of the exponent has; or
// zero. A panel has a table of what its codes stand for, up to its largest weight: weights down to 2^-12 of that one's
// power of two keep all their bits, smaller ones become zero or the least that has a code, whichever is nearer. A matrix
// with a column that would lose more than 2^-10 of its norm stays in 16 bits. Few rows are bound by reading weights, of
// which there are then three quarters; decoding takes what 2.5 rows' products do, and up to 12 rows share it.
//
// A step of k is a pair: a 32-bit word holds two neighbours in k, zeros after k = K - 1, what a lane of the instruction
// multiplies. Activations are rounded to bfloat16 once per call, into memory that all threads read; int8 weights widen
// to bfloat16 exactly.
//
// Numerics. x is rounded to nearest even (subnormal values to zero, NaN stays NaN), a relative error of up to 2^-9 per
// element. Products are exact; a lane adds that of the odd k and then that of the even k to its float32 sum, each
// addition rounded to nearest even, subnormal sums flushed to zero. The result differs from that of the fused
// multiply-adds in fma_product.h, so that a processor without the instruction gives slightly other values; weights in
// float32, exact mode among them, never come here.
#pragma once

#if defined(__AVX512BF16__)

#include "linear.h"

namespace octavo::OCTAVO_ISA {

// Part of a step's weights: 64 low bytes, then 32 of codes, two in each.
struct Coded {
    std::uint8_t bits;
};

// T: BFloat16, or what is unpacked to it, Coded or std::int8_t.
template <typename T>
struct DotProduct : PlainProduct<DotProduct<T>, T> {
    using X = std::uint32_t;  // two bfloat16, the lower k in the low half
    using Column = __m512bh;
    static constexpr bool kCoded = std::is_same_v<T, Coded>;
    using Source = std::conditional_t<kCoded, BFloat16, T>;

    static constexpr std::int64_t kStepWeights = (kCoded ? 3 : 2) * kPanel;
    static constexpr std::int64_t kDepth = 512;
    static constexpr std::int64_t steps(std::int64_t k) { return (k + 1) / 2; }

    static constexpr int kTileRows = 12;
    static constexpr int panels(int rows) { return rows <= 2 ? 4 : rows <= 6 ? 2 : 1; }

    static constexpr bool fetches(std::int64_t) { return true; }
    static constexpr bool kSparesMemory = true;  // time of it, where there are many rows, for a BackgroundFetch

    static void load(const BFloat16* weights, __m512bh (&columns)[kPanelVecs]) {
#pragma GCC unroll 2
        for (int c = 0; c < kPanelVecs; ++c) std::memcpy(&columns[c], weights + 2 * c * kLanes, sizeof(columns[c]));
    }

    static void load(const std::int8_t* weights, __m512bh (&columns)[kPanelVecs]) {
#pragma GCC unroll 2
        for (int c = 0; c < kPanelVecs; ++c) {
            const std::int8_t* pairs = weights + 2 * c * kLanes;
            columns[c] = _mm512_cvtne2ps_pbh(widen(pairs + kLanes), widen(pairs));
        }
    }

    struct Table {  // the high byte that a code stands for, the same in each quarter
        NativeBits bytes;
    };
    static constexpr std::int64_t kPanelHeader =
        kCoded ? sizeof(Table) : PlainProduct<DotProduct<T>, T>::kPanelHeader;

    static Table table(const char* header) {
        Table table{};
        if constexpr (kCoded) std::memcpy(&table, header, sizeof(table));
        return table;
    }

    static inline __attribute__((always_inline)) void decode(const T* weights, Table table,
                                                             __m512bh (&columns)[kPanelVecs]) {
        if constexpr (kCoded) {
            const __m512i shifts = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0), nibble = _mm512_set1_epi8(15);
            const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 64));
            const __m512i spread = _mm512_maskz_broadcast_i64x4(0xff, codes);
            const __m512i places = _mm512_and_si512(_mm512_maskz_srlv_epi64(0xff, spread, shifts), nibble);
            const __m512i high = _mm512_shuffle_epi8(bit_cast<__m512i>(table.bytes), places), low = _mm512_loadu_si512(weights);
            columns[0] = bit_cast<__m512bh>(_mm512_unpacklo_epi8(low, high));
            columns[1] = bit_cast<__m512bh>(_mm512_unpackhi_epi8(low, high));
        } else {
            load(weights, columns);
        }
    }

    static __m512bh broadcast(const X* pair) { return bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*pair))); }

    static Vec multiply_add(const __m512bh& x, const __m512bh& column, const Vec& sum) {
        return Vec{{_mm512_dpbf16_ps(sum.part[0], x, column)}};
    }

    static std::int64_t place(std::int64_t k, int c) { return k / 2 * kStepWeights + 2 * c + k % 2; }

    using Unpacked = DotProduct<BFloat16>;
    static constexpr bool kUnpacks = sizeof(T) == 1;

    // Whether 12 bits are enough for the columns of a panel.
    static bool fits(const BFloat16* weights, int columns, std::int64_t k) {
        const int base = base_of(weights, columns, k);
        if (base > kMaxBase) return false;
        for (int c = 0; c < columns; ++c) {
            double lost = 0, all = 0;
            for (std::int64_t i = 0; i < k; ++i) {
                const int size = weights[c * k + i].bits & 0x7fff;
                const double weight = value(size), error = weight - value(kept(size, base));
                lost += error * error;
                all += weight * weight;
            }
            if (lost > 0x1p-20 * all) return false;
        }
        return true;
    }

    static void put(const Source* weights, const float* scales, int columns, std::int64_t k, char* header, T* panel) {
        if constexpr (!kCoded) {
            PlainProduct<DotProduct<T>, T>::put(weights, scales, columns, k, header, panel);
        } else {
            const int base = base_of(weights, columns, k);
            for (int i = 0; i < 64; ++i)
                header[i] = static_cast<char>((i & 8) << 4 | ((i & 7) == 0 ? 0 : base + (i & 7)));
            for (int c = 0; c < columns; ++c)
                for (std::int64_t i = 0; i < k; ++i) {
                    const int bits = weights[c * k + i].bits, size = kept(bits & 0x7fff, base);
                    const std::int64_t byte = c % 16 / 4 * 16 + c / 16 * 8 + c % 4 * 2 + i % 2;
                    const int code = bits >> 15 << 3 | (size == 0 ? 0 : (size >> 8) - base);
                    T* step = panel + i / 2 * kStepWeights;
                    step[byte].bits = static_cast<std::uint8_t>(size);
                    step[64 + byte % 32].bits |= static_cast<std::uint8_t>(code << byte / 32 * 4);
                }
        }
    }

    static std::size_t scratch_bytes(const LinearArguments& a) {
        return static_cast<std::size_t>(a.rows * x_stride(a)) * sizeof(X);
    }

    static void prepare(const LinearArguments& a, void* scratch, std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const float* x = a.x + row * a.x_stride;
            X* out = static_cast<X*>(scratch) + row * x_stride(a);
            for (std::int64_t i = 0; i < 2 * steps(a.k); i += kLanes) {
                const __m256bh rounded = _mm512_cvtneps_pbh(load_up_to(x + i, a.k - i).part[0]);
                std::memcpy(out + i / 2, &rounded, sizeof(rounded));
            }
        }
    }

    static Activations<X> activations(const LinearArguments& a, const void* scratch) {
        return {static_cast<const X*>(scratch), x_stride(a)};
    }

private:
    static constexpr int kMaxBase = 127 - 8;  // more would have infinity and NaN among the codes

    // What a magnitude, as bits, is kept as: itself, or the nearer of zero and the least that has a code.
    static int kept(int size, int base) {
        const int least = (base + 1) << 8;
        return size >= least ? size : size > least - 128 ? least : 0;
    }

    static double value(int size) { return bit_cast<float>(static_cast<std::uint32_t>(size) << 16); }

    // Half the exponent of a weight of code 0, were it none of zero.
    static int base_of(const BFloat16* weights, int columns, std::int64_t k) {
        int most = 7 << 8;
        for (std::int64_t i = 0; i < columns * k; ++i) {
            const int size = weights[i].bits & 0x7fff;
            most = size > most ? size : most;
        }
        return (most >> 8) - 7;
    }

    // A cache line over the row, or long rows would compete for cache sets.
    static std::int64_t x_stride(const LinearArguments& a) {
        return (steps(a.k) + kLanes - 1) / kLanes * kLanes + kLanes;
    }

    // Masked, for the plain intrinsics of GCC 12 warn of their own undefined registers.
    static __m512 widen(const std::int8_t* p) {
        const __m512i words = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return _mm512_maskz_cvtepi32_ps(0xffff, words);
    }
};

}  // namespace octavo::OCTAVO_ISA

#endif  // __AVX512BF16__
