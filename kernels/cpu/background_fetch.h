// Blocks of the paged cache that threads will read soon, fetched a few lines at a time while they compute.
#pragma once

#include <cstdint>

namespace octavo::OCTAVO_ISA {

// A thread's. Of each block it takes as much of the keys as of the values; what there is no time for is left to
// attention.
class BackgroundFetch {
public:
    // From these on, `bytes` of either for every burst.
    struct Part {
        const char* keys = nullptr;
        const char* values = nullptr;
        std::int64_t bytes = 0;
    };

    BackgroundFetch() = default;  // of nothing

    // `count` blocks, each with `block_bytes` of keys and of values, evenly over `bursts`; over none: of nothing.
    BackgroundFetch(const void* keys, const void* values, std::int64_t block_bytes, const std::int32_t* blocks,
                    std::int64_t count, std::int64_t bursts)
        : keys_(static_cast<const char*>(keys)),
          values_(static_cast<const char*>(values)),
          block_bytes_(block_bytes),
          blocks_(blocks),
          count_(bursts > 0 ? count : 0) {
        if (count_ == 0) return;
        rate_ = (count * block_bytes + bursts - 1) / bursts;
        if (rate_ > kMostBytes) rate_ = kMostBytes;
    }

    // What to fetch in the next `bursts`: part of a block, and what that leaves due is made up for in those after them.
    Part take(std::int64_t bursts) {
        if (count_ == 0 || bursts == 0) return {};
        due_ += rate_ * bursts;
        const std::int64_t first = *blocks_ * block_bytes_ + done_, left = block_bytes_ - done_;
        const Part part = {keys_ + first, values_ + first, ((due_ < left ? due_ : left) + bursts - 1) / bursts};
        due_ -= part.bytes * bursts;
        done_ += part.bytes * bursts;
        if (done_ >= block_bytes_) {
            done_ = 0;
            ++blocks_;
            --count_;
        }
        return part;
    }

private:
    static constexpr std::int64_t kMostBytes = 256;  // of keys in a burst: more would be waited for

    const char* keys_ = nullptr;
    const char* values_ = nullptr;
    std::int64_t block_bytes_ = 0;
    const std::int32_t* blocks_ = nullptr;  // that are not fetched whole
    std::int64_t count_ = 0, done_ = 0;     // done: bytes of the first
    std::int64_t rate_ = 0, due_ = 0;       // bytes for a burst, and those of the bursts that have been
};

}  // namespace octavo::OCTAVO_ISA
