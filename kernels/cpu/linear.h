// What the kernels of the linear layer share: the arguments of the op and the width of a packed panel.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int kPanel = 2 * kLanes;  // output columns

struct LinearArguments {
    const float* x;         // [rows, K]
    std::int64_t x_stride;  // elements from one row to the next
    const void* packed;
    std::int64_t bfloat16;
    const float* bias;  // [N] or null
    float* y;           // [rows, N] contiguous
    std::int64_t rows, n, k, num_threads;
};

}  // namespace octavo::OCTAVO_ISA
