// Threads that go through the phases of one parallel region together.
//
// A barrier costs a tenth of a microsecond while all threads run, where opening a region costs a microsecond, or
// milliseconds once threads have gone to sleep. A thread that waits spins for about as long as a sleep and a wake-up
// would cost and then sleeps in the kernel: where other processes want the cores, the peer that it waits for can take
// its core, which it could not from a thread that spins or yields.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif

#include "parallel.h"

namespace octavo::OCTAVO_ISA {

constexpr int kSpins = 2000;  // some 40 to 100 us

inline void pause_spinning() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// What the threads of a region share. `kMaxThreads` bounds them.
class Team {
public:
    static constexpr std::int64_t kMaxThreads = 256;

    // Returns once all `threads` threads have called it; what they wrote before is then visible to all.
    void wait(std::int64_t threads) {
        const std::uint32_t generation = generation_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_seq_cst);
            if (sleepers_.load(std::memory_order_seq_cst) > 0) wake();
            return;
        }
        for (int spin = 0; spin < kSpins; ++spin) {
            if (generation_.load(std::memory_order_acquire) != generation) return;
            pause_spinning();
        }
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        while (generation_.load(std::memory_order_seq_cst) == generation) sleep(generation);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }

private:
    friend class Member;

    struct alignas(64) Cursor {
        std::atomic<std::int64_t> next[2];
    };

#if defined(__linux__)
    void sleep(std::uint32_t generation) {
        syscall(SYS_futex, &generation_, FUTEX_WAIT_PRIVATE, generation, nullptr, nullptr, 0);
    }
    void wake() { syscall(SYS_futex, &generation_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }
#else
    void sleep(std::uint32_t) { sched_yield(); }
    void wake() {}
#endif

    alignas(64) std::atomic<std::int64_t> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> generation_{0};
    std::atomic<std::int32_t> sleepers_{0};
    Cursor cursors_[kMaxThreads] = {};
};

// One thread's part in the team. Every thread makes the same calls in the same order.
class Member {
public:
    Member(Team& team, std::int64_t thread, std::int64_t threads) : team_(team), thread_(thread), threads_(threads) {}

    std::int64_t thread() const { return thread_; }
    std::int64_t threads() const { return threads_; }

    // Ends a phase: what any thread wrote in it, all may read in the next.
    void meet() {
        if (threads_ > 1) team_.wait(threads_);
    }

    // Calls body(begin, end) on this thread's even, contiguous part of 0..count.
    template <typename F>
    void share(std::int64_t count, const F& body) const {
        const std::int64_t begin = count * thread_ / threads_, end = count * (thread_ + 1) / threads_;
        if (begin < end) body(begin, end);
    }

    // Calls body(begin, end) on pieces of 0..count until all are taken: first those of its own part, then what slower
    // threads have left of theirs. There is to be a meet() between two calls.
    template <typename F>
    void share_pieces(std::int64_t count, std::int64_t piece, const F& body) {
        const int phase = phase_;
        phase_ ^= 1;
        // Nobody takes from the other set of cursors before the next meet().
        team_.cursors_[thread_].next[phase_].store(0, std::memory_order_relaxed);
        for (std::int64_t turn = 0; turn < threads_; ++turn) {
            const std::int64_t owner = (thread_ + turn) % threads_;
            const std::int64_t first = count * owner / threads_, end = count * (owner + 1) / threads_;
            std::atomic<std::int64_t>& next = team_.cursors_[owner].next[phase];
            while (first + next.load(std::memory_order_relaxed) < end) {
                const std::int64_t begin = first + next.fetch_add(piece, std::memory_order_relaxed);
                if (begin >= end) break;
                body(begin, end - begin < piece ? end : begin + piece);
            }
        }
    }

private:
    Team& team_;
    const std::int64_t thread_, threads_;
    int phase_ = 0;
};

}  // namespace octavo::OCTAVO_ISA
