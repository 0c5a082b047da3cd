// Threads and scratch memory. The caller names the number of threads; no result depends on it.
#pragma once

#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace octavo::OCTAVO_ISA {

// Calls body(thread, number of threads) on each of `num_threads` threads.
template <typename F>
inline void parallel(std::int64_t num_threads, const F& body) {
    if (num_threads <= 1) {
        body(std::int64_t{0}, std::int64_t{1});
        return;
    }
#pragma omp parallel num_threads(static_cast<int>(num_threads))
    body(std::int64_t{omp_get_thread_num()}, std::int64_t{omp_get_num_threads()});
}

// Calls body(begin, end) on even, contiguous parts of 0..count, one per thread.
template <typename F>
inline void parallel_ranges(std::int64_t count, std::int64_t num_threads, const F& body) {
    if (count == 0) return;
    parallel(count < num_threads ? count : num_threads, [&](std::int64_t thread, std::int64_t threads) {
        body(count * thread / threads, count * (thread + 1) / threads);
    });
}

// Opening a parallel region costs about a microsecond: below this many elements one thread is faster.
constexpr std::int64_t kSerialElements = 16384;

// A thread's memory that grows to the largest size asked for and is kept, so that a steady state allocates nothing.
class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(memory_); }

    // Cache-line aligned, contents undefined; valid until the next call. nullptr when memory ran out.
    void* reserve(std::size_t bytes) {
        if (bytes > capacity_) {
            std::free(memory_);
            capacity_ = (bytes + 4095) / 4096 * 4096;
            memory_ = std::aligned_alloc(64, capacity_);
            if (memory_ == nullptr) capacity_ = 0;
        }
        return memory_;
    }

private:
    void* memory_ = nullptr;
    std::size_t capacity_ = 0;
};

}  // namespace octavo::OCTAVO_ISA
