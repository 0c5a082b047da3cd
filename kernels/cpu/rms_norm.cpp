// x * rsqrt(mean(x^2) + eps) * weight over the last dimension, alone or fused with the residual addition before it.
//
// The sum of squares of a row has one order: 64 lanes (element i in lane i mod 64), then a fixed tree. Each row reads
// x (and the residual) once from memory and once from the first cache level.
#include "parallel.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kChains = 4;

inline float sum_of_squares(const float* x, std::int64_t channels) {
    Vec sums[kChains];
    for (Vec& sum : sums) sum = zero();
    for (std::int64_t i = 0; i < channels; i += kLanes * kChains) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) {
            const std::int64_t left = channels - i - c * kLanes;
            if (left <= 0) break;
            const Vec value = load_up_to(x + i + c * kLanes, left);
            sums[c] = fma(value, value, sums[c]);
        }
    }
    return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <typename T>
inline void normalise_row(const float* x, const T* weight, float* out, std::int64_t channels, float eps) {
    const float mean = sum_of_squares(x, channels) / static_cast<float>(channels);
    const Vec scale = broadcast(1.0f / __builtin_sqrtf(mean + eps));
    for (std::int64_t i = 0; i < channels; i += kLanes) {
        const std::int64_t left = channels - i;
        store_up_to(out + i, load_up_to(x + i, left) * scale * load_up_to(weight + i, left), left);
    }
}

template <typename T>
void rms_norm(const float* x, std::int64_t outer, std::int64_t inner, std::int64_t outer_stride, const T* weight,
              float* out, std::int64_t channels, float eps, int num_threads) {
    const int threads = outer * inner * channels <= kSerialElements ? 1 : num_threads;
    parallel_ranges(outer, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t o = begin; o < end; ++o)
            for (std::int64_t i = 0; i < inner; ++i)
                normalise_row(x + o * outer_stride + i * channels, weight, out + (o * inner + i) * channels, channels,
                              eps);
    });
}

template <typename T>
void add_rms_norm(const float* x, float* residual, const T* weight, float* out, std::int64_t rows,
                  std::int64_t channels, float eps, int num_threads) {
    const int threads = rows * channels <= kSerialElements ? 1 : num_threads;
    parallel_ranges(rows, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const float* added = x + row * channels;
            float* sum = residual + row * channels;
            for (std::int64_t i = 0; i < channels; ++i) sum[i] += added[i];
            normalise_row(sum, weight, out + row * channels, channels, eps);
        }
    });
}

}  // namespace
}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

// x [outer, inner, C], the two inner dimensions dense, outer ones `outer_stride` elements apart -> out contiguous.
OCTAVO_EXPORT(rms_norm)(const float* x, std::int64_t outer, std::int64_t inner, std::int64_t outer_stride,
                        const void* weight, int bfloat16, float* out, std::int64_t channels, float eps,
                        int num_threads) {
    if (bfloat16) {
        rms_norm(x, outer, inner, outer_stride, static_cast<const BFloat16*>(weight), out, channels, eps, num_threads);
    } else {
        rms_norm(x, outer, inner, outer_stride, static_cast<const float*>(weight), out, channels, eps, num_threads);
    }
    return 0;
}

// residual += x in place, out = rms_norm(residual). x, residual, out [rows, C] contiguous.
OCTAVO_EXPORT(add_rms_norm)(const float* x, float* residual, const void* weight, int bfloat16, float* out,
                            std::int64_t rows, std::int64_t channels, float eps, int num_threads) {
    if (bfloat16) {
        add_rms_norm(x, residual, static_cast<const BFloat16*>(weight), out, rows, channels, eps, num_threads);
    } else {
        add_rms_norm(x, residual, static_cast<const float*>(weight), out, rows, channels, eps, num_threads);
    }
    return 0;
}
