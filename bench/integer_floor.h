// The most that products of 16-bit integers, summed to 32, come to with AVX2: vpmaddwd and vpaddd over what lies in the
// first cache level, five rows by two vectors, as no chain of registers alone spreads them over the units as well.
#pragma once

#include <cstdint>

#if defined(__AVX2__) && !defined(__AVX512F__)
#define OCTAVO_INTEGER_FLOOR
#include <immintrin.h>

constexpr int kIntegerRows = 5, kIntegerSteps = 64;
constexpr double kIntegerOperations = 2.0 * 2 * 16 * kIntegerRows * kIntegerSteps;  // of a round

inline void integer_round() {
  alignas(32) static const std::int16_t weights[kIntegerSteps * 32] = {};
  alignas(32) static const std::int32_t x[kIntegerRows][kIntegerSteps] = {};
  __m256i sums[kIntegerRows][2] = {};
#pragma GCC unroll 1
  for (int step = 0; step < kIntegerSteps; ++step) {
    const auto* columns = reinterpret_cast<const __m256i*>(weights + step * 32);
    const __m256i first = _mm256_load_si256(columns), second = _mm256_load_si256(columns + 1);
#pragma GCC unroll 5
    for (int row = 0; row < kIntegerRows; ++row) {
      __m256i pair, product;
      asm volatile(
          "vpbroadcastd %4, %2\n\t"
          "vpmaddwd %5, %2, %3\n\t"
          "vpmaddwd %6, %2, %2\n\t"
          "vpaddd %3, %0, %0\n\t"
          "vpaddd %2, %1, %1"
          : "+x"(sums[row][0]), "+x"(sums[row][1]), "=&x"(pair), "=&x"(product)
          : "m"(x[row][step]), "x"(first), "x"(second));
    }
  }
}
#endif
