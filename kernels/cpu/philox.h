// Philox4x32-10 and the Gumbel noise made of it, bit for bit the words that worker/philox.py describes.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). One call of Philox gives
// the words of four tokens that lie 256 apart.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

// The four words of each of 16 counters (c0[i], output index, purpose 0, 0).
struct PhiloxWords {
    std::uint32_t words[4][kLanes];
};

typedef std::uint64_t NativeWide __attribute__((vector_size(kNativeLanes * 4)));

// The 64-bit products of a's even lanes and a constant.
inline NativeWide multiply_even(NativeBits a, std::uint32_t constant) {
#if defined(__AVX512F__)
    return bit_cast<NativeWide>(_mm512_mul_epu32(bit_cast<__m512i>(a), _mm512_set1_epi32(static_cast<int>(constant))));
#elif defined(__AVX2__)
    return bit_cast<NativeWide>(_mm256_mul_epu32(bit_cast<__m256i>(a), _mm256_set1_epi32(static_cast<int>(constant))));
#else
    return (bit_cast<NativeWide>(a) & 0xffffffffu) * std::uint64_t{constant};
#endif
}

inline void multiply(NativeBits a, std::uint32_t constant, NativeBits& high, NativeBits& low) {
    const NativeWide even = multiply_even(a, constant);
    const NativeWide odd = multiply_even(bit_cast<NativeBits>(bit_cast<NativeWide>(a) >> 32), constant);
    low = bit_cast<NativeBits>((even & 0xffffffffu) | (odd << 32));
    high = bit_cast<NativeBits>((even >> 32) | (odd & 0xffffffff00000000u));
}

inline PhiloxWords philox(const std::uint32_t* c0, std::uint32_t output_index, std::uint64_t seed) {
    PhiloxWords result;
    for (int part = 0; part < kParts; ++part) {
        NativeBits x0;
        std::memcpy(&x0, c0 + part * kNativeLanes, sizeof(x0));
        NativeBits x1 = NativeBits{} + output_index, x2 = NativeBits{}, x3 = NativeBits{};
        std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; ++round) {
            NativeBits high0, low0, high1, low1;
            multiply(x0, 0xD2511F53u, high0, low0);
            multiply(x2, 0xCD9E8D57u, high1, low1);
            x0 = high1 ^ x1 ^ k0;
            x1 = low1;
            x2 = high0 ^ x3 ^ k1;
            x3 = low0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        const NativeBits words[4] = {x0, x1, x2, x3};
        for (int lane = 0; lane < 4; ++lane)
            std::memcpy(result.words[lane] + part * kNativeLanes, &words[lane], sizeof(NativeBits));
    }
    return result;
}

// -log(-log(u)) of 16 words, u = ((word >> 9) + 0.5) / 2^23: at most 16.64.
inline Vec gumbel(const std::uint32_t* words) {
    return each_part([&](int i) __attribute__((always_inline)) {
        NativeBits word;
        std::memcpy(&word, words + i * kNativeLanes, sizeof(word));
        const NativeFloat whole = __builtin_convertvector(bit_cast<NativeInt>(word >> 9), NativeFloat);
        const NativeFloat u = (whole + 0.5f) * 1.1920928955078125e-7f;
        return NativeFloat{} - native_log(NativeFloat{} - native_log(u));
    });
}

constexpr float kLargestGumbel = 16.7f;

}  // namespace octavo::OCTAVO_ISA
