// A tile of the linear layer in integers (integer_product.h): a group's sums in registers, those of the groups in y.
#pragma once

#include "integer_product.h"
#include "linear_tile.h"

#if defined(OCTAVO_INTEGER_PRODUCT)

namespace octavo::OCTAVO_ISA {

// UNPACKS: leaves the weights of its panel, as it widens them, for the tiles of other rows.
template <typename Product, int ROWS, int PANELS, bool UNPACKS>
__attribute__((noinline)) void multiply_integer_tile(const LinearTile<Product>& t) {
    constexpr int kVecs = PANELS * 2;
    const std::int64_t x_stride = t.x_stride, panel_stride = t.panel_stride;
    // A pointer to every third row: all rows are then one or two strides from one, what an address can hold.
    const typename Product::X* x[(ROWS + 2) / 3];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r += 3) x[r / 3] = t.x + r * x_stride;
    const auto advance = [&](std::int64_t words) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int i = 0; i < (ROWS + 2) / 3; ++i) x[i] += words;
    };
    const typename Product::Weight* weights = t.weights;
    char* unpacked = t.unpacked;
    const std::int64_t unpacked_stride = t.unpacked_stride;
    // Every step prefetches a line of each panel, often one that is on its way: a loop that counts lines would cost
    // registers, which the compiler would take from the sums. With nothing to fetch it is a line that is here already.
    const bool fetches = t.fetch_bytes > 0;
    const char* fetch = fetches ? t.fetch : reinterpret_cast<const char*>(t.weights);
    const std::int64_t fetch_stride = fetches ? t.fetch_stride : 0;
    const std::int64_t fetch_step = (t.fetch_bytes + t.kBurst - 1) / t.kBurst;
    float* const to = t.y;
    const std::int64_t y_stride = t.y_stride;
    bool first = t.first;

    for (std::int64_t left = t.steps; left > 0; left -= Product::kGroup) {
        NativeInt sum[ROWS][kVecs];
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
            for (int c = 0; c < kVecs; ++c) sum[r][c] = NativeInt{};
        const auto step = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; ++p) {
                NativeInt columns[2];
                __builtin_prefetch(fetch + p * fetch_stride, 0, 2);
                Product::load(weights + p * panel_stride, columns);
                if constexpr (UNPACKS) {
                    std::memcpy(unpacked + p * unpacked_stride, columns, sizeof(columns));
                }
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r)
                    Product::multiply_add(x[r / 3] + r % 3 * x_stride, columns, sum[r][p * 2], sum[r][p * 2 + 1]);
            }
            if constexpr (UNPACKS) unpacked += sizeof(NativeInt) * 2;
            fetch += fetch_step;
            weights += Product::kStepWeights;
            advance(1);
        };
        const std::int64_t count = left < Product::kGroup ? left : Product::kGroup;
#pragma GCC unroll 1
        for (std::int64_t i = 0; i < count; ++i) step();

        advance(Product::kGroup - count);  // to the scale
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const NativeFloat scale = native_broadcast(bit_cast<float>(*(x[r / 3] + r % 3 * x_stride)));
            float* y = to + r * y_stride;
#pragma GCC unroll 16
            for (int c = 0; c < kVecs; ++c, y += kNativeLanes) {
                const NativeFloat before = first ? native_broadcast(0) : native_load(y);
                const NativeFloat after = native_fma(__builtin_convertvector(sum[r][c], NativeFloat), scale, before);
                std::memcpy(y, &after, sizeof(after));
            }
        }
        advance(1);
        first = false;
    }
    if (!t.last) return;
#pragma GCC unroll 16
    for (int c = 0; c < PANELS * kPanelVecs; ++c) {
        const Vec scale = load_scale(t, c);
        const Vec bias = t.bias != nullptr ? load(t.bias + c * kLanes) : zero();
        for (int r = 0; r < ROWS; ++r) {
            float* y = t.y + r * t.y_stride + c * kLanes;
            store(y, load(y) * scale + bias);
        }
    }
}

template <typename T>
struct TileKernel<IntegerProduct<T>> {
    using Product = IntegerProduct<T>;

    template <int ROWS, int PANELS>
    static void run(const LinearTile<Product>& tile) {
        if constexpr (Product::kUnpacks)
            if (tile.unpacked != nullptr) return multiply_integer_tile<Product, ROWS, PANELS, true>(tile);
        multiply_integer_tile<Product, ROWS, PANELS, false>(tile);
    }
};

}  // namespace octavo::OCTAVO_ISA

#endif  // OCTAVO_INTEGER_PRODUCT
