// silu(gate) * up of a fused projection: gate_up [rows, 2 I] -> out [rows, I]. Reads 2 I and writes I floats per row.
//
// A row's tail runs through the vector code, padded: an element's bits do not depend on its place in the row.
#include "parallel.h"
#include "simd.h"

using namespace octavo::OCTAVO_ISA;

// Rows of gate_up are `stride` elements apart; out is contiguous.
OCTAVO_EXPORT(silu_and_mul)(const float* gate_up, std::int64_t stride, float* out, std::int64_t rows,
                            std::int64_t size, int num_threads) {
    const int threads = rows * size <= kSerialElements / 4 ? 1 : num_threads;  // exp makes an element dearer
    parallel_ranges(rows, threads, [&](std::int64_t begin, std::int64_t end) {
        const Vec one = broadcast(1.0f);
        for (std::int64_t row = begin; row < end; ++row) {
            const float* gate = gate_up + row * stride;
            const float* up = gate + size;
            for (std::int64_t i = 0; i < size; i += kLanes) {
                const std::int64_t left = size - i;
                const Vec x = load_up_to(gate + i, left);
                store_up_to(out + row * size + i, x / (one + exp(zero() - x)) * load_up_to(up + i, left), left);
            }
        }
    });
    return 0;
}
