// x * rsqrt(mean(x^2) + eps) * weight over the last dimension, alone or fused with the residual addition before it.
//
// The sum of squares of a row has one order: 64 lanes (element i in lane i mod 64), then a fixed tree. Each row reads
// x (and the residual) once from memory and once from the first cache level.
#include "rms_norm.h"

#include "parallel.h"

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

inline void add_row(const float* x, float* residual, std::int64_t channels) {
    for (std::int64_t i = 0; i < channels; ++i) residual[i] += x[i];
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

struct RmsNormArguments {
    const float* x;  // [outer, inner, C], the inner two dimensions dense
    std::int64_t outer, inner;
    std::int64_t outer_stride;  // elements from one outer index to the next
    const void* weight;         // [C]
    std::int64_t bfloat16;
    float* out;  // [outer, inner, C] contiguous
    std::int64_t channels;
    double eps;
    std::int64_t num_threads;
};

template <typename T>
void rms_norm(const RmsNormArguments& a) {
    const std::int64_t threads = a.outer * a.inner * a.channels <= kSerialElements ? 1 : a.num_threads;
    parallel_ranges(a.outer, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t o = begin; o < end; ++o)
            for (std::int64_t i = 0; i < a.inner; ++i)
                rms_norm_row(a.x + o * a.outer_stride + i * a.channels, static_cast<const T*>(a.weight),
                             a.out + (o * a.inner + i) * a.channels, a.channels, static_cast<float>(a.eps));
    });
}

struct AddRmsNormArguments {
    const float* x;  // [rows, C] contiguous
    float* residual;
    const void* weight;  // [C]
    std::int64_t bfloat16;
    float* out;
    std::int64_t rows, channels;
    double eps;
    std::int64_t num_threads;
};

template <typename T>
void add_rms_norm(const AddRmsNormArguments& a) {
    const std::int64_t threads = a.rows * a.channels <= kSerialElements ? 1 : a.num_threads;
    parallel_ranges(a.rows, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            float* sum = a.residual + row * a.channels;
            add_row(a.x + row * a.channels, sum, a.channels);
            rms_norm_row(sum, static_cast<const T*>(a.weight), a.out + row * a.channels, a.channels,
                         static_cast<float>(a.eps));
        }
    });
}

}  // namespace

void rms_norm_row(const float* x, const float* weight, float* out, std::int64_t channels, float eps) {
    normalise_row(x, weight, out, channels, eps);
}

void rms_norm_row(const float* x, const BFloat16* weight, float* out, std::int64_t channels, float eps) {
    normalise_row(x, weight, out, channels, eps);
}

void add_rms_norm_row(const float* x, float* residual, const float* weight, float* out, std::int64_t channels,
                      float eps) {
    add_row(x, residual, channels);
    normalise_row(residual, weight, out, channels, eps);
}

}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

OCTAVO_EXPORT(rms_norm, RmsNormArguments) {
    a.bfloat16 ? rms_norm<BFloat16>(a) : rms_norm<float>(a);
    return 0;
}

// residual += x in place, out = rms_norm(residual).
OCTAVO_EXPORT(add_rms_norm, AddRmsNormArguments) {
    a.bfloat16 ? add_rms_norm<BFloat16>(a) : add_rms_norm<float>(a);
    return 0;
}
