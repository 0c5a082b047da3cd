// The linear layer as threads of one team call it, and what its kernels share: arguments, pieces, the panel's width.
#pragma once

#include <type_traits>

#include "background_fetch.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {

// Output columns that lie together; two native vectors of them are as wide as a tile of sums.
#if defined(__AVX512F__)
constexpr int kPanel = 32;
#else
constexpr int kPanel = 16;
#endif
constexpr int kPanelVecs = kPanel / kLanes;

// AVX2 and AVX-512 compute products of bfloat16 and int8 weights in integers (integer_product.h).
#if defined(OCTAVO_AVX2)
#define OCTAVO_INTEGER_PRODUCT
#endif

// How weights are stored. The numbers of the first three are those of packed_linear.py.
enum WeightType : std::int64_t { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2, kShifted = 3, kCoded = 4 };

// A prepared layer, in the order of PackedLinear.description.
struct LinearWeights {
    const void* packed;
    std::int64_t weight_type;
    const float* bias;  // [N] or null
    std::int64_t n, k;

    std::int64_t panels() const { return (n + kPanel - 1) / kPanel; }
};

struct LinearArguments : LinearWeights {
    const float* x;  // [rows, K]
    std::int64_t x_stride;
    float* y;  // [rows, N]
    std::int64_t y_stride;  // strides are elements from one row to the next
    std::int64_t rows, num_threads;
};

// Rows of activations in the form that an inner product reads, `stride` elements apart.
template <typename X>
struct Activations {
    const X* rows;
    std::int64_t stride;
};

// What the inner products do not say of themselves.
template <typename Product, typename T>
struct PlainProduct {
    using Weight = T;
    using Source = T;

    static constexpr std::int64_t kGroup = 1;  // steps: slices are cut at multiples of it
    static std::int64_t x_offset(std::int64_t step) { return step; }

    static constexpr std::int64_t header_bytes(std::int64_t) { return 0; }  // before the first panel
    static constexpr bool kScaled = std::is_same_v<T, std::int8_t>;         // each panel's header has its scales
    static constexpr std::int64_t kPanelHeader = kScaled ? kPanel * sizeof(float) : 0;

    // Packs columns [columns, k] into a panel of zeros and its header.
    static void put(const T* weights, const float* scales, int columns, std::int64_t k, char* header, T* panel) {
        if (kScaled) std::memcpy(header, scales, static_cast<std::size_t>(columns) * sizeof(float));
        for (int c = 0; c < columns; ++c)
            for (std::int64_t i = 0; i < k; ++i) panel[Product::place(i, c)] = weights[c * k + i];
    }

    // What a panel's weights are decoded by.
    struct Table {};
    static Table table(const char*) { return {}; }
    template <typename Columns>
    static inline __attribute__((always_inline)) void decode(const T* weights, Table, Columns& columns) {
        Product::load(weights, columns);
    }
};

// A call is two phases, and every thread must have finished the first before any begins the second:
// linear_prepare of every row, then linear_block over every row and panel. Ranges are half open; neither they nor the
// threads that take them change a bit of the result. num_threads of the arguments plays no part here.

// Bytes of what linear_prepare writes and linear_block reads; 0: there is nothing to prepare.
std::size_t linear_scratch_bytes(const LinearArguments& a);

// Brings rows [begin, end) of x into the form that the kernel multiplies; `scratch` is aligned to 64 bytes.
void linear_prepare(const LinearArguments& a, void* scratch, std::int64_t begin, std::int64_t end);

// y of rows [row, row_end), columns of panels [panel, panel_end). Meanwhile the thread fetches from `background`.
void linear_block(const LinearArguments& a, const void* scratch, std::int64_t row, std::int64_t row_end,
                  std::int64_t panel, std::int64_t panel_end, BackgroundFetch* background = nullptr);

// The bursts that `background` gets from all threads together; 0 where memory has no time to spare.
std::int64_t linear_bursts(const LinearArguments& a);

// The second phase cut into blocks for threads to share: small enough to balance, large enough to pay. Neighbours share
// their rows, so that a thread does best to take them in order.
struct LinearPieces {
    std::int64_t row_parts, panel_parts;

    std::int64_t count() const { return row_parts * panel_parts; }
};
LinearPieces linear_pieces(const LinearArguments& a, std::int64_t num_threads);

// linear_block of one piece.
void linear_piece(const LinearArguments& a, const void* scratch, LinearPieces pieces, std::int64_t piece,
                  BackgroundFetch* background);

}  // namespace octavo::OCTAVO_ISA
