// The paged cache, and what a thread will read of it next, in parts that it fetches while it computes.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

template <typename T>
struct PagedCache {
    const T* keys;
    const T* values;
    std::int64_t num_blocks, kv_heads, block_size, head_dim;

    // Of one head's keys or values in a block.
    std::int64_t block_bytes() const { return block_size * head_dim * static_cast<std::int64_t>(sizeof(T)); }
};

// The blocks that the thread wants next: `count` entries of a block table.
struct UpcomingBlocks {
    const std::int32_t* blocks = nullptr;
    std::int64_t count = 0, kv_head = 0;
};

// Parts have as many bytes as 16 keys or values of a head; of each block come first the keys, then the values.
template <typename T>
class BlockFetch {
public:
    BlockFetch(const PagedCache<T>& cache, const void* nothing)
        : cache_(cache), nothing_(static_cast<const char*>(nothing)) {}

    void begin(const UpcomingBlocks& next) {
        next_ = next;
        part_ = 0;
    }

    // The next part. If there is none left, `nothing`, which is there already.
    const char* next() {
        const std::int64_t parts = cache_.block_size / kLanes, id = next_.count == 0 ? -1 : *next_.blocks;
        if (id < 0 || id >= cache_.num_blocks || parts == 0) return nothing_;
        const T* cache = part_ < parts ? cache_.keys : cache_.values;
        const std::int64_t first = (id * cache_.kv_heads + next_.kv_head) * cache_.block_bytes();
        const char* part = reinterpret_cast<const char*>(cache) + first + part_ % parts * kLanes * key_bytes();
        if (++part_ == 2 * parts) {
            part_ = 0;
            ++next_.blocks;
            --next_.count;
        }
        return part;
    }

    // To fetch of a part for each of 16 keys that are computed meanwhile; 0: there is nothing to fetch.
    std::int64_t bytes_per_key() const { return next_.count > 0 ? key_bytes() : 0; }

private:
    std::int64_t key_bytes() const { return cache_.head_dim * static_cast<std::int64_t>(sizeof(T)); }

    const PagedCache<T>& cache_;
    const char* nothing_;
    UpcomingBlocks next_;     // that were not fetched whole
    std::int64_t part_ = 0;  // of the first
};

// Into the second cache level: into the first, lines come one after the other where few are waited for at a time.
inline void fetch_lines(const char*& from, std::int64_t bytes) {
    for (const char* const end = from + bytes; from < end; from += 64) __builtin_prefetch(from, 0, 2);
}

}  // namespace octavo::OCTAVO_ISA
