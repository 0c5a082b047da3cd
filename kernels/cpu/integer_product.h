// The linear layer's inner product in integers (vpmaddwd: pairs of products of 16 bits, summed to 32), over weights in
// bfloat16 or int8, with AVX2 or AVX-512. Two instructions give sixteen products where float32 needs as many for each
// eight that it adds, and they run on four units instead of two: half as fast again was seen.
//
// Weights. An int8 weight is an integer already. One of bfloat16 is kept in 12 bits: its sign, the 8 bits s of its
// significand and a shift t from 0 to 6, for s * 2^t * scale, where the scale of a column is the power of two that
// gives its largest weight t = 6. Weights down to 2^-6 of that power of two keep all their bits, smaller ones are
// rounded to 2^-13 of it. So that large weights do not cost the others theirs, `fits` wants three quarters of a column,
// zeros aside, within 2^-7 of that power of two; a matrix with a column that differs is kept as it is (fma_product.h).
//
// Activations. Every 192 neighbours in k of a row become integers of 16 bits with a scale of their own, as large as
// the sums allow: by Cauchy and Schwarz no partial sum exceeds |x| |w|, and `limits` says for each such group how
// long x may be beside the longest w. Rounding changes a group by at most 2^-10 of its norm, 2^-6 where its largest
// element is beyond 2^60 or below 2^-60 and stands for the norm (to bfloat16: 2^-9 of each
// element; so where an element is a thousand times the others and meets weights near zero, bfloat16 is closer).
//
// Sums within a group are exact. Groups are added in float32, in one chain of fused multiply-adds from the first to
// the last, in units of the weights: x of 1e30 and more may overflow. Infinity or NaN in x makes its row NaN. The result
// differs from that of fma_product.h, which computes in float32 throughout; weights in float32, exact mode among them,
// never come here.
#pragma once

#include "linear.h"

#if defined(OCTAVO_INTEGER_PRODUCT)

#include <cmath>
#include <limits>
#include <type_traits>

namespace octavo::OCTAVO_ISA {

// Part of a step's weights: 32 bytes of significands, then 16 of signs and shifts, two in each.
struct Shifted {
    std::uint8_t bits;
};

// T: Shifted, std::int8_t, or what both are unpacked to, std::int16_t.
template <typename T>
struct IntegerProduct {
    using X = std::uint32_t;  // two int16, the lower k in the low half; behind a group of them its scale, a float
    using Weight = T;
    using Source = std::conditional_t<std::is_same_v<T, Shifted>, BFloat16, T>;

    // A step is a pair of k. The first of two vectors has the first half of the columns, each with both its k.
    static_assert(kPanel == 2 * kNativeLanes);
    static constexpr std::int64_t kStepWeights = (std::is_same_v<T, Shifted> ? 6 : 4) * kNativeLanes;
    static constexpr std::int64_t kGroup = 96;  // steps
    static constexpr std::int64_t kDepth = 288;
    static_assert(kDepth % kGroup == 0);
    static constexpr std::int64_t steps(std::int64_t k) { return (k + 1) / 2; }
    static constexpr std::int64_t groups(std::int64_t k) { return (steps(k) + kGroup - 1) / kGroup; }

#if defined(__AVX512F__)
    static constexpr int kTileRows = 6;
    static constexpr int panels(int rows) { return rows <= 3 ? 4 : 2; }
#else
    static constexpr int kTileRows = 5;
    static constexpr int panels(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#endif
    static constexpr bool fetches(std::int64_t) { return true; }
    static constexpr bool kSparesMemory = false;

    static constexpr bool kScaled = true;
    static constexpr std::int64_t kPanelHeader = kPanel * sizeof(float);
    static constexpr std::int64_t header_bytes(std::int64_t k) {
        return (groups(k) * static_cast<std::int64_t>(sizeof(float)) + 63) / 64 * 64;
    }

    static inline __attribute__((always_inline)) void load(const T* weights, NativeInt (&columns)[2]) {
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(weights);
        if constexpr (std::is_same_v<T, Shifted>) {
            const __m128i powers = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, 0, -1, -2, -4, -8, -16, -32, -64, 0);
            NativeBits half_shifts{};
            for (int i = kNativeLanes / 2; i < kNativeLanes; ++i) half_shifts[i] = 4;
            const NativeBits places = load_half_twice(bytes + 4 * kNativeLanes) >> half_shifts;
            const NativeInt factors = look_up(powers, places & 0x0f0f0f0fu);
            const NativeBits significands = load_bits(bytes);
            columns[0] = multiply_bytes(significands & 0x00ff00ffu, factors);
            columns[1] = multiply_bytes(significands & 0xff00ff00u, factors);
        } else if constexpr (sizeof(T) == 1) {
            columns[0] = widen_bytes(bytes);
            columns[1] = widen_bytes(bytes + 2 * kNativeLanes);
        } else {
            columns[0] = bit_cast<NativeInt>(load_bits(bytes));
            columns[1] = bit_cast<NativeInt>(load_bits(bytes + 4 * kNativeLanes));
        }
    }

    static constexpr bool kUnpacks = sizeof(T) == 1;
    using Unpacked = IntegerProduct<std::int16_t>;

    static inline __attribute__((always_inline)) void multiply_add(const X* pair, const NativeInt (&columns)[2],
                                                                   NativeInt& first, NativeInt& second) {
#if defined(__AVX512F__)
        const NativeInt x = NativeInt{} + static_cast<std::int32_t>(*pair);
        first = multiply_add_pairs(x, columns[0], first);
        second = multiply_add_pairs(x, columns[1], second);
#else
        // In one piece: the compiler would load and multiply ahead, for which there are no registers.
        NativeInt x, product;
        asm("vpbroadcastd %4, %2\n\t"
            "vpmaddwd %5, %2, %3\n\t"
            "vpmaddwd %6, %2, %2\n\t"
            "vpaddd %3, %0, %0\n\t"
            "vpaddd %2, %1, %1"
            : "+x"(first), "+x"(second), "=&x"(x), "=&x"(product)
            : "m"(*pair), "x"(columns[0]), "x"(columns[1]));
#endif
    }

    // Whether 12 bits are enough for some columns.
    static bool fits(const BFloat16* weights, int columns, std::int64_t k) {
        for (int c = 0; c < columns; ++c)
            if (!fits(weights + c * k, k)) return false;
        return true;
    }

    static bool fits(const BFloat16* column, std::int64_t k) {
        const int top = top_exponent(column, k);
        if (top == kInfinite) return false;
        std::int64_t small = 0, some = 0;
        for (std::int64_t i = 0; i < k; ++i) {
            const int size = column[i].bits & 0x7fff;
            some += size != 0;
            small += size != 0 && (size >> 7) + 7 < top;
        }
        return some == 0 || (top >= kLeastTop && 4 * small <= some);
    }

    static void put(const Source* weights, const float* scales, int columns, std::int64_t k, char* header, T* panel) {
        auto* scale = reinterpret_cast<float*>(header);
        if (scales != nullptr) std::memcpy(scale, scales, static_cast<std::size_t>(columns) * sizeof(float));
        for (int c = 0; c < columns; ++c) put(weights + c * k, k, c, panel, scale + c);
    }

    static void put(const Source* column, std::int64_t k, int c, T* panel, float* scale) {
        const int vector = c / kNativeLanes, lane = c % kNativeLanes;
        T* const first = panel + (std::is_same_v<T, Shifted> ? lane * 4 + vector : (vector * kNativeLanes + lane) * 2);
        if constexpr (std::is_same_v<T, Shifted>) {
            const int top = top_exponent(column, k), half = kNativeLanes / 2, high = lane / half * 4;
            const float per_unit = units(top);
            *scale = 1 / per_unit;
            T* const factors = panel + 4 * kNativeLanes + (lane % half * 4 + vector);
            for (std::int64_t i = 0; i < k; i += kLanes) {
                std::uint8_t significands[kLanes], shifts[kLanes];
                split(load_up_to(column + i, k - i) * broadcast(per_unit), significands, shifts);
                for (std::int64_t j = 0; j < kLanes && i + j < k; ++j) {
                    const std::int64_t at = (i + j) / 2 * kStepWeights + j % 2 * 2;
                    first[at].bits = significands[j];
                    factors[at].bits |= static_cast<std::uint8_t>(shifts[j] << high);
                }
            }
        } else {
            for (std::int64_t i = 0; i < k; ++i) first[i / 2 * kStepWeights + i % 2] = column[i];
        }
    }

    // How long group `group` of x may be, rounded to integers, beside the columns of these panels of k / 2 steps each.
    static float limit(const char* panels, std::int64_t count, std::int64_t panel_bytes, std::int64_t k,
                       std::int64_t group) {
        const std::int64_t begin = group * kGroup, end = begin + kGroup < steps(k) ? begin + kGroup : steps(k);
        float longest = 1;
        for (std::int64_t p = 0; p < count; ++p) {
            const T* panel = reinterpret_cast<const T*>(panels + p * panel_bytes);
            NativeFloat squares[2] = {};
            for (std::int64_t i = begin; i < end; ++i) {
                NativeInt columns[2];
                load(panel + i * kStepWeights, columns);
                for (int c = 0; c < 2; ++c)
                    squares[c] += __builtin_convertvector(multiply_add_pairs(columns[c], columns[c], NativeInt{}), NativeFloat);
            }
            for (int c = 0; c < 2; ++c)
                for (int i = 0; i < kNativeLanes; ++i) longest = squares[c][i] > longest ? squares[c][i] : longest;
        }
        // 2^-10 for what float32 rounds on the way; 7 is the length of 192 errors of rounding, a half each.
        return 0x1p31f * (1 - 0x1p-10f) / std::sqrt(longest) - 7;
    }

    static std::size_t scratch_bytes(const LinearArguments& a) {
        return static_cast<std::size_t>(a.rows * x_stride(a)) * sizeof(X);
    }

    static void prepare(const LinearArguments& a, void* scratch, std::int64_t begin, std::int64_t end) {
        const float* limits = static_cast<const float*>(a.packed);
        for (std::int64_t row = begin; row < end; ++row) {
            const float* x = a.x + row * a.x_stride;
            X* out = static_cast<X*>(scratch) + row * x_stride(a);
            for (std::int64_t group = 0; group < groups(a.k); ++group, out += kGroup + 1)
                quantize(x + group * 2 * kGroup, a.k - group * 2 * kGroup, limits[group], out);
        }
    }

    static Activations<X> activations(const LinearArguments& a, const void* scratch) {
        return {static_cast<const X*>(scratch), x_stride(a)};
    }
    static std::int64_t x_offset(std::int64_t step) { return step / kGroup * (kGroup + 1); }

private:
    // A cache line over the row, or long rows would compete for cache sets.
    static std::int64_t x_stride(const LinearArguments& a) { return groups(a.k) * (kGroup + 1) / 16 * 16 + 32; }

    static constexpr int kInfinite = 255, kLeastTop = 14;  // exponents as stored; from the latter on, units() is finite

    static NativeBits load_bits(const std::uint8_t* p) {
        NativeBits bits;
        std::memcpy(&bits, p, sizeof(bits));
        return bits;
    }

#if defined(__AVX512F__)
    static __m256i load_half(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static NativeBits load_half_twice(const std::uint8_t* p) {
        return bit_cast<NativeBits>(_mm512_maskz_broadcast_i64x4(0xff, load_half(p)));
    }
    static NativeInt widen_bytes(const std::uint8_t* p) {
        return bit_cast<NativeInt>(_mm512_cvtepi8_epi16(load_half(p)));
    }
    static NativeInt look_up(__m128i table, NativeBits places) {
        const __m512i tables = _mm512_maskz_broadcast_i32x4(0xffff, table);
        return bit_cast<NativeInt>(_mm512_shuffle_epi8(tables, bit_cast<__m512i>(places)));
    }
    // Unsigned bytes times signed ones, neighbours added.
    static NativeInt multiply_bytes(NativeBits bytes, NativeInt factors) {
        return bit_cast<NativeInt>(_mm512_maddubs_epi16(bit_cast<__m512i>(bytes), bit_cast<__m512i>(factors)));
    }
    static NativeBits larger(NativeBits a, NativeBits b) {
        return bit_cast<NativeBits>(_mm512_maskz_max_epu32(0xffff, bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
    }
    static __m256i round_to_words(const Vec& x) {
        return _mm512_maskz_cvtsepi32_epi16(0xffff, _mm512_maskz_cvtps_epi32(0xffff, x.part[0]));
    }
    static NativeInt multiply_add_pairs(NativeInt a, NativeInt b, NativeInt sum) {
#if defined(__AVX512VNNI__)
        return bit_cast<NativeInt>(
            _mm512_dpwssd_epi32(bit_cast<__m512i>(sum), bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#else
        return sum + bit_cast<NativeInt>(_mm512_madd_epi16(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#endif
    }
#else
    static __m128i load_half(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
    static NativeBits load_half_twice(const std::uint8_t* p) {
        return bit_cast<NativeBits>(_mm256_broadcastsi128_si256(load_half(p)));
    }
    static NativeInt widen_bytes(const std::uint8_t* p) {
        return bit_cast<NativeInt>(_mm256_cvtepi8_epi16(load_half(p)));
    }
    static NativeInt look_up(__m128i table, NativeBits places) {
        return bit_cast<NativeInt>(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bit_cast<__m256i>(places)));
    }
    static NativeInt multiply_bytes(NativeBits bytes, NativeInt factors) {
        return bit_cast<NativeInt>(_mm256_maddubs_epi16(bit_cast<__m256i>(bytes), bit_cast<__m256i>(factors)));
    }
    static NativeBits larger(NativeBits a, NativeBits b) {
        return bit_cast<NativeBits>(_mm256_max_epu32(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
    }
    static __m256i round_to_words(const Vec& x) {
        const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.part[0]), _mm256_cvtps_epi32(x.part[1]));
        return _mm256_permute4x64_epi64(packed, 0xd8);
    }
    static NativeInt multiply_add_pairs(NativeInt a, NativeInt b, NativeInt sum) {
        return sum + bit_cast<NativeInt>(_mm256_madd_epi16(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
    }
#endif

    static int top_exponent(const BFloat16* column, std::int64_t k) {
        std::uint16_t most = 0;
        for (std::int64_t i = 0; i < k; ++i) {
            const auto size = static_cast<std::uint16_t>(column[i].bits & 0x7fff);
            most = size > most ? size : most;
        }
        return most >> 7;
    }

    // What a column is multiplied with to become integers of 255 * 2^6 at most.
    static float units(int top) { return std::ldexp(1.0f, 127 + 7 + 6 - (top < kLeastTop ? kLeastTop : top)); }

    // Sixteen weights in units of their column, rounded -> their significands, and signs (8) with shifts.
    static void split(const Vec& weights, std::uint8_t* significands, std::uint8_t* shifts) {
        float units[kLanes];
        store(units, weights);
        for (int i = 0; i < kLanes; ++i) {
            const auto whole = static_cast<std::int32_t>(std::nearbyint(units[i]));
            const std::uint32_t size = static_cast<std::uint32_t>(whole < 0 ? -whole : whole);
            const int bits = size == 0 ? 0 : 32 - __builtin_clz(size), shift = bits > 8 ? bits - 8 : 0;
            significands[i] = static_cast<std::uint8_t>(size >> shift);
            shifts[i] = static_cast<std::uint8_t>(shift | (whole < 0 ? 8 : 0));
        }
    }

    // `count` elements of x, those of a group at most -> integers and their scale.
    static void quantize(const float* x, std::int64_t count, float limit, X* out) {
        constexpr int kSize = 2 * kGroup;
        alignas(64) float padded[kSize];  // cleared where it is used: that takes longer than all the rest
        if (count < kSize) {
            std::memset(padded, 0, sizeof(padded));
            std::memcpy(padded, x, static_cast<std::size_t>(count) * sizeof(float));
            x = padded;
        }
        Vec squares = zero();
        NativeBits most{};
        for (int i = 0; i < kSize; i += kLanes) {
            const Vec part = OCTAVO_ISA::load(x + i);
            squares = fma(part, part, squares);
#pragma GCC unroll 2
            for (int p = 0; p < kParts; ++p) most = larger(most, bit_cast<NativeBits>(part.part[p]) << 1);
        }
        // As integers, magnitudes are ordered like the numbers, with infinity and NaN above all.
        const float largest = bit_cast<float>(largest_lane(most) >> 1);
        float length = std::sqrt(reduce_add(squares));
        if (!(largest > 0x1p-60f && largest < 0x1p60f)) {  // squares that overflow or vanish, or no numbers
            const bool finite = largest <= std::numeric_limits<float>::max();
            if (!finite || largest < 0x1p-110f) {
                std::memset(out, 0, kGroup * sizeof(X));
                out[kGroup] = bit_cast<X>(finite ? 0.0f : std::numeric_limits<float>::quiet_NaN());
                return;
            }
            length = largest;  // which is no shorter than this times sqrt(kSize)
            limit /= std::sqrt(static_cast<float>(kSize));
        }
        const float by_length = limit / length, by_largest = 32767 / largest;
        const float factor = by_length < by_largest ? by_length : by_largest;
        const Vec factors = broadcast(factor);
        for (int i = 0; i < kSize; i += kLanes) {
            const __m256i rounded = round_to_words(OCTAVO_ISA::load(x + i) * factors);
            std::memcpy(out + i / 2, &rounded, sizeof(rounded));
        }
        out[kGroup] = bit_cast<X>(1 / factor);
    }

    static std::uint32_t largest_lane(NativeBits x) {
#if defined(__AVX512F__)
        return _mm512_reduce_max_epu32(bit_cast<__m512i>(x));
#else
        const auto bits = bit_cast<__m256i>(x);
        __m128i most = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
        most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
        most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
        return static_cast<std::uint32_t>(_mm_cvtsi128_si32(most));
#endif
    }
};

}  // namespace octavo::OCTAVO_ISA

#endif  // OCTAVO_INTEGER_PRODUCT
