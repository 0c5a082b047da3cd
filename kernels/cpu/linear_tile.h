// The inner loop of the linear layer: a tile of rows times some panels, its sums in registers, down a slice of k.
#pragma once

#include "linear.h"

namespace octavo::OCTAVO_ISA {

// Pointers are to the tile's first row, panel and step; strides count elements from a row or a panel to the next.
template <typename Product>
struct LinearTile {
    const typename Product::X* x;
    std::int64_t x_stride;
    const typename Product::Weight* weights;
    std::int64_t panel_stride;
    std::int16_t* unpacked;  // where a product whose tiles unpack leaves the panel's weights; nullptr: nowhere
    std::int64_t steps;
    float* y;  // whole vectors of it
    std::int64_t y_stride;
    bool first, last;     // slice of k: sums start at zero; scales and bias come last
    const float* scales;  // of the first panel; nullptr: none
    std::int64_t scales_stride;
    const float* bias;  // whole vectors; nullptr: none

    // What to fetch meanwhile: `fetch_bytes` of each panel of the next slice for every kBurst steps.
    const char* fetch;
    std::int64_t fetch_stride, fetch_bytes;
    static constexpr std::int64_t kBurst = 8;
};

// One step: the sums' next multiply-adds.
template <typename Product, int ROWS, int PANELS>
inline __attribute__((always_inline)) void multiply_step(const typename Product::X* const (&x)[(ROWS + 2) / 3],
                                                         std::int64_t x_stride,
                                                         const typename Product::Weight* weights,
                                                         std::int64_t panel_stride,
                                                         Vec (&sum)[ROWS][PANELS * kPanelVecs]) {
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) {
        typename Product::Column columns[kPanelVecs];
        Product::load(weights + p * panel_stride, columns);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const typename Product::Column activation = Product::broadcast(x[r / 3] + r % 3 * x_stride);
#pragma GCC unroll 2
            for (int c = 0; c < kPanelVecs; ++c) {
                Vec& s = sum[r][p * kPanelVecs + c];
                s = Product::multiply_add(activation, columns[c], s);
            }
        }
    }
}

template <typename Product, int ROWS, int PANELS>
__attribute__((noinline)) void multiply_tile(const LinearTile<Product>& t) {
    constexpr int kVecs = PANELS * kPanelVecs;
    Vec sum[ROWS][kVecs];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < kVecs; ++c) sum[r][c] = t.first ? zero() : load(t.y + r * t.y_stride + c * kLanes);

    // A pointer to every third row: all rows are then one or two strides from one, what an address can hold.
    const std::int64_t x_stride = t.x_stride, panel_stride = t.panel_stride;
    const typename Product::X* x[(ROWS + 2) / 3];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r += 3) x[r / 3] = t.x + r * x_stride;
    const typename Product::Weight* weights = t.weights;
    const auto advance = [&](std::int64_t steps) __attribute__((always_inline)) {
        weights += steps * Product::kStepWeights;
#pragma GCC unroll 16
        for (int i = 0; i < (ROWS + 2) / 3; ++i) x[i] += steps;
    };

    const char* fetch = t.fetch;
    const std::int64_t fetch_bytes = t.fetch_bytes, fetch_stride = t.fetch_stride;
    std::int64_t fetched = 0, due = 0;
    std::int64_t left = t.steps;
    for (; left >= t.kBurst; left -= t.kBurst) {
        for (due += fetch_bytes; fetched < due; fetched += 64)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; ++p) __builtin_prefetch(fetch + p * fetch_stride + fetched);
#pragma GCC unroll 8
        for (int i = 0; i < t.kBurst; ++i) {
            multiply_step<Product, ROWS, PANELS>(x, x_stride, weights, panel_stride, sum);
            advance(1);
        }
    }
    for (; left > 0; --left) {
        multiply_step<Product, ROWS, PANELS>(x, x_stride, weights, panel_stride, sum);
        advance(1);
    }

#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) {
        const bool scaled = t.last && t.scales != nullptr;
        const Vec scale = scaled ? load(t.scales + c / kPanelVecs * t.scales_stride + c % kPanelVecs * kLanes) : zero();
        const Vec bias = t.last && t.bias != nullptr ? load(t.bias + c * kLanes) : zero();
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            // Adding a zero would turn -0 into +0, harmlessly and for every shape alike; so there is one path.
            store(t.y + r * t.y_stride + c * kLanes, (scaled ? sum[r][c] * scale : sum[r][c]) + bias);
        }
    }
}

// How an inner product multiplies a tile.
template <typename Product>
struct TileKernel {
    template <int ROWS, int PANELS>
    static void run(const LinearTile<Product>& tile) {
        multiply_tile<Product, ROWS, PANELS>(tile);
    }
};

}  // namespace octavo::OCTAVO_ISA
