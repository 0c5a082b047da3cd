// silu(gate) * up of a fused projection: gate_up [rows, 2 I] -> out [rows, I]. Reads 2 I and writes I floats per row.
//
// A row's tail runs through the vector code, padded: an element's bits do not depend on its place in the row.
#include "silu_and_mul.h"

#include "parallel.h"

namespace octavo::OCTAVO_ISA {

void silu_and_mul_row(const SiluAndMulArguments& a, std::int64_t row, std::int64_t begin, std::int64_t end) {
    const Vec one = broadcast(1.0f);
    const float* gate = a.gate_up + row * a.stride;
    const float* up = gate + a.size;
    for (std::int64_t i = begin; i < end; i += kLanes) {
        const std::int64_t left = end - i;
        const Vec x = load_up_to(gate + i, left);
        store_up_to(a.out + row * a.out_stride + i, x / (one + exp(zero() - x)) * load_up_to(up + i, left), left);
    }
}

}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

OCTAVO_EXPORT(silu_and_mul, SiluAndMulArguments) {
    // exp makes an element dearer than in the other element-wise ops.
    const std::int64_t threads = a.rows * a.size <= kSerialElements / 4 ? 1 : a.num_threads;
    parallel_ranges(a.rows, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) silu_and_mul_row(a, row, 0, a.size);
    });
    return 0;
}
