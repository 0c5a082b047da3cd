// silu(gate) * up of a fused projection: gate_up [rows, 2 I] -> out [rows, I]. Reads 2 I and writes I floats per row.
//
// A row's tail runs through the vector code, padded: an element's bits do not depend on its place in the row.
#include "parallel.h"
#include "simd.h"

using namespace octavo::OCTAVO_ISA;

namespace {

struct SiluAndMulArguments {
    const float* gate_up;  // [rows, 2 * size]
    std::int64_t stride;   // elements from one row to the next
    float* out;            // [rows, size] contiguous
    std::int64_t rows, size, num_threads;
};

}  // namespace

OCTAVO_EXPORT(silu_and_mul, SiluAndMulArguments) {
    // exp makes an element dearer than in the other element-wise ops.
    const std::int64_t threads = a.rows * a.size <= kSerialElements / 4 ? 1 : a.num_threads;
    parallel_ranges(a.rows, threads, [&](std::int64_t begin, std::int64_t end) {
        const Vec one = broadcast(1.0f);
        for (std::int64_t row = begin; row < end; ++row) {
            const float* gate = a.gate_up + row * a.stride;
            const float* up = gate + a.size;
            for (std::int64_t i = 0; i < a.size; i += kLanes) {
                const std::int64_t left = a.size - i;
                const Vec x = load_up_to(gate + i, left);
                store_up_to(a.out + row * a.size + i, x / (one + exp(zero() - x)) * load_up_to(up + i, left), left);
            }
        }
    });
    return 0;
}
