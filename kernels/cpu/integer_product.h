// The linear layer's inner product in integers (AVX2's vpmaddwd: pairs of products of 16 bits, summed to 32), over
// weights in bfloat16 or int8. Two instructions give sixteen products where float32 needs as many for each eight that
// it adds, and they run on four units instead of two: half as fast again was seen.
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

    // A step is a pair of k. The first of two vectors has columns 0 to 7, each with both its k, the second 8 to 15.
    static constexpr std::int64_t kStepWeights = std::is_same_v<T, Shifted> ? 48 : 2 * kPanel;
    static constexpr std::int64_t kGroup = 96;  // steps
    static constexpr std::int64_t kDepth = 288;
    static_assert(kDepth % kGroup == 0);
    static constexpr std::int64_t steps(std::int64_t k) { return (k + 1) / 2; }
    static constexpr std::int64_t groups(std::int64_t k) { return (steps(k) + kGroup - 1) / kGroup; }

    static constexpr int kTileRows = 5;
    static constexpr int panels(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
    static constexpr bool fetches(std::int64_t) { return true; }

    static constexpr bool kScaled = true;
    static constexpr std::int64_t header_bytes(std::int64_t k) {
        return (groups(k) * static_cast<std::int64_t>(sizeof(float)) + 63) / 64 * 64;
    }

    static inline __attribute__((always_inline)) void load(const T* weights, __m256i (&columns)[2]) {
        if constexpr (std::is_same_v<T, Shifted>) {
            const __m256i powers = _mm256_setr_epi8(1, 2, 4, 8, 16, 32, 64, 0, -1, -2, -4, -8, -16, -32, -64, 0,  //
                                                    1, 2, 4, 8, 16, 32, 64, 0, -1, -2, -4, -8, -16, -32, -64, 0);
            const __m256i halves = _mm256_broadcastsi128_si256(load_128(weights + 32));
            const __m256i places = _mm256_srlv_epi32(halves, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
            const __m256i factors = _mm256_shuffle_epi8(powers, _mm256_and_si256(places, _mm256_set1_epi8(15)));
            const __m256i significands = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
            const __m256i even = _mm256_set1_epi16(0xff);
            columns[0] = _mm256_maddubs_epi16(_mm256_and_si256(significands, even), factors);
            columns[1] = _mm256_maddubs_epi16(_mm256_andnot_si256(even, significands), factors);
        } else if constexpr (sizeof(T) == 1) {
            columns[0] = _mm256_cvtepi8_epi16(load_128(weights));
            columns[1] = _mm256_cvtepi8_epi16(load_128(weights + 16));
        } else {
            columns[0] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
            columns[1] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + 16));
        }
    }

    static constexpr bool kUnpacks = sizeof(T) == 1;
    using Unpacked = IntegerProduct<std::int16_t>;
    static constexpr bool kTileUnpacks = true;
    static_assert(panels(kTileRows) == 1, "a tile leaves what it unpacks of one panel");

    // In one piece: the compiler would load and multiply ahead, for which there are no registers.
    static inline __attribute__((always_inline)) void multiply_add(const X* pair, const __m256i (&columns)[2],
                                                                   __m256i& first, __m256i& second) {
        __m256i x, product;
        asm("vpbroadcastd %4, %2\n\t"
            "vpmaddwd %5, %2, %3\n\t"
            "vpmaddwd %6, %2, %2\n\t"
            "vpaddd %3, %0, %0\n\t"
            "vpaddd %2, %1, %1"
            : "+x"(first), "+x"(second), "=&x"(x), "=&x"(product)
            : "m"(*pair), "x"(columns[0]), "x"(columns[1]));
    }

    // Whether 12 bits are enough for a column.
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

    static void put(const Source* column, std::int64_t k, int c, T* panel, float* scale) {
        T* const first = panel + (std::is_same_v<T, Shifted> ? c % 8 * 4 + c / 8 : c / 8 * 16 + c % 8 * 2);
        if constexpr (std::is_same_v<T, Shifted>) {
            const int top = top_exponent(column, k), high = c % 8 / 4 * 4;
            const float per_unit = units(top);
            *scale = 1 / per_unit;
            T* const factors = panel + 32 + (c % 4 * 4 + c / 8);
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
            __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            for (std::int64_t i = begin; i < end; ++i) {
                __m256i columns[2];
                load(panel + i * kStepWeights, columns);
                for (int c = 0; c < 2; ++c)
                    squares[c] += _mm256_cvtepi32_ps(_mm256_madd_epi16(columns[c], columns[c]));
            }
            for (int c = 0; c < 2; ++c)
                for (int i = 0; i < 8; ++i) longest = squares[c][i] > longest ? squares[c][i] : longest;
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

    static __m128i load_128(const T* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

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
        __m256i parts[2][2];
        for (int i = 0; i < 2; ++i) {
            const __m256i whole = _mm256_cvtps_epi32(weights.part[i]), size = _mm256_abs_epi32(whole);
            const __m256i exponent = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(size)), 23);
            const __m256i shift = _mm256_max_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(127 + 7)), __m256i{});
            parts[0][i] = _mm256_srlv_epi32(size, shift);
            parts[1][i] = _mm256_or_si256(shift, _mm256_slli_epi32(_mm256_srli_epi32(whole, 31), 3));
        }
        for (int j = 0; j < 2; ++j) {
            const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(parts[j][0], parts[j][1]), 0xd8);
            const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
            std::memcpy(j == 0 ? significands : shifts, &bytes, sizeof(bytes));
        }
    }

    // `count` elements of x, those of a group at most -> integers and their scale.
    static void quantize(const float* x, std::int64_t count, float limit, X* out) {
        constexpr int kSize = 2 * kGroup;
        alignas(32) float padded[kSize];  // cleared where it is used: that takes longer than all the rest
        if (count < kSize) {
            std::memset(padded, 0, sizeof(padded));
            std::memcpy(padded, x, static_cast<std::size_t>(count) * sizeof(float));
            x = padded;
        }
        // As integers, magnitudes are ordered like the numbers, with infinity and NaN above all.
        __m256i most = _mm256_setzero_si256();
        NativeFloat even{}, odd{};  // in registers: an array of two would wait for its own stores
        const auto add = [&](NativeFloat part, NativeFloat& squares) {
            most = _mm256_max_epu32(most, _mm256_slli_epi32(bit_cast<__m256i>(part), 1));
            squares = native_fma(part, part, squares);
        };
        for (int i = 0; i < kSize; i += 2 * kNativeLanes) {
            add(native_load(x + i), even);
            add(native_load(x + i + kNativeLanes), odd);
        }
        const float largest = bit_cast<float>(largest_lane(most) >> 1);
        float length = std::sqrt(add_lanes(even + odd));
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
        const NativeFloat factors = native_broadcast(factor);
        for (int i = 0; i < kSize; i += 2 * kNativeLanes) {
            const __m256i low = _mm256_cvtps_epi32(native_load(x + i) * factors);
            const __m256i high = _mm256_cvtps_epi32(native_load(x + i + kNativeLanes) * factors);
            const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
            std::memcpy(out + i / 2, &packed, sizeof(packed));
        }
        out[kGroup] = bit_cast<X>(1 / factor);
    }

    static std::uint32_t largest_lane(__m256i x) {
        __m128i most = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
        most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
        return static_cast<std::uint32_t>(_mm_cvtsi128_si32(most));
    }

    static float add_lanes(NativeFloat x) {
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
    }
};

}  // namespace octavo::OCTAVO_ISA

#endif  // OCTAVO_INTEGER_PRODUCT
