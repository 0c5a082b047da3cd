// RMS normalisation row by row, for threads that share a call's rows.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

// out = x * rsqrt(mean(x^2) + eps) * weight over one row; `out` may be `x`.
void rms_norm_row(const float* x, const float* weight, float* out, std::int64_t channels, float eps);
void rms_norm_row(const float* x, const BFloat16* weight, float* out, std::int64_t channels, float eps);

// residual += x, then the norm of it.
void add_rms_norm_row(const float* x, float* residual, const float* weight, float* out, std::int64_t channels,
                      float eps);

}  // namespace octavo::OCTAVO_ISA
