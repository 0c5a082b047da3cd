// The linear layer's inner product by the processor's dot product of bfloat16 pairs (AVX512-BF16, vdpbf16ps), over
// weights in bfloat16 or int8.
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

template <typename T>
struct DotProduct : PlainProduct<DotProduct<T>, T> {
    using X = std::uint32_t;  // two bfloat16, the lower k in the low half
    using Column = __m512bh;

    static constexpr std::int64_t kStepWeights = 2 * kPanel;
    static constexpr std::int64_t kDepth = 512;
    static constexpr std::int64_t steps(std::int64_t k) { return (k + 1) / 2; }

    static constexpr int kTileRows = 6;  // with four vectors of sums each
    static constexpr int panels(int rows) { return rows <= 2 ? 4 : 2; }

    static constexpr bool fetches(std::int64_t) { return true; }

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

    static __m512bh broadcast(const X* pair) { return bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*pair))); }

    static Vec multiply_add(const __m512bh& x, const __m512bh& column, const Vec& sum) {
        return Vec{{_mm512_dpbf16_ps(sum.part[0], x, column)}};
    }

    static std::int64_t place(std::int64_t k, int c) { return k / 2 * kStepWeights + 2 * c + k % 2; }

    // Widening int8 takes as long as the dot products of one tile: more tiles share an unpacked slice.
    using Unpacked = DotProduct<BFloat16>;
    static constexpr bool kUnpacks = sizeof(T) == 1;

    static void unpack(const T* weights, BFloat16* out) {
        __m512bh columns[kPanelVecs];
        load(weights, columns);
        std::memcpy(out, columns, sizeof(columns));
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
