// The linear layer: the inner product that serves a type of weights, and the pieces that threads share.
// blocked_linear.h computes.
#include "linear.h"

#include <atomic>

#include "blocked_linear.h"
#include "dot_product.h"
#include "fma_product.h"
#include "integer_product.h"
#include "parallel.h"

namespace octavo::OCTAVO_ISA {
namespace {

#if defined(__AVX512BF16__)
using BFloat16Product = DotProduct<BFloat16>;
#else
using BFloat16Product = FmaProduct<BFloat16>;
#endif
#if defined(__AVX512BF16__)
using Int8Product = DotProduct<std::int8_t>;
#elif defined(OCTAVO_INTEGER_PRODUCT)
using Int8Product = IntegerProduct<std::int8_t>;
#else
using Int8Product = FmaProduct<std::int8_t>;
#endif

// Calls f(the inner product for weights of this type).
template <typename F>
void with_product(std::int64_t weight_type, const F& f) {
    if (weight_type == kFloat32) return f(FmaProduct<float>{});
    if (weight_type == kInt8) return f(Int8Product{});
#if defined(__AVX512BF16__)
    if (weight_type == kCoded) return f(DotProduct<Coded>{});
#elif defined(OCTAVO_INTEGER_PRODUCT)
    if (weight_type == kShifted) return f(IntegerProduct<Shifted>{});
#endif
    f(BFloat16Product{});
}

// The type as which weight [n, k] is best kept.
std::int64_t stored_type(const void* weight, std::int64_t weight_type, std::int64_t n, std::int64_t k,
                         std::int64_t num_threads) {
#if defined(OCTAVO_INTEGER_PRODUCT)
#if defined(__AVX512BF16__)
    using Product = DotProduct<Coded>;
    constexpr std::int64_t kTwelveBits = kCoded;
#else
    using Product = IntegerProduct<Shifted>;
    constexpr std::int64_t kTwelveBits = kShifted;
#endif
    if (weight_type == kBFloat16) {
        std::atomic<bool> fits = true;
        parallel_ranges((n + kPanel - 1) / kPanel, num_threads, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t panel = begin; panel < end && fits; ++panel) {
                const std::int64_t first = panel * kPanel, columns = n - first < kPanel ? n - first : kPanel;
                const auto* weights = static_cast<const BFloat16*>(weight) + first * k;
                if (!Product::fits(weights, static_cast<int>(columns), k)) fits = false;
            }
        });
        return fits ? kTwelveBits : kBFloat16;
    }
#else
    (void)weight, (void)n, (void)k, (void)num_threads;
#endif
    return weight_type;
}

}  // namespace

std::size_t linear_scratch_bytes(const LinearArguments& a) {
    std::size_t bytes = 0;
    with_product(a.weight_type, [&](auto product) { bytes = decltype(product)::scratch_bytes(a); });
    return bytes;
}

void linear_prepare(const LinearArguments& a, void* scratch, std::int64_t begin, std::int64_t end) {
    with_product(a.weight_type, [&](auto product) { decltype(product)::prepare(a, scratch, begin, end); });
}

void linear_block(const LinearArguments& a, const void* scratch, std::int64_t row, std::int64_t row_end,
                  std::int64_t panel, std::int64_t panel_end, BackgroundFetch* background) {
    with_product(a.weight_type, [&](auto product) {
        BlockedLinear<decltype(product)>(a, scratch, background).block(row, row_end, panel, panel_end);
    });
}

LinearPieces linear_pieces(const LinearArguments& a, std::int64_t num_threads) {
    constexpr std::int64_t kPiecesPerThread = 16, kFewRows = 48;
    const std::int64_t panels = a.panels(), least = a.rows <= 8 ? 8 : a.rows <= 64 ? 4 : 2;
    LinearPieces pieces;
    with_product(a.weight_type, [&](auto product) {
        pieces.row_parts = BlockedLinear<decltype(product)>::chunks(a.k, a.rows);
    });
    if (const std::int64_t rounds = panels / least / num_threads; rounds > 0) {
        pieces.panel_parts = num_threads * (rounds < kPiecesPerThread ? rounds : kPiecesPerThread);
    } else {  // many threads for so few panels: rows are shared too
        pieces.panel_parts = panels < num_threads ? panels : num_threads;
        pieces.row_parts = a.rows / kFewRows > pieces.row_parts ? a.rows / kFewRows : pieces.row_parts;
    }
    return pieces;
}

std::int64_t linear_bursts(const LinearArguments& a) {
    std::int64_t bursts = 0;
    with_product(a.weight_type, [&](auto product) { bursts = BlockedLinear<decltype(product)>::bursts(a); });
    return bursts;
}

void linear_piece(const LinearArguments& a, const void* scratch, LinearPieces pieces, std::int64_t piece,
                  BackgroundFetch* background) {
    const std::int64_t row = piece / pieces.panel_parts, panel = piece % pieces.panel_parts;
    linear_block(a, scratch, a.rows * row / pieces.row_parts, a.rows * (row + 1) / pieces.row_parts,
                 a.panels() * panel / pieces.panel_parts, a.panels() * (panel + 1) / pieces.panel_parts,
                 background);
}

}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

struct LinearStorageArguments {
    const void* weight;  // [N, K] contiguous
    std::int64_t weight_type, n, k, num_threads;
    std::int64_t* stored;  // what to pack it as, and the bytes that this takes
};

OCTAVO_EXPORT(linear_storage, LinearStorageArguments) {
    a.stored[0] = stored_type(a.weight, a.weight_type, a.n, a.k, a.num_threads);
    with_product(a.stored[0], [&](auto product) {
        a.stored[1] = BlockedLinear<decltype(product)>::packed_bytes(a.n, a.k);
    });
    return 0;
}

struct PackLinearArguments {
    const void* weight;   // [N, K] contiguous
    const float* scales;  // [N] of int8 weights
    void* packed;         // aligned to 64 bytes
    std::int64_t stored_type, n, k, num_threads;
};

OCTAVO_EXPORT(pack_linear, PackLinearArguments) {
    with_product(a.stored_type, [&](auto product) {
        using Product = decltype(product);
        const auto* weight = static_cast<const typename Product::Source*>(a.weight);
        parallel_ranges((a.n + kPanel - 1) / kPanel, a.num_threads, [&](std::int64_t begin, std::int64_t end) {
            BlockedLinear<Product>::pack(weight, a.scales, a.packed, a.n, a.k, begin, end);
        });
#if defined(OCTAVO_INTEGER_PRODUCT)
        if constexpr (Product::kGroup > 1)
            parallel_ranges(Product::groups(a.k), a.num_threads, [&](std::int64_t begin, std::int64_t end) {
                BlockedLinear<Product>::set_limits(a.packed, a.n, a.k, begin, end);
            });
#endif
    });
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
    const std::int64_t threads = a.n * a.k <= kSerialElements ? 1 : a.num_threads;
    const LinearPieces pieces = linear_pieces(a, threads);
    parallel_ranges(pieces.count(), threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t piece = begin; piece < end; ++piece) linear_piece(a, prepared, pieces, piece, nullptr);
    });
    return 0;
}
