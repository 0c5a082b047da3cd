// The linear layer as threads of one team call it, and what its kernels share: arguments and the width of a panel.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

constexpr int kPanel = 2 * kLanes;  // output columns

// A prepared layer, in the order of PackedLinear.description.
struct LinearWeights {
    const void* packed;
    std::int64_t bfloat16;
    const float* bias;  // [N] or null
    std::int64_t n, k;

    std::int64_t panels() const { return (n + kPanel - 1) / kPanel; }
};

struct LinearArguments : LinearWeights {
    const float* x;  // [rows, K]
    std::int64_t x_stride;
    float* y;  // [rows, N]
    std::int64_t y_stride;  // strides are elements from one row to the next
    std::int64_t rows, num_threads;
};

// A call is two phases, and every thread must have finished the first before any begins the second:
// linear_prepare of every row, then linear_block over every row and panel. Ranges are half open; neither they nor the
// threads that take them change a bit of the result. num_threads of the arguments plays no part here.

// Bytes of what linear_prepare writes and linear_block reads; 0: there is nothing to prepare.
std::size_t linear_scratch_bytes(const LinearArguments& a);

// Brings rows [begin, end) of x into the form that the kernel multiplies; `scratch` is aligned to 64 bytes.
void linear_prepare(const LinearArguments& a, void* scratch, std::int64_t begin, std::int64_t end);

// y of rows [row, row_end), columns of panels [panel, panel_end).
void linear_block(const LinearArguments& a, const void* scratch, std::int64_t row, std::int64_t row_end,
                  std::int64_t panel, std::int64_t panel_end);

// One thread's even share of the second phase.
void linear_part(const LinearArguments& a, const void* scratch, std::int64_t thread, std::int64_t num_threads);

}  // namespace octavo::OCTAVO_ISA
