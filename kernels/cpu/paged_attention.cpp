// Causal attention over a paged KV cache: one varlen op for prefill, chunked prefill and decode.
//
// Work is cut into tasks by (sequence, kv head) and then either by query block, which walks its splits one after the
// other, or, for a sequence with a single query block (a decode step), by split, so that all threads work on one long
// sequence. Both run the same code per split and merge splits in the same order: the cut is invisible in the result.
// Bytes moved in a decode step: each sequence's keys and values once.
#include "attention.h"

#include "attention_split.h"

namespace octavo::OCTAVO_ISA {
namespace {

// Rows of a query block: a few full tiles, whose scores stay in the second-level cache.
constexpr int kRowBudget = 48;

// What a thread works in.
struct Workspace {
    float* q;
    float* split;
    Partial running, added;

    static std::int64_t floats(std::int64_t rows, std::int64_t head_dim) {
        return rows * head_dim + 2 * Partial::floats(rows, head_dim);
    }
};

int group(const AttentionArguments& a) { return static_cast<int>(a.query_heads / a.kv_heads); }

int queries_per_block(const AttentionArguments& a) { return group(a) >= kRowBudget ? 1 : kRowBudget / group(a); }

std::int64_t max_rows(const AttentionArguments& a) { return std::int64_t{queries_per_block(a)} * group(a); }

std::int64_t num_queries(const AttentionArguments& a, std::int64_t sequence) {
    return a.query_start_loc[sequence + 1] - a.query_start_loc[sequence];
}

// The task's query block, its queries not yet copied to `packed`.
QueryBlock describe(const AttentionArguments& a, const AttentionTask& task, const float* packed) {
    const std::int64_t queries = num_queries(a, task.sequence), most = queries_per_block(a);
    const std::int64_t first = task.query_block * most, left = queries - first;
    QueryBlock block;
    block.q = packed;
    block.group = group(a);
    block.rows = static_cast<int>(left < most ? left : most) * block.group;
    block.first_position = a.seq_lens[task.sequence] - queries + first;
    block.window = a.window;
    block.kv_head = task.kv_head;
    block.block_table = a.block_tables + task.sequence * a.table_stride;
    return block;
}

// Fills `tasks`, or with nullptr only counts them and the floats of their partials.
std::int64_t plan(const AttentionArguments& a, AttentionTask* tasks, float* partials, std::int64_t& partial_floats) {
    std::int64_t count = 0;
    partial_floats = 0;
    for (std::int64_t s = 0; s < a.num_seqs; ++s) {
        const std::int64_t queries = num_queries(a, s);
        if (queries == 0) continue;
        const std::int64_t blocks = (queries + queries_per_block(a) - 1) / queries_per_block(a);
        const QueryBlock whole = describe(a, {static_cast<std::int32_t>(s), 0, 0, -1, nullptr}, nullptr);
        const std::int64_t first = whole.first_split(0), last = whole.last_split(whole.rows - 1);
        const bool by_split = blocks == 1 && last > first;
        const std::int64_t floats = Partial::floats(whole.rows, a.head_dim);
        for (std::int64_t head = 0; head < a.kv_heads; ++head) {
            // The last query block sees the most keys: the longest tasks start first.
            const std::int64_t parts = by_split ? last - first + 1 : blocks;
            for (std::int64_t part = 0; part < parts; ++part, ++count) {
                if (tasks != nullptr) {
                    AttentionTask& task = tasks[count];
                    task.sequence = static_cast<std::int32_t>(s);
                    task.kv_head = static_cast<std::int32_t>(head);
                    task.query_block = by_split ? 0 : static_cast<std::int32_t>(blocks - 1 - part);
                    task.split = by_split ? static_cast<std::int32_t>(first + part) : -1;
                    task.partial = by_split ? partials + partial_floats : nullptr;
                }
                if (by_split) partial_floats += floats;
            }
        }
    }
    return count;
}

template <typename T>
class Attention {
public:
    explicit Attention(const AttentionArguments& arguments)
        : a(arguments),
          cache{static_cast<const T*>(a.key_cache), static_cast<const T*>(a.value_cache), a.num_blocks, a.kv_heads,
                a.block_size, a.head_dim} {}

    int attend(const AttentionTask& task, const AttentionTask* next) const {
        Workspace space;
        if (!workspace(space)) return kAttentionMemory;
        const QueryBlock block = describe(a, task, space.q);
        pack_queries(task, block, space.q);
        SplitAttention<T> attention(cache, static_cast<float>(a.soft_cap), max_rows(a), space.split);
        if (task.split >= 0) {
            const Partial partial = Partial::at(task.partial, block.rows);
            return attention.attend(block, task.split, partial, blocks_of(next)) ? kAttentionOk : kAttentionBlock;
        }
        for (std::int64_t split = block.first_split(0); split <= block.last_split(block.rows - 1); ++split) {
            if (!attention.attend(block, split, space.added, blocks_of(next))) return kAttentionBlock;
            merge(block, split, space.added, space.running, cache.head_dim);
        }
        write(task, block, space.running);
        return kAttentionOk;
    }

    // `first` and the tasks after it are the splits of one query block, in order.
    int merge_splits(const AttentionTask* first) const {
        Workspace space;
        if (!workspace(space)) return kAttentionMemory;
        const QueryBlock block = describe(a, *first, nullptr);
        for (std::int64_t split = first->split; split <= block.last_split(block.rows - 1); ++split)
            merge(block, split, Partial::at(first[split - first->split].partial, block.rows), space.running,
                  cache.head_dim);
        write(*first, block, space.running);
        return kAttentionOk;
    }

private:
    // The blocks of the first split of a task, that a decode step has; none of nullptr.
    UpcomingBlocks blocks_of(const AttentionTask* task) const {
        if (task == nullptr || num_queries(a, task->sequence) > 1) return {};
        const QueryBlock block = describe(a, *task, nullptr);
        const std::int64_t split = task->split >= 0 ? task->split : block.first_split(0);
        const KeyRange keys = block.visible(0, split);
        const std::int64_t first = (split * kSplit + keys.begin) / cache.block_size;
        const std::int64_t end = (split * kSplit + keys.end - 1) / cache.block_size + 1;
        return {block.block_table + first, end - first, block.kv_head};
    }

    // The token of row 0 of the task's block.
    std::int64_t first_token(const AttentionTask& task) const {
        return a.query_start_loc[task.sequence] + std::int64_t{task.query_block} * queries_per_block(a);
    }

    void pack_queries(const AttentionTask& task, const QueryBlock& block, float* packed) const {
        const float scale = static_cast<float>(a.scale);
        for (int row = 0; row < block.rows; ++row) {
            const float* from = a.q + (first_token(task) + row / block.group) * a.q_stride +
                                (block.kv_head * block.group + row % block.group) * cache.head_dim;
            for (std::int64_t d = 0; d < cache.head_dim; ++d) packed[row * cache.head_dim + d] = from[d] * scale;
        }
    }

    void write(const AttentionTask& task, const QueryBlock& block, Partial result) const {
        for (int row = 0; row < block.rows; ++row) {
            float* to = a.out + (first_token(task) + row / block.group) * a.out_stride +
                        (block.kv_head * block.group + row % block.group) * cache.head_dim;
            for (std::int64_t d = 0; d < cache.head_dim; ++d)
                to[d] = result.out[row * cache.head_dim + d] / result.sum[row];
        }
    }

    bool workspace(Workspace& space) const {
        thread_local Scratch scratch;
        const std::int64_t rows = max_rows(a), head_dim = cache.head_dim;
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

    const AttentionArguments& a;
    const PagedCache<T> cache;
};

}  // namespace

int check_lengths(const AttentionArguments& a) {
    if (a.query_start_loc[0] != 0 || a.query_start_loc[a.num_seqs] != a.tokens) return kAttentionLengths;
    for (std::int64_t s = 0; s < a.num_seqs; ++s)
        if (num_queries(a, s) < 0 || a.seq_lens[s] < num_queries(a, s) ||
            a.seq_lens[s] > a.table_width * a.block_size)
            return kAttentionLengths;
    return kAttentionOk;
}

int AttentionTasks::make(const AttentionArguments& a, Scratch& scratch) {
    std::int64_t partial_floats;
    count = plan(a, nullptr, nullptr, partial_floats);
    merges = partial_floats > 0;
    // Tasks first, then the partials: a task's size is a multiple of a float's alignment.
    const std::size_t task_bytes = static_cast<std::size_t>(count) * sizeof(AttentionTask);
    char* memory = static_cast<char*>(
        scratch.reserve(task_bytes + static_cast<std::size_t>(partial_floats) * sizeof(float)));
    if (memory == nullptr && count > 0) return kAttentionMemory;
    tasks = reinterpret_cast<AttentionTask*>(memory);
    plan(a, tasks, reinterpret_cast<float*>(memory + task_bytes), partial_floats);
    return kAttentionOk;
}

int check_block_tables(const AttentionArguments& a) {
    for (std::int64_t s = 0; s < a.num_seqs; ++s) {
        if (num_queries(a, s) == 0) continue;
        const QueryBlock first = describe(a, {static_cast<std::int32_t>(s), 0, 0, -1, nullptr}, nullptr);
        for (std::int64_t i = first.first_key(0) / a.block_size; i * a.block_size < a.seq_lens[s]; ++i)
            if (first.block_table[i] < 0 || first.block_table[i] >= a.num_blocks) return kAttentionBlock;
    }
    return kAttentionOk;
}

int attention_task(const AttentionArguments& a, const AttentionTask& task, const AttentionTask* next) {
    return a.bfloat16 ? Attention<BFloat16>(a).attend(task, next) : Attention<float>(a).attend(task, next);
}

int attention_merge(const AttentionArguments& a, const AttentionTask* task) {
    if (task->split < 0 || task->split != describe(a, *task, nullptr).first_split(0)) return kAttentionOk;
    return a.bfloat16 ? Attention<BFloat16>(a).merge_splits(task) : Attention<float>(a).merge_splits(task);
}

}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

OCTAVO_EXPORT(attention, AttentionArguments) {
    if (const int status = check_lengths(a); status != kAttentionOk) return status;
    thread_local Scratch scratch;
    AttentionTasks batch;
    if (const int status = batch.make(a, scratch); status != kAttentionOk) return status;
    int status = kAttentionOk;
    const auto report = [&](int result) {
        if (result != kAttentionOk) {
#pragma omp atomic write
            status = result;
        }
    };
    const int threads = static_cast<int>(batch.count < a.num_threads ? batch.count : a.num_threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(dynamic, 1)
        for (std::int64_t i = 0; i < batch.count; ++i)
            report(attention_task(a, batch.tasks[i], i + threads < batch.count ? batch.tasks + i + threads : nullptr));
        if (batch.merges) {
#pragma omp for schedule(dynamic, 1)
            for (std::int64_t i = 0; i < batch.count; ++i) report(attention_merge(a, batch.tasks + i));
        }
    }
    return status;
}
