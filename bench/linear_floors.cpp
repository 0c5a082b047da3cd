// What the machine can do at most while the linear layers are measured: called between them, in their process.
#include <immintrin.h>
#include <omp.h>

#include <cstddef>
#include <cstdint>

#include "integer_floor.h"

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::uint64_t Words __attribute__((vector_size(64)));
constexpr int kChains = 12;  // enough of them to hide the latency

// Hides from the compiler what is in a register, so that it neither drops nor merges the chains.
template <typename Register>
inline void opaque(Register& value) {
    asm volatile("" : "+v"(value));
}

}  // namespace

// Reads `bytes`, a multiple of 256 for each thread, as several streams: from one alone the processor fetches ahead too
// little, and would show a third of what its memory gives.
extern "C" void floor_read(const char* data, std::int64_t bytes, int threads) {
    constexpr int kStreams = 4, kAhead = 1024;
#pragma omp parallel num_threads(threads)
    {
        const std::int64_t whole = bytes / omp_get_num_threads(), part = whole / kStreams;
        const char* begin = data + whole * omp_get_thread_num();
        Words sums[kStreams] = {};
        for (std::int64_t i = 0; i < part; i += 64)
#pragma GCC unroll 4
            for (int j = 0; j < kStreams; ++j) {
                sums[j] |= *reinterpret_cast<const Words*>(begin + part * j + i);
                __builtin_prefetch(begin + part * j + i + kAhead);
            }
        for (auto& sum : sums) asm volatile("" : : "m"(sum));
    }
}

// steps * 12 fused multiply-adds of vectors on each thread. Returns the floating point operations of all.
extern "C" double floor_fma(std::int64_t steps, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Vector sums[kChains] = {};
        const Vector factor = Vector{} + 0.5f, term = Vector{} + 1.0f;
        for (std::int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 12
            for (int chain = 0; chain < kChains; ++chain) {
                sums[chain] = sums[chain] * factor + term;
                opaque(sums[chain]);
            }
    }
    return 2.0 * kLanes * kChains * static_cast<double>(steps) * threads;
}

// The same with bfloat16 dot products; 0 where the processor has none.
extern "C" double floor_dot(std::int64_t steps, int threads) {
#if defined(__AVX512BF16__)
#pragma omp parallel num_threads(threads)
    {
        __m512 sums[kChains];
        const __m512bh ones = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f));
        for (auto& sum : sums) sum = _mm512_setzero_ps();
        for (std::int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 12
            for (int chain = 0; chain < kChains; ++chain) {
                sums[chain] = _mm512_dpbf16_ps(sums[chain], ones, ones);
                opaque(sums[chain]);
            }
    }
    return 64.0 * kChains * static_cast<double>(steps) * threads;
#else
    (void)steps, (void)threads;
    return 0;
#endif
}

// The same with products of 16-bit integers; 0 where no weights are multiplied so.
extern "C" double floor_integer(std::int64_t steps, int threads) {
#ifdef OCTAVO_INTEGER_FLOOR
  const std::int64_t rounds = steps * kChains * kLanes / (kIntegerRows * kIntegerSteps * 16);
#pragma omp parallel num_threads(threads)
  for (std::int64_t i = 0; i < rounds; ++i) integer_round();
  return kIntegerOperations * static_cast<double>(rounds) * threads;
#else
  (void)steps, (void)threads;
  return 0;
#endif
}
