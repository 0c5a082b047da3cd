// Attention of one query block over one split of its keys: the unit from which every call is built.
//
// A split is kSplit keys counted from position 0, so it is the same split whether a query arrives in a whole prompt, a
// chunk or a decode step, and whatever a window has trimmed. Within a split: a score is one multiply-add chain over the
// head dimension, then the soft cap; the weights add up by key position modulo 16, then a fixed tree; an output element
// is one chain over the keys in order (attention_dot.h: in pairs). Keys that a query does not see add exact zeros. Splits
// merge from the first to the last. Hence a query's result depends on its position, the keys it sees and nothing else.
//
// The cache. Values lie as [num_blocks, kv_heads, block_size, D]. A block's keys lie transposed, as words of 32 bits:
// one float, or two bfloat16 that are neighbours in the head, the lower in the low half. Word w of a key is in row w of
// [D floats or D / 2 pairs, block_size], so that 16 keys are scored at a time without being rearranged.
#pragma once

#include "attention_dot.h"
#include "attention_fetch.h"
#include "tile.h"

namespace octavo::OCTAVO_ISA {

constexpr int kSplit = 256;
constexpr int kKeyTile = 2 * kLanes;
constexpr int kFetchAhead = 4;  // blocks of keys
constexpr int kScoreStride = kSplit + kLanes;  // off the power of two that would map all rows to few cache sets

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

// Query blocks of up to so many rows read bfloat16 as it lies in the cache; for more it is widened once for all of them,
// unless there are dot products of it.
constexpr int kFewRows = kNativeLanes == 16 ? 12 : 3;

// Elements d and d + 1 of 16 keys each, from a row of their words.
struct KeyPair {
    Vec first, second;

    explicit KeyPair(const float* words) {
        const Vec pairs = load(words);
        first = each_part([&](int i) __attribute__((always_inline)) {
            return bit_cast<NativeFloat>(bit_cast<NativeBits>(pairs.part[i]) << 16);
        });
        second = each_part([&](int i) __attribute__((always_inline)) {
            return bit_cast<NativeFloat>(bit_cast<NativeBits>(pairs.part[i]) & 0xffff0000u);
        });
    }
};

// Row d of the keys of a tile: 16 keys in each of two places.
struct KeyColumns {
    static constexpr bool kWidens = false;

    const float* groups[2];
    std::ptrdiff_t stride;

    void load(std::ptrdiff_t d, Vec (&columns)[2]) const {
        columns[0] = OCTAVO_ISA::load(groups[0] + d * stride);
        columns[1] = OCTAVO_ISA::load(groups[1] + d * stride);
    }
};

template <typename T>
class SplitAttention {
public:
    // Floats of scratch for query blocks of up to `rows` rows.
    static std::int64_t scratch_floats(std::int64_t rows, std::int64_t head_dim) {
        const std::int64_t wide_values = kPerWord == 1 || kDots || rows <= kFewRows ? 0 : kSplit * head_dim;
        const std::int64_t pairs = kDots ? rows * query_stride(head_dim) : 0;
        return 2 * head_dim * kKeyTile + rows * kScoreStride + wide_values + pairs;
    }

    SplitAttention(const PagedCache<T>& cache, float soft_cap, std::int64_t max_rows, float* scratch)
        : cache_(cache),
          soft_cap_(soft_cap),
          key_tile_(scratch),
          wide_keys_(key_tile_ + cache.head_dim * kKeyTile),
          scores_(wide_keys_ + cache.head_dim * kKeyTile),
          wide_values_(scores_ + max_rows * kScoreStride),
          pairs_(wide_values_) {}

    // False if the block table names a block that does not exist; `out` is then undefined.
    bool attend(const QueryBlock& block, std::int64_t split, Partial out, const UpcomingBlocks& next = {}) {
        // Rows are in order of position: the first sees the earliest key, the last the latest.
        const KeyRange keys = {block.visible(0, split).begin, block.visible(block.rows - 1, split).end};
        if (!find_segments(block, split, keys)) return false;
        // A decode step takes as long to read its keys and values as to multiply them: both at the same time. Of
        // bfloat16, the next task's come into the second cache level, a line now and then: many at once would be waited
        // for, and into the first level they would come half as fast. Of float32, of which there is twice as much, a
        // block or two before each tile was seen to do better.
        const bool few = block.rows <= kFewRows, bursts = few && kPerWord == 1;
        fetch_.begin(few && !bursts ? next : UpcomingBlocks());
        round_queries(block);
        for (int s = 0; bursts && s < kFetchAhead; ++s) fetch_keys(s);
        int fetched = 0;
        for (int tile = keys.begin / kKeyTile * kKeyTile; tile < keys.end; tile += kKeyTile) {
            for (; bursts && fetched < num_segments_ && segments_[fetched].begin < tile + kKeyTile; ++fetched) {
                fetch(segments_[fetched].values);
                fetch_keys(fetched + kFetchAhead);
            }
            score(block, tile, columns_of(tile, keys));
        }
        for (int row = 0; row < block.rows; ++row) softmax(block.visible(row, split), keys, row, out);
        weigh_values(block.rows, keys, out);
        return true;
    }

private:
    static constexpr int kPerWord = sizeof(float) / sizeof(T);
#if defined(__AVX512BF16__)
    static constexpr bool kDots = kPerWord == 2;
#else
    static constexpr bool kDots = false;
#endif

    // Words of a query's pairs, and of whole vectors of them.
    static std::int64_t query_stride(std::int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes / 2; }

    void round_queries(const QueryBlock& block) {
#if defined(__AVX512BF16__)
        if constexpr (kDots)
            for (int row = 0; row < block.rows; ++row)
                round_to_bfloat16(block.q + row * cache_.head_dim, cache_.head_dim,
                                  pairs_ + row * query_stride(cache_.head_dim));
#endif
    }

    // A run of keys within one block.
    template <typename V>
    struct Segment {
        const float* keys;  // word 0 of the first
        const V* values;
        int begin, count;
    };

    bool find_segments(const QueryBlock& block, std::int64_t split, KeyRange keys) {
        num_segments_ = 0;
        for (int key = keys.begin; key < keys.end;) {
            const std::int64_t position = split * kSplit + key, offset = position % cache_.block_size;
            const std::int64_t id = block.block_table[position / cache_.block_size];
            if (id < 0 || id >= cache_.num_blocks) return false;
            const std::int64_t left = cache_.block_size - offset;
            const int count = left < keys.end - key ? static_cast<int>(left) : keys.end - key;
            const std::int64_t first = (id * cache_.kv_heads + block.kv_head) * cache_.block_size * cache_.head_dim;
            segments_[num_segments_++] = {reinterpret_cast<const float*>(cache_.keys + first) + offset,
                                          cache_.values + first + offset * cache_.head_dim, key, count};
            key += count;
        }
        return true;
    }

    void fetch_keys(int segment) const {
        if (segment < num_segments_) fetch(segments_[segment].keys);
    }

    // As much as a head's part of a block: keys are all over it, however few of them are meant.
    void fetch(const void* begin) const {
        for (std::int64_t i = 0; i < cache_.block_bytes(); i += 64) __builtin_prefetch(static_cast<const char*>(begin) + i);
    }

    // The segment of keys [first, first + 16). For 16 that no query sees, a neighbour stands in: `first` becomes its.
    const Segment<T>& segment_of(int& first, KeyRange keys) const {
        const int last = (keys.end - 1) / kLanes * kLanes, begin = keys.begin / kLanes * kLanes;
        first = first < begin ? begin : first > last ? last : first;
        int s = 0;
        while (segments_[s].begin + segments_[s].count <= first) ++s;
        return segments_[s];
    }

    // Where 16 keys of blocks that hold a multiple of 16 lie. Nobody looks at the scores of those that no query sees.
    const float* group_of(int first, KeyRange keys) const {
        const Segment<T>& segment = segment_of(first, keys);
        return segment.keys + (first - segment.begin);
    }

    // The words of a tile's keys: in the cache, or, of blocks that vectors do not fit, copied together. What lies
    // between those copied is as it was.
    KeyColumns columns_of(int tile, KeyRange keys) {
        if (cache_.block_size % kLanes == 0)
            return {{group_of(tile, keys), group_of(tile + kLanes, keys)}, cache_.block_size};
        for (int s = 0; s < num_segments_; ++s) {
            const int begin = segments_[s].begin < tile ? tile : segments_[s].begin;
            const int segment_end = segments_[s].begin + segments_[s].count;
            const int end = segment_end < tile + kKeyTile ? segment_end : tile + kKeyTile;
            for (std::int64_t word = 0; word < cache_.head_dim / kPerWord && begin < end; ++word)
                std::memcpy(key_tile_ + word * kKeyTile + (begin - tile),
                            segments_[s].keys + word * cache_.block_size + (begin - segments_[s].begin),
                            static_cast<std::size_t>(end - begin) * sizeof(float));
        }
        return {{key_tile_, key_tile_ + kLanes}, kKeyTile};
    }

    void score(const QueryBlock& block, int first_key, const KeyColumns& keys) {
        float* scores = scores_ + first_key;
        if constexpr (kDots) {
            score_pairs(block, keys, scores);
        } else if constexpr (kPerWord == 2) {
            if (block.rows <= kFewRows) {
                with_rows<kFewRows>(
                    block.rows, [&](auto rows) { score_few<decltype(rows)::value>(block, keys, scores); });
                return;
            }
            score_many(block, widen(keys), scores);
        } else {
            score_many(block, keys, scores);
        }
    }

    void score_pairs(const QueryBlock& block, const KeyColumns& keys, float* scores) {
#if defined(__AVX512BF16__)
        const std::int64_t stride = query_stride(cache_.head_dim);
        const char* const next[2] = {fetch_.next(), fetch_.next()};
        for_row_tiles<kTileRows<float>>(block.rows, [&](std::ptrdiff_t first, auto tile_rows) {
            constexpr int kRows = decltype(tile_rows)::value;
            const DotTile<kRows, 2> tile = dot_keys<kRows>(pairs_ + first * stride, stride, cache_.head_dim / 2,
                                                           keys.groups, keys.stride, next);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
                for (int g = 0; g < 2; ++g)
                    store(scores + (first + r) * kScoreStride + g * kLanes, Vec{{tile.sum[r][g]}});
        });
#endif
    }

    KeyColumns widen(const KeyColumns& keys) {
        for (std::int64_t word = 0; word < cache_.head_dim / 2; ++word)
            for (int g = 0; g < 2; ++g) {
                const KeyPair pair(keys.groups[g] + word * keys.stride);
                store(wide_keys_ + 2 * word * kKeyTile + g * kLanes, pair.first);
                store(wide_keys_ + (2 * word + 1) * kKeyTile + g * kLanes, pair.second);
            }
        return {{wide_keys_, wide_keys_ + kLanes}, kKeyTile};
    }

    void score_many(const QueryBlock& block, const KeyColumns& keys, float* scores) const {
        const std::int64_t head_dim = cache_.head_dim;
        for_row_tiles<kTileRows<float>>(block.rows, [&](std::ptrdiff_t first, auto tile_rows) {
            constexpr int kRows = decltype(tile_rows)::value;
            Tile<kRows, 2> tile;
            tile.clear();
            tile.accumulate(block.q + first * head_dim, head_dim, keys, head_dim);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                float* to = scores + (first + r) * kScoreStride;
                store(to, tile.sum[r][0]);
                store(to + kLanes, tile.sum[r][1]);
            }
        });
    }

    // As many groups of keys together as there are registers for: their sums, an element of each row's query, a key.
    template <int ROWS>
    void score_few(const QueryBlock& block, const KeyColumns& keys, float* scores) {
        constexpr int kTogether = kNativeLanes >= 8 || ROWS == 1 ? 2 : 1;
        const char* const next[2] = {fetch_.next(), fetch_.next()};
        for (int group = 0; group < 2; group += kTogether) {
            Tile<ROWS, kTogether> tile;
            tile.clear();
            NativeBits high = NativeBits{} + 0xffff0000u;
            for (std::int64_t word = 0; word < cache_.head_dim / 2; ++word) {
                asm volatile("" : "+m"(high));  // there is no register to keep it in
                const float* q = block.q + 2 * word;
                for (int g = 0; g < kTogether; ++g)  // 16 keys have as many lines as one has words
                    __builtin_prefetch(next[group + g] + word * 64, 0, 2);
                score_element(q, keys, group, word, tile, [](NativeBits pairs) { return pairs << 16; });
                score_element(q + 1, keys, group, word, tile, [&](NativeBits pairs) { return pairs & high; });
            }
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
                for (int g = 0; g < kTogether; ++g)
                    store(scores + r * kScoreStride + (group + g) * kLanes, tile.sum[r][g]);
        }
    }

    // Adds one element of each row's query times that of the keys, which `half` takes from their words.
    template <int ROWS, int GROUPS, typename Half>
    inline __attribute__((always_inline)) void score_element(const float* q, const KeyColumns& keys, int group,
                                                             std::int64_t word, Tile<ROWS, GROUPS>& tile,
                                                             const Half& half) const {
#pragma GCC unroll 2
        for (int g = 0; g < GROUPS; ++g) {
            const float* words = keys.groups[group + g] + word * keys.stride;
            asm volatile("" : "+r"(words));  // for the other half they are read again
#pragma GCC unroll 4
            for (int i = 0; i < kParts; ++i) {
                NativeBits pairs;
                std::memcpy(&pairs, words + i * kNativeLanes, sizeof(pairs));
                const NativeFloat key = bit_cast<NativeFloat>(half(pairs));
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r) {
                    NativeFloat& sum = tile.sum[r][g].part[i];
                    sum = native_fma(native_broadcast(q[r * cache_.head_dim]), key, sum);
                }
            }
        }
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
#if defined(__AVX512BF16__)
        if constexpr (kDots) round_to_bfloat16(scores + begin, end - begin, scores + begin / 2);
#endif
    }

    // cap * tanh(score / cap), which stays within (-cap, cap).
    void cap(float* scores, int begin, int end) const {
        const Vec limit = broadcast(soft_cap_);
        for (int key = begin; key < end; key += kLanes)
            store(scores + key, limit * tanh(load(scores + key) / limit));
    }

    // out[row] = sum over keys of weight * value.
    void weigh_values(int rows, KeyRange keys, Partial out) {
        if constexpr (kDots) {
            weigh_pairs(rows, out);
        } else if constexpr (kPerWord == 2) {
            if (rows <= kFewRows) {
                weigh_columns<kFewRows, kNativeLanes >= 8 ? 2 : 1>(segments_, num_segments_, rows, out);
                return;
            }
            for (int s = 0; s < num_segments_; ++s)
                for (std::int64_t i = 0; i < segments_[s].count * cache_.head_dim; i += kLanes)
                    store(wide_values_ + segments_[s].begin * cache_.head_dim + i, load(segments_[s].values + i));
            const Segment<float> all = {nullptr, wide_values_ + keys.begin * cache_.head_dim, keys.begin,
                                        keys.end - keys.begin};
            weigh_columns<kTileRows<float>, 2>(&all, 1, rows, out);
        } else {
            weigh_columns<kTileRows<float>, 2>(segments_, num_segments_, rows, out);
        }
    }

    void weigh_pairs(int rows, Partial out) {
#if defined(__AVX512BF16__)
        const std::int64_t head_dim = cache_.head_dim;
        constexpr int kRowsOfTwo = 6;
        if (rows <= kRowsOfTwo) {
            with_rows<kRowsOfTwo>(rows, [&](auto tile_rows) {
                std::int64_t column = 0;
                for (; column + 32 < head_dim; column += 64)
                    weigh_chunks<decltype(tile_rows)::value, 2>(0, column, out);
                if (column < head_dim) weigh_chunks<decltype(tile_rows)::value, 1>(0, column, out);
            });
            return;
        }
        for (std::int64_t column = 0; column < head_dim; column += 32)
            for_row_tiles<kTileRows<float>>(rows, [&](std::ptrdiff_t first, auto tile_rows) {
                weigh_chunks<decltype(tile_rows)::value, 1>(first, column, out);
            });
#endif
    }

#if defined(__AVX512BF16__)
    template <int ROWS, int CHUNKS>
    void weigh_chunks(std::ptrdiff_t first, std::int64_t column, Partial out) {
        static constexpr BFloat16 kZeros[32 * CHUNKS] = {};
        const std::int64_t head_dim = cache_.head_dim, left = head_dim - column - 32 * (CHUNKS - 1);
        const std::int64_t per_key = fetch_.bytes_per_key();
        const float* weights = scores_ + first * kScoreStride;
        ValueSums<ROWS, CHUNKS> sums(left < 32 ? left : 32);
        const BFloat16* even = kZeros;  // the values of the last key, if it is even and has nothing beside it yet
        int key = 0;
        for (int s = 0; s < num_segments_; ++s) {
            const Segment<T>& segment = segments_[s];
            const BFloat16* values = segment.values + column;
            const int end = segment.begin + segment.count;
            key = segment.begin;
            if (key % 2 != 0) {
                sums.add(even, values, weights + key / 2, kScoreStride);
                values += head_dim;
                ++key;
            }
            while (key + 1 < end) {
                const char* next = fetch_.next();
                for (int i = 0; i < kLanes && key + 1 < end; i += 2, key += 2, values += 2 * head_dim) {
                    fetch_lines(next, 2 * per_key);
                    sums.add(values, values + head_dim, weights + key / 2, kScoreStride);
                }
            }
            even = key < end ? values : kZeros;
        }
        if (even != kZeros) sums.add(even, kZeros, weights + key / 2, kScoreStride);
        sums.write(out.out + first * head_dim + column, head_dim);
    }
#endif

    // In tiles of up to MAX_ROWS rows and VECS vectors of columns, then of one vector.
    template <int MAX_ROWS, int VECS, typename V>
    void weigh_columns(const Segment<V>* segments, int count, int rows, Partial out, std::int64_t column = 0) {
        constexpr int kBurst = sizeof(V) < sizeof(float) ? 4 : kLanes;
        const std::int64_t head_dim = cache_.head_dim;
        const std::int64_t per_key = fetch_.bytes_per_key();
        for (; column + VECS * kLanes <= head_dim; column += VECS * kLanes) {
            for_row_tiles<MAX_ROWS>(rows, [&](std::ptrdiff_t first, auto tile_rows) {
                constexpr int kRows = decltype(tile_rows)::value;
                Tile<kRows, VECS> tile;
                tile.clear();
                for (int s = 0; s < count; ++s) {
                    const Segment<V>& segment = segments[s];
                    for (int k = 0; k < segment.count; k += kLanes) {
                        const char* next = fetch_.next();
                        const int end = segment.count - k < kLanes ? segment.count : k + kLanes;
                        for (int i = k; i < end; i += kBurst) {
                            fetch_lines(next, kBurst * per_key);
                            tile.accumulate(scores_ + first * kScoreStride + segment.begin + i, kScoreStride,
                                            RowColumns<V>{segment.values + column + i * head_dim, head_dim},
                                            end - i < kBurst ? end - i : kBurst);
                        }
                    }
                }
#pragma GCC unroll 16
                for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
                    for (int c = 0; c < VECS; ++c)
                        store(out.out + (first + r) * head_dim + column + c * kLanes, tile.sum[r][c]);
            });
        }
        if constexpr (VECS > 1) weigh_columns<MAX_ROWS, 1>(segments, count, rows, out, column);
    }

    PagedCache<T> cache_;
    float soft_cap_;   // 0: none
    float* key_tile_;     // [D / kPerWord, kKeyTile] words, of blocks that vectors do not fit
    float* wide_keys_;    // [D, kKeyTile]
    float* scores_;       // [rows, kScoreStride]
    float* wide_values_;  // [kSplit, D]
    float* pairs_;        // [rows, query_stride] words, instead of those
    Segment<T> segments_[kSplit];
    int num_segments_ = 0;
    BlockFetch<T> fetch_{cache_, scores_};
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
