// y = x @ weight.T + bias over weights packed once: [N / 32 panels][K][32 columns], zeros after column N.
//
// Every output is one fused multiply-add chain over k = 0..K-1 and then one addition of the bias, whatever the number
// of rows, of threads and of panels taken together: exact mode rests on it. At few rows the op reads each weight once,
// at memory bandwidth; at many it is bound by arithmetic.
//
// bfloat16 weights go to dot_linear.h where the processor has dot products of them. Elsewhere a panel row keeps column
// c in the low and column c + 16 in the high half of a 32-bit word, so that widening 32 columns takes one load, one
// shift and one mask.
#include "dot_linear.h"
#include "linear.h"
#include "parallel.h"
#include "tile.h"

namespace octavo::OCTAVO_ISA {
namespace {

// Rows that one thread takes through a panel before the next panel: its activations stay in the first cache levels.
constexpr std::int64_t kRowChunk = 96;

inline void load_panel_row(const float* row, Vec& low, Vec& high) {
    low = load(row);
    high = load(row + kLanes);
}

inline void load_panel_row(const BFloat16* row, Vec& low, Vec& high) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
        NativeBits words;
        std::memcpy(&words, row + 2 * i * kNativeLanes, sizeof(words));
        low.part[i] = bit_cast<NativeFloat>(words << 16);
        high.part[i] = bit_cast<NativeFloat>(words & 0xffff0000u);
    }
}

// VECS / 2 neighbouring panels, read together.
template <typename T>
struct PanelColumns {
    const T* base;
    std::ptrdiff_t panel_stride;

    template <int VECS>
    void load(std::ptrdiff_t k, Vec (&columns)[VECS]) const {
#pragma GCC unroll 16
        for (int p = 0; p < VECS / 2; ++p)
            load_panel_row(base + p * panel_stride + k * kPanel, columns[2 * p], columns[2 * p + 1]);
    }
};

template <typename T>
struct Linear {
    const LinearArguments& a;
    const T* packed;

    template <int ROWS, int PANELS>
    void tile(std::int64_t row, std::int64_t panel) const {
        Tile<ROWS, 2 * PANELS> tile;
        tile.clear();
        const std::int64_t panel_stride = a.k * kPanel;
        tile.accumulate(a.x + row * a.x_stride, a.x_stride,
                        PanelColumns<T>{packed + panel * panel_stride, panel_stride}, a.k);
#pragma GCC unroll 16
        for (int c = 0; c < 2 * PANELS; ++c) {
            const std::int64_t column = panel * kPanel + c * kLanes, left = a.n - column;
            if (left <= 0) break;
            const Vec added = a.bias == nullptr ? zero() : load_up_to(a.bias + column, left);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) {
                // Adding a zero would turn -0 into +0, harmlessly and for every shape alike; so there is one path.
                store_up_to(a.y + (row + r) * a.y_stride + column, tile.sum[r][c] + added, left);
            }
        }
    }

    // With few rows a single panel has too few independent chains to hide the latency of the multiply-add.
    template <int ROWS>
    static constexpr int panels_together() {
        if (kNativeLanes == 16) return ROWS == 1 ? 4 : ROWS <= 3 ? 2 : 1;
        return ROWS == 1 && kNativeLanes == 8 ? 2 : 1;
    }

    // Rows [row, row + count) through panels [begin, end).
    void block(std::int64_t row, std::int64_t count, std::int64_t begin, std::int64_t end) const {
        for (std::int64_t panel = begin; panel < end;) {
            std::int64_t taken = 1;
            for_row_tiles<kTileRows<T>>(count, [&](std::ptrdiff_t first, auto tile_rows) {
                constexpr int kRows = decltype(tile_rows)::value;
                constexpr int kTogether = panels_together<kRows>();
                // Only a single tile may take several panels; tiles of one block differ by a row.
                if (kTogether > 1 && count == kRows && panel + kTogether <= end) {
                    this->template tile<kRows, kTogether>(row + first, panel);
                    taken = kTogether;
                } else {
                    this->template tile<kRows, 1>(row + first, panel);
                }
            });
            panel += taken;
        }
    }

    // Rows [row, row_end) through panels [panel, panel_end).
    void blocks(std::int64_t row, std::int64_t row_end, std::int64_t panel, std::int64_t panel_end) const {
        if (row_end - row <= kRowChunk) {
            block(row, row_end - row, panel, panel_end);
            return;
        }
        for (; panel < panel_end; ++panel)
            for (std::int64_t first = row; first < row_end; first += kRowChunk)
                block(first, row_end - first < kRowChunk ? row_end - first : kRowChunk, panel, panel + 1);
    }
};

// The place in a panel row of its column c.
inline int place(int column, const float*) { return column; }
inline int place(int column, const BFloat16*) { return column % kLanes * 2 + column / kLanes; }

template <typename T>
void pack(const T* weight, T* packed, std::int64_t n, std::int64_t k, std::int64_t num_threads) {
    const std::int64_t panels = (n + kPanel - 1) / kPanel;
    parallel_ranges(panels, num_threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t panel = begin; panel < end; ++panel) {
            T* out = packed + panel * k * kPanel;
            std::memset(static_cast<void*>(out), 0, static_cast<std::size_t>(k) * kPanel * sizeof(T));
            for (int c = 0; c < kPanel && panel * kPanel + c < n; ++c) {
                const T* row = weight + (panel * kPanel + c) * k;
                for (std::int64_t i = 0; i < k; ++i) out[i * kPanel + place(c, weight)] = row[i];
            }
        }
    });
}

}  // namespace

std::size_t linear_scratch_bytes([[maybe_unused]] const LinearArguments& a) {
#if defined(__AVX512BF16__)
    if (a.bfloat16) return DotLinear(a).scratch_bytes();
#endif
    return 0;
}

void linear_prepare([[maybe_unused]] const LinearArguments& a, [[maybe_unused]] void* scratch,
                    [[maybe_unused]] std::int64_t begin, [[maybe_unused]] std::int64_t end) {
#if defined(__AVX512BF16__)
    if (a.bfloat16) DotLinear(a).prepare(scratch, begin, end);
#endif
}

void linear_block(const LinearArguments& a, [[maybe_unused]] const void* scratch, std::int64_t row,
                  std::int64_t row_end, std::int64_t panel, std::int64_t panel_end) {
    if (a.bfloat16) {
#if defined(__AVX512BF16__)
        DotLinear(a).block(scratch, row, row_end, panel, panel_end);
#else
        Linear<BFloat16>{a, static_cast<const BFloat16*>(a.packed)}.blocks(row, row_end, panel, panel_end);
#endif
    } else {
        Linear<float>{a, static_cast<const float*>(a.packed)}.blocks(row, row_end, panel, panel_end);
    }
}

void linear_part(const LinearArguments& a, const void* scratch, std::int64_t thread, std::int64_t num_threads) {
    const std::int64_t panels = a.panels();
    linear_block(a, scratch, 0, a.rows, panels * thread / num_threads, panels * (thread + 1) / num_threads);
}

}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

struct PackLinearArguments {
    const void* weight;  // [N, K] contiguous
    void* packed;        // ceil(N / 32) * K * 32 elements of the same type, K rounded up to even
    std::int64_t bfloat16, n, k, num_threads;
};

OCTAVO_EXPORT(pack_linear, PackLinearArguments) {
    if (a.bfloat16) {
#if defined(__AVX512BF16__)
        constexpr auto pack = DotLinear::pack;
#endif
        pack(static_cast<const BFloat16*>(a.weight), static_cast<BFloat16*>(a.packed), a.n, a.k, a.num_threads);
    } else {
        pack(static_cast<const float*>(a.weight), static_cast<float*>(a.packed), a.n, a.k, a.num_threads);
    }
    return 0;
}

// 1 if memory ran out.
OCTAVO_EXPORT(linear, LinearArguments) {
    void* prepared = nullptr;
    if (const std::size_t bytes = linear_scratch_bytes(a); bytes > 0) {
        thread_local Scratch scratch;
        prepared = scratch.reserve(bytes);
        if (prepared == nullptr) return 1;
        parallel_ranges(a.rows, a.rows * a.k <= kSerialElements ? 1 : a.num_threads,
                        [&](std::int64_t begin, std::int64_t end) { linear_prepare(a, prepared, begin, end); });
    }
    parallel(a.n * a.k <= kSerialElements ? 1 : a.num_threads,
             [&](std::int64_t thread, std::int64_t threads) { linear_part(a, prepared, thread, threads); });
    return 0;
}
