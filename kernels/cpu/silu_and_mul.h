// The gated activation of part of a call, for threads that share it.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

struct SiluAndMulArguments {
    const float* gate_up;  // [rows, 2 * size]
    std::int64_t stride;
    float* out;  // [rows, size]
    std::int64_t out_stride;  // strides are elements from one row to the next
    std::int64_t rows, size, num_threads;
};

// Columns [begin, end) of a row.
void silu_and_mul_row(const SiluAndMulArguments& a, std::int64_t row, std::int64_t begin, std::int64_t end);

}  // namespace octavo::OCTAVO_ISA
