// What the machine can do at most, on all threads that OpenMP gives: one line of JSON.
//
// read_gb_s: sums 256 MiB, far more than the caches hold, again and again; the median and the best pass.
// fma_gflop_s: chains of fp32 multiply-adds in registers, enough of them to hide the latency, in the widest vectors.
// dot_bf16_gflop_s: the same with bf16 dot products; 0 where the processor has none.
// integer_gop_s: products and sums of 16-bit integers with AVX2; 0 where AVX-512 takes its place.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "integer_floor.h"

namespace {

constexpr size_t kBytes = size_t{256} << 20;
constexpr int kPasses = 12;
constexpr int kChains = 12;
constexpr int64_t kSteps = 500'000;
constexpr int kIntegerRounds = 10'000;

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint64_t Words __attribute__((vector_size(64)));

volatile uint64_t sink;

// Hides from the compiler what is in the register, so that it neither drops nor merges the chains.
template <typename Register>
inline Register opaque(Register value) {
  asm volatile("" : "+v"(value));
  return value;
}

double read_gb_s(const Words* data) {
  const int64_t count = kBytes / sizeof(Words);
  const double begin = omp_get_wtime();
  uint64_t total = 0;
#pragma omp parallel reduction(+ : total)
  {
    const int64_t threads = omp_get_num_threads(), self = omp_get_thread_num();
    Words sums[4] = {};
    for (int64_t i = count * self / threads; i + 4 <= count * (self + 1) / threads; i += 4)
      for (int j = 0; j < 4; ++j) sums[j] += data[i + j];
    const Words sum = sums[0] + sums[1] + sums[2] + sums[3];
    total += sum[0] ^ sum[7];
  }
  sink = total;
  return kBytes / (omp_get_wtime() - begin) / 1e9;
}

// The best of kPasses runs of `round` on every thread, of `operations` each.
template <typename Round>
double giga_s(double operations, Round round) {
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double begin = omp_get_wtime();
#pragma omp parallel
    round();
    best = std::max(best, omp_get_max_threads() * operations / (omp_get_wtime() - begin) / 1e9);
  }
  return best;
}

void fma_round() {
  const Vector factor = Vector{} + 0.999f, term = Vector{} + 1e-3f;
  Vector sums[kChains];
  for (auto& sum : sums) sum = term;
  for (int64_t step = 0; step < kSteps; ++step)
    for (auto& sum : sums) sum = opaque(sum * factor + term);
  Vector total = {};
  for (auto& sum : sums) total += sum;
  sink = uint64_t(total[0]);
}

#ifdef __AVX512BF16__
void dot_round() {
  __m512 sums[kChains];
  const __m512bh values = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3f), _mm512_set1_ps(1e-3f));
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t step = 0; step < kSteps; ++step)
    for (auto& sum : sums) sum = opaque(_mm512_dpbf16_ps(sum, values, values));
  float total = 0;
  for (auto& sum : sums) total += _mm512_reduce_add_ps(sum);
  sink = uint64_t(total);
}
#endif

}  // namespace

int main() {
  auto* data = static_cast<Words*>(std::aligned_alloc(sizeof(Words), kBytes));
  if (data == nullptr) return 1;
  std::memset(data, 1, kBytes);
  std::vector<double> reads;
  for (int pass = 0; pass < kPasses; ++pass) reads.push_back(read_gb_s(data));
  std::sort(reads.begin(), reads.end());
  const double fma = giga_s(2.0 * kLanes * kSteps * kChains, fma_round);
  double dot = 0;
#ifdef __AVX512BF16__
  dot = giga_s(4.0 * kLanes * kSteps * kChains, dot_round);
#endif
  double integer = 0;
#ifdef OCTAVO_INTEGER_FLOOR
  integer = giga_s(kIntegerOperations * kIntegerRounds, [] {
    for (int round = 0; round < kIntegerRounds; ++round) integer_round();
  });
#endif
  std::printf(
      "{\"read_gb_s\": [%.1f, %.1f], \"fma_gflop_s\": %.0f, \"dot_bf16_gflop_s\": %.0f, \"integer_gop_s\": %.0f, "
      "\"threads\": %d}\n",
      reads[kPasses / 2], reads.back(), fma, dot, integer, omp_get_max_threads());
}
