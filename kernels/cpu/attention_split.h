// Attention of one query block over one split of its keys: the unit from which every call is built.
//
// A split is kSplit keys counted from position 0, so it is the same split whether a query arrives in a whole prompt, a
// chunk or a decode step, and whatever a window has trimmed. Within a split: a score is one multiply-add chain over the
// head dimension, then the soft cap; the weights add up by key position modulo 16, then a fixed tree; an output element is one chain over
// the keys in order. Keys that a query does not see add exact zeros. Splits merge from the first to the last. Hence a
// query's result depends on its position, the keys it sees and nothing else.
#pragma once

#include "tile.h"

namespace octavo::OCTAVO_ISA {

constexpr int kSplit = 256;
constexpr int kKeyTile = 2 * kLanes;
constexpr int kScoreStride = kSplit + kLanes;  // off the power of two that would map all rows to few cache sets

template <typename T>
struct PagedCache {
    const T* keys;  // [num_blocks, kv_heads, block_size, head_dim]
    const T* values;
    std::int64_t num_blocks, kv_heads, block_size, head_dim;
};

// A range of keys, counted from the start of a split.
struct KeyRange {
    int begin, end;
};

// Neighbouring queries of one sequence times the query heads of one kv head: keys are read once for all of them.
struct QueryBlock {
    const float* q;  // [rows, D], scaled; row r is query r / group, head r % group
    int rows, group;
    std::int64_t first_position;  // of row 0
    std::int64_t window;          // 0: none
    std::int64_t kv_head;
    const std::int32_t* block_table;

    std::int64_t position(int row) const { return first_position + row / group; }

    std::int64_t first_key(int row) const {
        const std::int64_t first = position(row) - window + 1;
        return window == 0 || first < 0 ? 0 : first;
    }

    std::int64_t first_split(int row) const { return first_key(row) / kSplit; }
    std::int64_t last_split(int row) const { return position(row) / kSplit; }

    KeyRange visible(int row, std::int64_t split) const {
        const std::int64_t begin = first_key(row) - split * kSplit, end = position(row) + 1 - split * kSplit;
        return {static_cast<int>(begin < 0 ? 0 : begin), static_cast<int>(end > kSplit ? kSplit : end)};
    }
};

// Unnormalised attention: the largest score of each row, its sum of weights and its weighted values.
struct Partial {
    float* max;  // [rows]
    float* sum;  // [rows]
    float* out;  // [rows, D]

    static std::int64_t floats(std::int64_t rows, std::int64_t head_dim) { return rows * (head_dim + 2); }
    static Partial at(float* memory, std::int64_t rows) { return {memory, memory + rows, memory + 2 * rows}; }
};

typedef float Float4 __attribute__((vector_size(16)));
typedef std::int32_t Int4 __attribute__((vector_size(16)));

inline Float4 load4(const void* p) {
    Float4 result;
    std::memcpy(&result, p, sizeof(result));
    return result;
}

// Row d of the transposed keys: floats, or bfloat16 in pairs of neighbours in d, the lower in the low half of a word.
template <typename T>
struct KeyColumns {
    const float* tile;

    void load(std::ptrdiff_t d, Vec (&columns)[2]) const {
        if constexpr (sizeof(T) == sizeof(float)) {
            RowColumns<float>{tile, kKeyTile}.load(d, columns);
        } else {
            RowColumns<float>{tile, kKeyTile}.load(d / 2, columns);
            const int shift = d % 2 == 0 ? 16 : 0;
            for (Vec& column : columns)
                column = each_part([&](int i) __attribute__((always_inline)) {
                    return bit_cast<NativeFloat>(bit_cast<NativeBits>(column.part[i]) << shift & 0xffff0000u);
                });
        }
    }
};

template <typename T>
class SplitAttention {
public:
    // Floats of scratch for query blocks of up to `rows` rows.
    static std::int64_t scratch_floats(std::int64_t rows, std::int64_t head_dim) {
        return head_dim * kKeyTile + rows * kScoreStride;
    }

    SplitAttention(const PagedCache<T>& cache, float soft_cap, float* scratch)
        : cache_(cache),
          soft_cap_(soft_cap),
          key_tile_(scratch),
          scores_(scratch + cache.head_dim * kKeyTile) {}

    // False if the block table names a block that does not exist; `out` is then undefined.
    bool attend(const QueryBlock& block, std::int64_t split, Partial out) {
        // Rows are in order of position: the first sees the earliest key, the last the latest.
        const KeyRange keys = {block.visible(0, split).begin, block.visible(block.rows - 1, split).end};
        if (!find_keys(block, split, keys)) return false;
        for (int tile = keys.begin / kKeyTile * kKeyTile; tile < keys.end; tile += kKeyTile) {
            transpose_keys(tile, keys);
            score(block, tile);
        }
        for (int row = 0; row < block.rows; ++row) softmax(block.visible(row, split), keys, row, out);
        weigh_values<2>(block.rows, 0, out);
        if (cache_.head_dim % kKeyTile != 0) weigh_values<1>(block.rows, cache_.head_dim / kKeyTile * kKeyTile, out);
        return true;
    }

private:
    static constexpr int kPerWord = sizeof(float) / sizeof(T);

    // A run of keys within one block.
    struct Segment {
        const T* values;
        int begin, count;
    };

    bool find_keys(const QueryBlock& block, std::int64_t split, KeyRange keys) {
        num_segments_ = 0;
        for (int key = keys.begin; key < keys.end;) {
            const std::int64_t position = split * kSplit + key, offset = position % cache_.block_size;
            const std::int64_t id = block.block_table[position / cache_.block_size];
            if (id < 0 || id >= cache_.num_blocks) return false;
            const std::int64_t left = cache_.block_size - offset;
            const int count = left < keys.end - key ? static_cast<int>(left) : keys.end - key;
            const std::int64_t first =
                ((id * cache_.kv_heads + block.kv_head) * cache_.block_size + offset) * cache_.head_dim;
            segments_[num_segments_++] = {cache_.values + first, key, count};
            for (int i = 0; i < count; ++i) keys_[key + i] = cache_.keys + first + i * cache_.head_dim;
            key += count;
        }
        return true;
    }

    // key_tile_[d][j] = word d of key tile + j: one float, or two bfloat16, which halves the work. Past the ends a
    // neighbour stands in: nobody looks at its score.
    void transpose_keys(int tile, KeyRange keys) {
        const auto clamped = [&](int key) {
            return keys_[key < keys.begin ? keys.begin : key >= keys.end ? keys.end - 1 : key];
        };
        for (int j = 0; j < kKeyTile; j += 4) {
            const T* rows[4] = {clamped(tile + j), clamped(tile + j + 1), clamped(tile + j + 2), clamped(tile + j + 3)};
            for (std::int64_t d = 0; d < cache_.head_dim / kPerWord; d += 4) {
                const Float4 a = load4(rows[0] + d * kPerWord), b = load4(rows[1] + d * kPerWord);
                const Float4 c = load4(rows[2] + d * kPerWord), e = load4(rows[3] + d * kPerWord);
                const Float4 ab_low = __builtin_shuffle(a, b, Int4{0, 4, 1, 5});
                const Float4 ab_high = __builtin_shuffle(a, b, Int4{2, 6, 3, 7});
                const Float4 ce_low = __builtin_shuffle(c, e, Int4{0, 4, 1, 5});
                const Float4 ce_high = __builtin_shuffle(c, e, Int4{2, 6, 3, 7});
                const Float4 columns[4] = {__builtin_shuffle(ab_low, ce_low, Int4{0, 1, 4, 5}),
                                           __builtin_shuffle(ab_low, ce_low, Int4{2, 3, 6, 7}),
                                           __builtin_shuffle(ab_high, ce_high, Int4{0, 1, 4, 5}),
                                           __builtin_shuffle(ab_high, ce_high, Int4{2, 3, 6, 7})};
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i)
                    std::memcpy(key_tile_ + (d + i) * kKeyTile + j, &columns[i], sizeof(Float4));
            }
        }
    }

    void score(const QueryBlock& block, int first_key) {
        const std::int64_t head_dim = cache_.head_dim;
        for_row_tiles<kTileRows<float>>(block.rows, [&](std::ptrdiff_t first, auto tile_rows) {
            constexpr int kRows = decltype(tile_rows)::value;
            Tile<kRows, 2> tile;
            tile.clear();
            tile.accumulate(block.q + first * head_dim, head_dim, KeyColumns<T>{key_tile_}, head_dim);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                float* to = scores_ + (first + r) * kScoreStride + first_key;
                store(to, tile.sum[r][0]);
                store(to + kLanes, tile.sum[r][1]);
            }
        });
    }

    // Turns a row of scores into weights: exp(score - max) where visible, zero elsewhere.
    void softmax(KeyRange visible, KeyRange keys, int row, Partial out) {
        float* scores = scores_ + row * kScoreStride;
        const int begin = keys.begin / kLanes * kLanes, end = (keys.end + kLanes - 1) / kLanes * kLanes;
        const float minus_infinity = -__builtin_inff();
        if (soft_cap_ > 0) cap(scores, begin, end);
        for (int key = begin; key < visible.begin && key < end; ++key) scores[key] = minus_infinity;
        for (int key = visible.end < begin ? begin : visible.end; key < end; ++key) scores[key] = minus_infinity;

        Vec largest = broadcast(minus_infinity);
        for (int key = begin; key < end; key += kLanes) largest = maximum(load(scores + key), largest);
        out.max[row] = reduce_max(largest);
        Vec sum = zero();
        const Vec shift = broadcast(out.max[row]);
        for (int key = begin; key < end; key += kLanes) {
            const Vec value = load(scores + key);
            const Vec weight = where_minus_infinity(value, zero(), exp(value - shift));
            store(scores + key, weight);
            sum = sum + weight;
        }
        out.sum[row] = reduce_add(sum);
    }

    // cap * tanh(score / cap), which stays within (-cap, cap).
    void cap(float* scores, int begin, int end) const {
        const Vec limit = broadcast(soft_cap_);
        for (int key = begin; key < end; key += kLanes)
            store(scores + key, limit * tanh(load(scores + key) / limit));
    }

    // out[row][column...] = sum over keys of weight * value, from `column` on in steps of VECS vectors.
    template <int VECS>
    void weigh_values(int rows, std::int64_t column, Partial out) {
        const std::int64_t head_dim = cache_.head_dim;
        for (; column + VECS * kLanes <= head_dim; column += VECS * kLanes) {
            for_row_tiles<kTileRows<T>>(rows, [&](std::ptrdiff_t first, auto tile_rows) {
                constexpr int kRows = decltype(tile_rows)::value;
                Tile<kRows, VECS> tile;
                tile.clear();
                for (int s = 0; s < num_segments_; ++s) {
                    const Segment& segment = segments_[s];
                    tile.accumulate(scores_ + first * kScoreStride + segment.begin, kScoreStride,
                                    RowColumns<T>{segment.values + column, head_dim}, segment.count);
                }
#pragma GCC unroll 16
                for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
                    for (int c = 0; c < VECS; ++c)
                        store(out.out + (first + r) * head_dim + column + c * kLanes, tile.sum[r][c]);
            });
        }
    }

    PagedCache<T> cache_;
    float soft_cap_;   // 0: none
    float* key_tile_;  // [D / kPerWord, kKeyTile] words
    float* scores_;    // [rows, kScoreStride]
    const T* keys_[kSplit];
    Segment segments_[kSplit];
    int num_segments_ = 0;
};

// Folds the partial of `split` into the running one; called from a block's first split to its last.
inline void merge(const QueryBlock& block, std::int64_t split, Partial from, Partial into, std::int64_t head_dim) {
    for (int row = 0; row < block.rows; ++row) {
        if (split < block.first_split(row) || split > block.last_split(row)) continue;
        const float* added = from.out + row * head_dim;
        float* out = into.out + row * head_dim;
        if (split == block.first_split(row)) {
            into.max[row] = from.max[row];
            into.sum[row] = from.sum[row];
            std::memcpy(out, added, static_cast<std::size_t>(head_dim) * sizeof(float));
            continue;
        }
        const float before = into.max[row], now = from.max[row], max = now > before ? now : before;
        const float keep = exp(before - max), take = exp(now - max);
        into.max[row] = max;
        into.sum[row] = into.sum[row] * keep + from.sum[row] * take;
        for (std::int64_t d = 0; d < head_dim; ++d) out[d] = out[d] * keep + added[d] * take;
    }
}

}  // namespace octavo::OCTAVO_ISA
