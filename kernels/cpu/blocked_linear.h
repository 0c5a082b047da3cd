// y = x @ weight.T + bias, block by block, for any inner product (fma_product.h, dot_product.h, integer_product.h).
//
// Weights are packed once: [N / kPanel panels][steps of k][kPanel columns], zeros after column N; where weights have
// scales, a panel begins with those of its columns, in float32. Every output is one chain of multiply-adds over k, from
// the first step, or group of steps, to the last, then one multiplication by the scale, if any, then one addition of
// the bias: its bits depend on neither the other rows nor on threads and blocking. Exact mode rests on it.
//
// A thread takes a slice at a time: the panels of a tile, kDepth steps deep at most, which stays in the first two cache
// levels. A tile of rows keeps its sums in registers down the slice; from one slice to the next of the same panels they
// wait in y. So weights are read from memory once for all rows of a chunk, whose part of x stays in the second level.
// While the tiles of a chunk multiply a slice they fetch the next: few rows are bound by memory, many by arithmetic,
// and in between, where both take about as long, they run at the same time. From about a whole tile of rows on memory
// has time to spare, in which they fetch what a BackgroundFetch names.
#pragma once

#include "integer_tile.h"
#include "linear.h"
#include "linear_tile.h"
#include "tile.h"

namespace octavo::OCTAVO_ISA {

template <typename Product>
class BlockedLinear {
    using X = typename Product::X;
    using Weight = typename Product::Weight;
    using Source = typename Product::Source;

public:
    // scratch: what Product::prepare wrote.
    BlockedLinear(const LinearArguments& arguments, const void* scratch, BackgroundFetch* background = nullptr)
        : a(arguments),
          x(Product::activations(arguments, scratch)),
          steps(Product::steps(arguments.k)),
          background(background) {}

    // Chunks of rows whose activations, a slice deep, leave the weights room in the second cache level.
    static std::int64_t chunks(std::int64_t k, std::int64_t rows) {
        constexpr std::int64_t kBytes = 192 * 1024;
        return parts(rows * depth(Product::steps(k)) * static_cast<std::int64_t>(sizeof(X)), kBytes);
    }

    // Of the whole layer, in which its tiles fetch in the background.
    static std::int64_t bursts(const LinearArguments& a) {
        if (a.rows < Product::kTileRows || !Product::kSparesMemory) return 0;
        return parts(a.rows, Product::kTileRows) * parts(a.panels(), Product::panels(Product::kTileRows)) *
               (Product::steps(a.k) / LinearTile<Product>::kBurst);
    }

    // Rows [row, row_end) through panels [panel, panel_end).
    void block(std::int64_t row, std::int64_t row_end, std::int64_t panel, std::int64_t panel_end) const {
        const std::int64_t rows = row_end - row, count = chunks(a.k, rows), deep = depth(steps);
        for (std::int64_t chunk = 0; chunk < count; ++chunk) {
            const std::int64_t begin = rows * chunk / count, end = rows * (chunk + 1) / count;
            for (std::int64_t step = 0; step < steps; step += deep) {
                const bool last = step + deep >= steps;
                const Slices slices{row + begin, end - begin, step, last ? steps - step : deep};
                // After these panels come the same a slice deeper, at last most likely their neighbours.
                multiply(slices, panel, panel_end, last ? weights(panel_end, 0) : weights(panel, step + deep));
            }
        }
    }

    static std::int64_t packed_bytes(std::int64_t n, std::int64_t k) {
        return Product::header_bytes(k) + (n + kPanel - 1) / kPanel * panel_bytes(k);
    }

    // Packs panels [begin, end) of weight [n, k]; `scales` [n] belong to int8 weights.
    static void pack(const Source* weight, const float* scales, void* packed, std::int64_t n, std::int64_t k,
                     std::int64_t begin, std::int64_t end) {
        const std::int64_t bytes = panel_bytes(k);
        for (std::int64_t panel = begin; panel < end; ++panel) {
            char* out = static_cast<char*>(packed) + Product::header_bytes(k) + panel * bytes;
            std::memset(out, 0, static_cast<std::size_t>(bytes));
            const std::int64_t first = panel * kPanel, columns = n - first < kPanel ? n - first : kPanel;
            Product::put(weight + first * k, scales == nullptr ? nullptr : scales + first, static_cast<int>(columns), k,
                         out, reinterpret_cast<Weight*>(out + Product::kPanelHeader));
        }
    }

    // Once all panels are packed: the limits of groups [begin, end) of an inner product that has them.
    static void set_limits(void* packed, std::int64_t n, std::int64_t k, std::int64_t begin, std::int64_t end) {
        const char* panels = static_cast<const char*>(packed) + Product::header_bytes(k) + Product::kPanelHeader;
        for (std::int64_t group = begin; group < end; ++group)
            static_cast<float*>(packed)[group] =
                Product::limit(panels, (n + kPanel - 1) / kPanel, panel_bytes(k), k, group);
    }

private:
    static constexpr std::int64_t kStepBytes = Product::kStepWeights * static_cast<std::int64_t>(sizeof(Weight));

    const LinearArguments& a;
    const Activations<X> x;
    const std::int64_t steps;
    BackgroundFetch* const background;  // nullptr: of nothing

    // Rows and steps that are multiplied, panel after panel.
    struct Slices {
        std::int64_t row, rows, step, steps;
    };

    static std::int64_t parts(std::int64_t whole, std::int64_t limit) { return (whole + limit - 1) / limit; }
    static std::int64_t depth(std::int64_t steps) {
        return parts(parts(steps, parts(steps, Product::kDepth)), Product::kGroup) * Product::kGroup;
    }
    static std::int64_t panel_bytes(std::int64_t k) {
        return Product::kPanelHeader + Product::steps(k) * kStepBytes;
    }

    const char* header(std::int64_t panel) const {
        return static_cast<const char*>(a.packed) + Product::header_bytes(a.k) + panel * panel_bytes(a.k);
    }
    const char* weights(std::int64_t panel, std::int64_t step) const {
        return header(panel) + Product::kPanelHeader + step * kStepBytes;
    }

    void multiply(const Slices& s, std::int64_t panel, std::int64_t panel_end, const char* after) const {
        const int rows = s.rows < Product::kTileRows ? static_cast<int>(s.rows) : Product::kTileRows;
        const int width = Product::panels(rows);
        if (width == 4)
            for (; panel + 4 <= panel_end; panel += 4) slice<4>(s, panel, panel_end, after);
        if (width >= 2)
            for (; panel + 2 <= panel_end; panel += 2) slice<2>(s, panel, panel_end, after);
        for (; panel < panel_end; ++panel) slice<1>(s, panel, panel_end, after);
    }

    template <int PANELS>
    void slice(const Slices& s, std::int64_t panel, std::int64_t panel_end, const char* after) const {
        const auto* packed = reinterpret_cast<const Weight*>(weights(panel, s.step));
        const std::int64_t stride = panel_bytes(a.k) / static_cast<std::int64_t>(sizeof(Weight));
        const char* next = panel + PANELS < panel_end ? weights(panel + PANELS, s.step) : after;
        if (!Product::fetches(s.rows)) next = nullptr;
        const std::int64_t share = parts(s.steps, parts(s.rows, Product::kTileRows)) * kStepBytes;
        if constexpr (Product::kUnpacks) {
            using Unpacked = typename Product::Unpacked;
            if (s.rows > Product::kTileRows) {
                alignas(64) typename Unpacked::Weight unpacked[PANELS * Product::kDepth * Unpacked::kStepWeights];
                const std::int64_t unpacked_stride = s.steps * Unpacked::kStepWeights;
                // The first tile leaves them for the others.
                Slices first = s, rest = s;
                first.rows = s.rows / parts(s.rows, Product::kTileRows);
                tiles<PANELS, Product>(first, panel, packed, stride, next, share, reinterpret_cast<char*>(unpacked));
                rest.row += first.rows;
                rest.rows -= first.rows;
                if (next != nullptr) next += share;
                tiles<PANELS, Unpacked>(rest, panel, unpacked, unpacked_stride, next, share, nullptr);
                return;
            }
        }
        tiles<PANELS, Product>(s, panel, packed, stride, next, share, nullptr);
    }

    // While a tile multiplies it fetches `share` bytes of each panel of the next slice.
    template <int PANELS, typename P>
    void tiles(const Slices& s, std::int64_t panel, const typename P::Weight* packed, std::int64_t panel_stride,
               const char* next, std::int64_t share, char* unpacked) const {
        const std::int64_t column = panel * kPanel, bytes = panel_bytes(a.k);
        LinearTile<P> tile;
        tile.x_stride = x.stride;
        tile.weights = packed;
        tile.panel_stride = panel_stride;
        tile.unpacked = unpacked;
        if constexpr (P::kUnpacks)
            tile.unpacked_stride = s.steps * P::Unpacked::kStepWeights * sizeof(typename P::Unpacked::Weight);
        tile.steps = s.steps;
        tile.y_stride = a.y_stride;
        tile.first = s.step == 0;
        tile.last = s.step + s.steps == steps;
        tile.header = header(panel);
        tile.header_stride = bytes;
        tile.scaled = Product::kScaled;
        tile.bias = a.bias == nullptr ? nullptr : a.bias + column;
        tile.fetch = next;
        tile.fetch_stride = bytes;
        tile.fetch_bytes = next == nullptr ? 0 : tile.kBurst * share / s.steps;
        for_row_tiles<P::kTileRows>(s.rows, [&](std::ptrdiff_t first, auto tile_rows) {
            constexpr int kRows = decltype(tile_rows)::value;
            if constexpr (PANELS <= P::panels(kRows)) {
                const std::int64_t row = s.row + first;
                tile.x = x.rows + row * x.stride + Product::x_offset(s.step);
                tile.y = a.y + row * a.y_stride + column;
                if (background != nullptr) tile.background = background->take(s.steps / tile.kBurst);
                if (column + PANELS * kPanel <= a.n) {
                    TileKernel<P>::template run<kRows, PANELS>(tile);
                } else {
                    edge_tile<P, PANELS>(tile, kRows, a.n - column, TileKernel<P>::template run<kRows, PANELS>);
                }
                if (next != nullptr) tile.fetch += share;
            }
        });
    }

    // A tile of which y and bias have `columns` only.
    template <typename P, int PANELS>
    __attribute__((noinline)) static void edge_tile(LinearTile<P> tile, int rows, std::int64_t columns,
                                                    void (*multiply)(const LinearTile<P>&)) {
        constexpr int kWidth = PANELS * kPanel;
        float sums[P::kTileRows * kWidth], bias[kWidth] = {};
        float* const y = tile.y;
        const auto bytes = static_cast<std::size_t>(columns) * sizeof(float);
        const std::int64_t y_stride = tile.y_stride;
        for (int r = 0; r < rows; ++r) std::memcpy(sums + r * kWidth, y + r * y_stride, tile.first ? 0 : bytes);
        tile.y = sums;
        tile.y_stride = kWidth;
        if (tile.bias != nullptr) {
            std::memcpy(bias, tile.bias, bytes);
            tile.bias = bias;
        }
        multiply(tile);
        for (int r = 0; r < rows; ++r) std::memcpy(y + r * y_stride, sums + r * kWidth, bytes);
    }
};

}  // namespace octavo::OCTAVO_ISA
