// The inner loop of the linear layer: a tile of rows times some panels, its sums in registers, down a slice of k.
#pragma once

#include "background_fetch.h"
#include "linear.h"

namespace octavo::OCTAVO_ISA {

// Pointers are to the tile's first row, panel and step; strides count elements from a row or a panel to the next.
template <typename Product>
struct LinearTile {
    const typename Product::X* x;
    std::int64_t x_stride;
    const typename Product::Weight* weights;
    std::int64_t panel_stride;
    char* unpacked;  // where a product that unpacks leaves the weights for other tiles; nullptr: nowhere
    std::int64_t unpacked_stride;  // bytes from a panel to the next
    std::int64_t steps;
    float* y;  // whole vectors of it
    std::int64_t y_stride;
    bool first, last;     // slice of k: sums start at zero; scales and bias come last
    const char* header;   // of the first panel
    std::int64_t header_stride;
    bool scaled;  // headers are scales
    const float* bias;  // whole vectors; nullptr: none

    // What to fetch meanwhile: `fetch_bytes` of each panel of the next slice for every kBurst steps.
    const char* fetch;
    std::int64_t fetch_stride, fetch_bytes;
    static constexpr std::int64_t kBurst = 8;
    BackgroundFetch::Part background;  // and of what else
};

// Of the tile's vector c of columns.
template <typename Product>
Vec load_scale(const LinearTile<Product>& t, int c) {
    const char* header = t.header + c / kPanelVecs * t.header_stride;
    return load(reinterpret_cast<const float*>(header) + c % kPanelVecs * kLanes);
}

// One step: the sums' next multiply-adds.
template <typename Product, int ROWS, int PANELS>
inline __attribute__((always_inline)) void multiply_step(const typename Product::X* const (&x)[(ROWS + 2) / 3],
                                                         std::int64_t x_stride,
                                                         const typename Product::Weight* weights,
                                                         std::int64_t panel_stride,
                                                         const typename Product::Table (&tables)[PANELS],
                                                         char* unpacked, std::int64_t unpacked_stride,
                                                         Vec (&sum)[ROWS][PANELS * kPanelVecs]) {
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) {
        typename Product::Column columns[kPanelVecs];
        Product::decode(weights + p * panel_stride, tables[p], columns);
        if (unpacked != nullptr) std::memcpy(unpacked + p * unpacked_stride, columns, sizeof(columns));
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

// UNPACKS: leaves the weights as it decodes them.
template <typename Product, int ROWS, int PANELS, bool UNPACKS>
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
    typename Product::Table tables[PANELS];
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) tables[p] = Product::table(t.header + p * t.header_stride);
    char* unpacked = t.unpacked;
    const std::int64_t unpacked_stride = t.unpacked_stride;
    const auto step = [&]() __attribute__((always_inline)) {
        multiply_step<Product, ROWS, PANELS>(x, x_stride, weights, panel_stride, tables, UNPACKS ? unpacked : nullptr,
                                             unpacked_stride, sum);
        weights += Product::kStepWeights;
        if (UNPACKS) unpacked += sizeof(typename Product::Column) * kPanelVecs;
#pragma GCC unroll 16
        for (int i = 0; i < (ROWS + 2) / 3; ++i) ++x[i];
    };

    const char* fetch = t.fetch;
    const std::int64_t fetch_bytes = t.fetch_bytes, fetch_stride = t.fetch_stride;
    std::int64_t fetched = 0, due = 0;
    // Where there are rows for a whole tile, no tile has fewer than half as many.
    constexpr bool kInBackground = Product::kSparesMemory && 2 * ROWS >= Product::kTileRows;
    std::int64_t in_background = 0, background_due = 0;
    std::int64_t left = t.steps;
    for (; left >= t.kBurst; left -= t.kBurst) {
        for (due += fetch_bytes; fetched < due; fetched += 64)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; ++p) __builtin_prefetch(fetch + p * fetch_stride + fetched, 0, 2);
        // Read from the tile each time: it is not worth registers.
        if constexpr (kInBackground)
            for (background_due += t.background.bytes; in_background < background_due; in_background += 64) {
                __builtin_prefetch(t.background.keys + in_background, 0, 2);
                __builtin_prefetch(t.background.values + in_background, 0, 2);
            }
#pragma GCC unroll 8
        for (int i = 0; i < t.kBurst; ++i) step();
    }
    for (; left > 0; --left) step();

#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) {
        const bool scaled = t.scaled && t.last;
        const Vec scale = scaled ? load_scale(t, c) : zero();
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
        if constexpr (Product::kUnpacks)
            if (tile.unpacked != nullptr) return multiply_tile<Product, ROWS, PANELS, true>(tile);
        multiply_tile<Product, ROWS, PANELS, false>(tile);
    }
};

}  // namespace octavo::OCTAVO_ISA
