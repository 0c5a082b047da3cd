// The linear layer's inner product by fused multiply-adds in float32, over weights in float32, bfloat16 or int8.
//
// A step of k is one row of a panel: kPanel weights, widened to float32 in registers. Widening takes units that the
// multiply-adds leave idle, so that from four rows on it costs nothing; there is no unpacked copy.
#pragma once

#include "linear.h"

namespace octavo::OCTAVO_ISA {

template <typename T>
struct FmaProduct : PlainProduct<FmaProduct<T>, T> {
    using X = float;
    using Column = Vec;

    static constexpr std::int64_t kStepWeights = kPanel;  // of a panel
    static constexpr std::int64_t kDepth = 640;           // steps of a slice at most
    static constexpr std::int64_t steps(std::int64_t k) { return k; }

    // Rows of a tile: with two native vectors of sums each they fill the registers, but for the weights and an x.
#if defined(__AVX512F__)
    static constexpr int kTileRows = 12;
#elif defined(OCTAVO_AVX2) || defined(__aarch64__)
    static constexpr int kTileRows = 6;
#else
    static constexpr int kTileRows = 2;
#endif

    // Panels of a tile: with few rows, one has too few independent chains to hide the latency of the multiply-add.
    static constexpr int panels(int rows) {
        if (kNativeLanes < 8) return rows == 1 ? 2 : 1;
        return rows == 1 ? 4 : rows == 2 ? 2 : rows == 3 && sizeof(T) == sizeof(float) ? 2 : 1;
    }

    // One to three rows of float32 are bound by memory alone, and the processor's own prefetching does best.
    static constexpr bool fetches(std::int64_t rows) { return rows > 3 || sizeof(T) < sizeof(float); }
    static constexpr bool kSparesMemory = kTileRows == 12;  // smaller tiles lose more by it than attention gains

    static void load(const float* weights, Vec (&columns)[kPanelVecs]) {
#pragma GCC unroll 2
        for (int c = 0; c < kPanelVecs; ++c) columns[c] = OCTAVO_ISA::load(weights + c * kLanes);
    }

    // Two native vectors share one of words: the first in the low halves, the second in the high ones.
    static void load(const BFloat16* weights, Vec (&columns)[kPanelVecs]) {
#pragma GCC unroll 4
        for (int pair = 0; pair < kPanel / kNativeLanes / 2; ++pair) {
            NativeBits words;
            std::memcpy(&words, weights + 2 * pair * kNativeLanes, sizeof(words));
            part(columns, 2 * pair) = bit_cast<NativeFloat>(words << 16);
            part(columns, 2 * pair + 1) = bit_cast<NativeFloat>(words & 0xffff0000u);
        }
    }

    static void load(const std::int8_t* weights, Vec (&columns)[kPanelVecs]) {
#pragma GCC unroll 4
        for (int i = 0; i < kPanel / kNativeLanes; ++i) part(columns, i) = native_widen(weights + i * kNativeLanes);
    }

    static Vec broadcast(const float* x) { return OCTAVO_ISA::broadcast(*x); }
    static Vec multiply_add(const Vec& x, const Vec& column, const Vec& sum) { return fma(x, column, sum); }

    // The place in a panel of weight k of column c.
    static std::int64_t place(std::int64_t k, int c) {
        if (sizeof(T) != sizeof(BFloat16)) return k * kPanel + c;
        const int pair = c / (2 * kNativeLanes), lane = c % kNativeLanes, high = c / kNativeLanes % 2;
        return k * kPanel + (pair * kNativeLanes + lane) * 2 + high;
    }

    static constexpr bool kUnpacks = false;

    static std::size_t scratch_bytes(const LinearArguments&) { return 0; }
    static void prepare(const LinearArguments&, void*, std::int64_t, std::int64_t) {}
    static Activations<X> activations(const LinearArguments& a, const void*) { return {a.x, a.x_stride}; }

private:
    static NativeFloat& part(Vec (&columns)[kPanelVecs], int i) { return columns[i / kParts].part[i % kParts]; }

    static NativeFloat native_widen(const std::int8_t* p) {
#if defined(__AVX512F__)
        // Masked, for the plain intrinsics of GCC 12 warn of their own undefined registers.
        const __m512i words = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return _mm512_maskz_cvtepi32_ps(0xffff, words);
#elif defined(OCTAVO_AVX2)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
        typedef std::int8_t Bytes __attribute__((vector_size(kNativeLanes)));
        Bytes bytes;
        std::memcpy(&bytes, p, sizeof(bytes));
        return __builtin_convertvector(bytes, NativeFloat);
#endif
    }
};

}  // namespace octavo::OCTAVO_ISA
