// Causal attention over a paged KV cache: one varlen op for prefill, chunked prefill and decode.
//
// Work is cut into tasks by (sequence, kv head) and then either by query block, which walks its splits one after the
// other, or, for a sequence with a single query block (a decode step), by split, so that all threads work on one long
// sequence. Both run the same code per split and merge splits in the same order: the cut is invisible in the result.
// Bytes moved in a decode step: each sequence's keys and values once.
#include "attention_split.h"
#include "parallel.h"

namespace octavo::OCTAVO_ISA {
namespace {

enum Status { kOk = 0, kBadLengths = 1, kBlockOutOfRange = 2, kOutOfMemory = 3 };

// Rows of a query block: a few full tiles, whose scores stay in the second-level cache.
constexpr int kRowBudget = 48;

struct Task {
    std::int32_t sequence, kv_head, query_block, split;  // split -1: all of them, one after the other
    float* partial;                                      // where a split's task leaves its result
};

// What a thread works in.
struct Workspace {
    float* q;
    float* split;
    Partial running, added;

    static std::int64_t floats(std::int64_t rows, std::int64_t head_dim) {
        return rows * head_dim + 2 * Partial::floats(rows, head_dim);
    }
};

struct AttentionArguments {
    const float* q;         // [tokens, query_heads, D], D and the heads dense
    std::int64_t q_stride;  // elements from one token to the next
    std::int64_t tokens, query_heads;
    const void* key_cache;  // [num_blocks, kv_heads, block_size, D]
    const void* value_cache;
    std::int64_t bfloat16, num_blocks, kv_heads, block_size, head_dim;
    const std::int32_t* query_start_loc;     // [num_seqs + 1]
    const std::int32_t* seq_lens;            // [num_seqs]
    const std::int32_t* block_tables;        // [num_seqs, table_width], rows table_stride elements apart
    std::int64_t table_stride, table_width, num_seqs;
    double scale;
    std::int64_t window;  // 0: none
    float* out;           // [tokens, query_heads, D] contiguous
    std::int64_t num_threads;
};

template <typename T>
class Attention {
public:
    explicit Attention(const AttentionArguments& arguments)
        : a(arguments),
          cache{static_cast<const T*>(a.key_cache), static_cast<const T*>(a.value_cache), a.num_blocks, a.kv_heads,
                a.block_size, a.head_dim} {}

    int run() {
        if (!lengths_fit()) return kBadLengths;
        thread_local Scratch shared;
        const std::int64_t count = plan(nullptr, nullptr);
        // Tasks first, then the partials: a task's size is a multiple of a float's alignment.
        char* memory = static_cast<char*>(
            shared.reserve(static_cast<std::size_t>(count) * sizeof(Task) +
                           static_cast<std::size_t>(partial_floats_) * sizeof(float)));
        if (memory == nullptr && count > 0) return kOutOfMemory;
        Task* tasks = reinterpret_cast<Task*>(memory);
        plan(tasks, reinterpret_cast<float*>(memory + static_cast<std::size_t>(count) * sizeof(Task)));

        int status = kOk;
        const int threads = static_cast<int>(count < a.num_threads ? count : a.num_threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
#pragma omp for schedule(dynamic, 1)
            for (std::int64_t i = 0; i < count; ++i) report(attend(tasks[i]), status);
            if (partial_floats_ > 0) {
#pragma omp for schedule(dynamic, 1)
                for (std::int64_t i = 0; i < count; ++i)
                    if (tasks[i].split >= 0 && is_first_split(tasks[i])) report(merge_splits(tasks + i), status);
            }
        }
        return status;
    }

private:
    static void report(int result, int& status) {
        if (result != kOk) {
#pragma omp atomic write
            status = result;
        }
    }

    bool lengths_fit() const {
        if (a.query_start_loc[0] != 0 || a.query_start_loc[a.num_seqs] != a.tokens) return false;
        for (std::int64_t s = 0; s < a.num_seqs; ++s) {
            const std::int64_t queries = a.query_start_loc[s + 1] - a.query_start_loc[s];
            if (queries < 0 || a.seq_lens[s] < queries) return false;
            if (a.seq_lens[s] > a.table_width * cache.block_size) return false;
        }
        return true;
    }

    int group() const { return static_cast<int>(a.query_heads / cache.kv_heads); }
    int queries_per_block() const { return group() >= kRowBudget ? 1 : kRowBudget / group(); }
    int max_rows() const { return queries_per_block() * group(); }

    // Fills `tasks`, or with nullptr only counts them and the floats of their partials.
    std::int64_t plan(Task* tasks, float* partials) {
        std::int64_t count = 0;
        partial_floats_ = 0;
        for (std::int64_t s = 0; s < a.num_seqs; ++s) {
            const std::int64_t queries = a.query_start_loc[s + 1] - a.query_start_loc[s];
            if (queries == 0) continue;
            const std::int64_t blocks = (queries + queries_per_block() - 1) / queries_per_block();
            const QueryBlock whole = describe({static_cast<std::int32_t>(s), 0, 0, -1, nullptr}, nullptr);
            const std::int64_t first = whole.first_split(0), last = whole.last_split(whole.rows - 1);
            const bool by_split = blocks == 1 && last > first;
            const std::int64_t floats = Partial::floats(whole.rows, cache.head_dim);
            for (std::int64_t head = 0; head < cache.kv_heads; ++head) {
                // The last query block sees the most keys: the longest tasks start first.
                const std::int64_t parts = by_split ? last - first + 1 : blocks;
                for (std::int64_t part = 0; part < parts; ++part, ++count) {
                    if (tasks != nullptr) {
                        Task& task = tasks[count];
                        task.sequence = static_cast<std::int32_t>(s);
                        task.kv_head = static_cast<std::int32_t>(head);
                        task.query_block = by_split ? 0 : static_cast<std::int32_t>(blocks - 1 - part);
                        task.split = by_split ? static_cast<std::int32_t>(first + part) : -1;
                        task.partial = by_split ? partials + partial_floats_ : nullptr;
                    }
                    if (by_split) partial_floats_ += floats;
                }
            }
        }
        return count;
    }

    // The task's query block, its queries not yet copied to `packed`.
    QueryBlock describe(const Task& task, const float* packed) const {
        const std::int64_t queries = a.query_start_loc[task.sequence + 1] - a.query_start_loc[task.sequence];
        const std::int64_t first = std::int64_t{task.query_block} * queries_per_block(), left = queries - first;
        QueryBlock block;
        block.q = packed;
        block.group = group();
        block.rows = static_cast<int>(left < queries_per_block() ? left : queries_per_block()) * block.group;
        block.first_position = a.seq_lens[task.sequence] - queries + first;
        block.window = a.window;
        block.kv_head = task.kv_head;
        block.block_table = a.block_tables + task.sequence * a.table_stride;
        return block;
    }

    // The token of row 0 of the task's block.
    std::int64_t first_token(const Task& task) const {
        return a.query_start_loc[task.sequence] + std::int64_t{task.query_block} * queries_per_block();
    }

    void pack_queries(const Task& task, const QueryBlock& block, float* packed) const {
        const float scale = static_cast<float>(a.scale);
        for (int row = 0; row < block.rows; ++row) {
            const float* from = a.q + (first_token(task) + row / block.group) * a.q_stride +
                                (block.kv_head * block.group + row % block.group) * cache.head_dim;
            for (std::int64_t d = 0; d < cache.head_dim; ++d) packed[row * cache.head_dim + d] = from[d] * scale;
        }
    }

    void write(const Task& task, const QueryBlock& block, Partial result) const {
        for (int row = 0; row < block.rows; ++row) {
            float* to = a.out + ((first_token(task) + row / block.group) * a.query_heads + block.kv_head * block.group +
                               row % block.group) * cache.head_dim;
            for (std::int64_t d = 0; d < cache.head_dim; ++d)
                to[d] = result.out[row * cache.head_dim + d] / result.sum[row];
        }
    }

    bool workspace(Workspace& space) const {
        thread_local Scratch scratch;
        const std::int64_t rows = max_rows(), head_dim = cache.head_dim;
        const std::int64_t floats =
            Workspace::floats(rows, head_dim) + SplitAttention<T>::scratch_floats(rows, head_dim);
        float* memory = static_cast<float*>(scratch.reserve(static_cast<std::size_t>(floats) * sizeof(float)));
        if (memory == nullptr) return false;
        space.split = memory;  // first: its key tile wants the alignment
        space.q = memory + SplitAttention<T>::scratch_floats(rows, head_dim);
        space.running = Partial::at(space.q + rows * head_dim, rows);
        space.added = Partial::at(space.q + rows * head_dim + Partial::floats(rows, head_dim), rows);
        return true;
    }

    int attend(const Task& task) const {
        Workspace space;
        if (!workspace(space)) return kOutOfMemory;
        const QueryBlock block = describe(task, space.q);
        pack_queries(task, block, space.q);
        SplitAttention<T> attention(cache, space.split);
        if (task.split >= 0)
            return attention.attend(block, task.split, Partial::at(task.partial, block.rows)) ? kOk : kBlockOutOfRange;
        for (std::int64_t split = block.first_split(0); split <= block.last_split(block.rows - 1); ++split) {
            if (!attention.attend(block, split, space.added)) return kBlockOutOfRange;
            merge(block, split, space.added, space.running, cache.head_dim);
        }
        write(task, block, space.running);
        return kOk;
    }

    bool is_first_split(const Task& task) const { return task.split == describe(task, nullptr).first_split(0); }

    // `first` and the tasks after it are the splits of one query block, in order.
    int merge_splits(const Task* first) const {
        Workspace space;
        if (!workspace(space)) return kOutOfMemory;
        const QueryBlock block = describe(*first, nullptr);
        for (std::int64_t split = first->split; split <= block.last_split(block.rows - 1); ++split)
            merge(block, split, Partial::at(first[split - first->split].partial, block.rows), space.running,
                  cache.head_dim);
        write(*first, block, space.running);
        return kOk;
    }

    const AttentionArguments& a;
    const PagedCache<T> cache;
    std::int64_t partial_floats_ = 0;
};

}  // namespace
}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

OCTAVO_EXPORT(attention, AttentionArguments) {
    return a.bfloat16 ? Attention<BFloat16>(a).run() : Attention<float>(a).run();
}
