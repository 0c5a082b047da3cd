// A decoder's whole step as one parallel region: embeddings, layers, final norm, vocabulary projection, sampling.
//
// The ops are those of the files beside this one, called part by part, so that the results are theirs bit for bit. The
// threads meet after each phase of a layer; elementwise work joins the phase before or after it where the rows that a
// thread holds are all it needs. What follows the last layer's attention is computed for the wanted rows only. Where
// every row takes its most likely token, logits live no longer than the few columns that a thread has just computed.
// Attention is bound by memory and the linear layers of many rows by arithmetic: while these compute, threads fetch
// what the next attention will read of the cache. It waits in the second cache level or in the third, which threads
// share: it does not matter which of them fetched it.
//
// Memory: buffers for the step's tokens grow to the largest step seen and are kept, per calling thread.
#include "decoder_step.h"

#include <initializer_list>

#include "attention.h"
#include "parallel.h"
#include "rms_norm.h"
#include "rotary.h"
#include "silu_and_mul.h"
#include "team.h"

namespace octavo::OCTAVO_ISA {
namespace {

enum Status {
    kOk = 0,
    kPosition = kRopePosition,
    kSlot = kRopeSlot,
    kTokenId = 3,
    kLogitsIndex = 4,
    kLengths = 5,
    kBlock = 6,
    kMemory = 7
};

// Columns of the activation that a thread takes at a time: a step of one token still has work for several.
constexpr std::int64_t kActivationColumns = 256;

// Of a layer's cache that is fetched ahead of attention: what the third level still holds beside the weights that pass.
constexpr std::int64_t kMostBytesAhead = 12 << 20;

// Panels of the vocabulary projection that a thread takes at a time.
std::int64_t panels_per_piece(std::int64_t rows) { return (rows <= 8 ? 256 : rows <= 64 ? 128 : 64) / kPanel; }

// A matrix of activations. Rows are a cache line over a multiple of it apart, for rows a power of two apart would
// compete for the same cache sets.
struct Rows {
    float* data;
    std::int64_t stride;

    float* operator[](std::int64_t row) const { return data + row * stride; }
};

// Hands out cache-line-aligned parts of one allocation; over nullptr it only adds up their sizes.
class Arena {
public:
    explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}

    void* take(std::size_t bytes) {
        char* result = memory_ == nullptr ? nullptr : memory_ + size_;
        size_ += (bytes + 63) / 64 * 64;
        return result;
    }

    Rows rows(std::int64_t count, std::int64_t columns) {
        const std::int64_t stride = (columns + kLanes - 1) / kLanes * kLanes + kLanes;
        return {static_cast<float*>(take(static_cast<std::size_t>(count * stride) * sizeof(float))), stride};
    }

    std::size_t size() const { return size_; }

private:
    char* memory_;
    std::size_t size_ = 0;
};

struct Buffers {
    Rows residual, x;        // [tokens, C]
    Rows qkv, attended;      // [tokens, (H + 2 G) D], [tokens, H D]
    Rows gate_up, activated;  // [tokens, 2 I], [tokens, I]
    Rows wanted_residual, wanted_attended;  // the rows that logits are wanted of: [R, C], [R, H D]
    void* prepared;          // of the linear layer that comes next
    Rows logits;             // [R, V], or no data where nobody wants them
    Rows columns;            // [threads * R, columns of a piece]: a thread's latest logits
    Best* bests;             // [threads, R] in rows of bests_stride: the best of each thread's
    std::int64_t bests_stride;
};

class Step {
public:
    explicit Step(const DecoderStepArguments& arguments)
        : a(arguments),
          m(*arguments.decoder),
          hidden(m.lm_head.k),
          max_threads(a.num_threads < Team::kMaxThreads ? a.num_threads : Team::kMaxThreads),
          eps(static_cast<float>(m.eps)) {}

    int run() {
        if (const int status = check(); status != kOk) return status;
        thread_local Scratch scratch, task_scratch;
        Arena sizes(nullptr);
        lay_out(sizes);
        void* memory = scratch.reserve(sizes.size());
        if (memory == nullptr) return kMemory;
        Arena arena(memory);
        lay_out(arena);
        if (tasks.make(attention_of(0), task_scratch) != kAttentionOk) return kMemory;
        find_cached();

        Team team;
        parallel(max_threads, [&](std::int64_t thread, std::int64_t count) { forward(Member(team, thread, count)); });
        return out_of_memory.load() ? kMemory : kOk;
    }

private:
    const DecoderStepArguments& a;
    const DecoderWeights& m;
    const std::int64_t hidden, max_threads;
    const float eps;
    Buffers b{};
    AttentionTasks tasks{};
    std::int32_t cached[1024];  // blocks that attention reads, the first tasks' first
    std::int64_t num_cached = 0;
    std::atomic<bool> out_of_memory{false};

    // Everything that depends on values, before anything is written.
    int check() const {
        for (std::int64_t t = 0; t < a.tokens; ++t)
            if (a.token_ids[t] < 0 || a.token_ids[t] >= m.lm_head.n) return kTokenId;
        for (std::int64_t r = 0; r < a.num_logits; ++r)
            if (a.logits_indices[r] < 0 || a.logits_indices[r] >= a.tokens) return kLogitsIndex;
        if (const int status = check_rope_and_cache(rope_of(0)); status != kRopeOk) return status;
        const AttentionArguments attention = attention_of(0);
        if (check_lengths(attention) != kAttentionOk) return kLengths;
        return check_block_tables(attention) == kAttentionOk ? kOk : kBlock;
    }

    void lay_out(Arena& arena) {
        const LayerWeights& layer = m.layers[0];
        b.residual = arena.rows(a.tokens, hidden);
        b.x = arena.rows(a.tokens, hidden);
        b.qkv = arena.rows(a.tokens, layer.qkv.n);
        b.attended = arena.rows(a.tokens, layer.output.k);
        b.gate_up = arena.rows(a.tokens, layer.gate_up.n);
        b.activated = arena.rows(a.tokens, layer.down.k);
        b.wanted_residual = arena.rows(a.num_logits, hidden);
        b.wanted_attended = arena.rows(a.num_logits, layer.output.k);
        std::size_t most = 0;
        for (const LinearWeights* weights : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down, &m.lm_head}) {
            const std::size_t bytes = linear_scratch_bytes(arguments_of(*weights, b.x, b.x, a.tokens));
            most = bytes > most ? bytes : most;
        }
        b.prepared = arena.take(most);
        b.logits = {a.logits, m.lm_head.n};
        bool wanted = false;
        for (std::int64_t row = 0; a.samples && row < a.num_logits; ++row) wanted |= a.sampling.wants_logits(row);
        if (wanted && a.logits == nullptr) b.logits = arena.rows(a.num_logits, m.lm_head.n);
        b.columns = arena.rows(max_threads * a.num_logits, panels_per_piece(a.num_logits) * kPanel);
        b.bests_stride = (a.num_logits + 7) / 8 * 8;  // threads write to cache lines of their own
        const std::int64_t bests = max_threads * b.bests_stride;
        b.bests = static_cast<Best*>(arena.take(static_cast<std::size_t>(bests) * sizeof(Best)));
    }

    // Bytes of all heads' keys, or values, in a block.
    std::int64_t block_bytes() const { return m.kv_heads * a.block_size * m.head_dim * (a.bfloat16 != 0 ? 2 : 4); }

    // As far as they are of steps before this one.
    void find_cached() {
        constexpr std::int64_t kSize = sizeof(cached) / sizeof(*cached);
        const std::int64_t fit = kMostBytesAhead / (2 * block_bytes()), most = fit < kSize ? fit : kSize;
        for (std::int64_t s = 0; s < a.num_seqs; ++s) {
            const std::int64_t queries = a.query_start_loc[s + 1] - a.query_start_loc[s];
            if (queries == 0) continue;
            const std::int64_t keys = a.seq_lens[s] - queries, unseen = m.window == 0 ? 0 : keys + 1 - m.window;
            const std::int32_t* table = a.block_tables + s * a.table_stride;
            for (std::int64_t i = unseen > 0 ? unseen / a.block_size : 0; i * a.block_size < keys; ++i) {
                if (num_cached == most) return;
                // Of a prefix that neighbours share, one is enough.
                if (s == 0 || table[i] != table[i - a.table_stride]) cached[num_cached++] = table[i];
            }
        }
    }

    // The thread's part of what a layer's attention will read, fetched during these linear layers before it.
    BackgroundFetch ahead_of(const Member& member, std::int64_t layer,
                             std::initializer_list<const LinearWeights*> before) const {
        std::int64_t bursts = 0;
        for (const LinearWeights* weights : before)
            bursts += linear_bursts(arguments_of(*weights, b.x, b.x, a.tokens));
        BackgroundFetch fetch;
        member.share(num_cached, [&](std::int64_t begin, std::int64_t end) {
            fetch = BackgroundFetch(a.caches[layer].keys, a.caches[layer].values, block_bytes(), cached + begin,
                                    end - begin, bursts / member.threads());
        });
        return fetch;
    }

    static LinearArguments arguments_of(const LinearWeights& weights, Rows x, Rows y, std::int64_t rows) {
        LinearArguments linear{};
        static_cast<LinearWeights&>(linear) = weights;
        linear.x = x.data;
        linear.x_stride = x.stride;
        linear.y = y.data;
        linear.y_stride = y.stride;
        linear.rows = rows;
        linear.num_threads = 1;
        return linear;
    }

    RopeAndCacheArguments rope_of(std::int64_t layer) const {
        const std::int64_t q_size = m.query_heads * m.head_dim, kv_size = m.kv_heads * m.head_dim;
        RopeAndCacheArguments rope;
        rope.q = b.qkv.data;
        rope.k = b.qkv.data + q_size;
        rope.v = b.qkv.data + q_size + kv_size;
        rope.q_stride = rope.k_stride = rope.v_stride = b.qkv.stride;
        rope.q_heads = m.query_heads;
        rope.kv_heads = m.kv_heads;
        rope.cos_sin = m.cos_sin;
        rope.max_positions = m.max_positions;
        rope.positions = a.positions;
        rope.slot_mapping = a.slot_mapping;
        rope.key_cache = a.caches[layer].keys;
        rope.value_cache = a.caches[layer].values;
        rope.bfloat16 = a.bfloat16;
        rope.num_blocks = a.num_blocks;
        rope.block_size = a.block_size;
        rope.head_dim = m.head_dim;
        rope.tokens = a.tokens;
        rope.num_threads = 1;
        return rope;
    }

    AttentionArguments attention_of(std::int64_t layer) const {
        AttentionArguments attention;
        attention.q = b.qkv.data;
        attention.q_stride = b.qkv.stride;
        attention.tokens = a.tokens;
        attention.query_heads = m.query_heads;
        attention.key_cache = a.caches[layer].keys;
        attention.value_cache = a.caches[layer].values;
        attention.bfloat16 = a.bfloat16;
        attention.num_blocks = a.num_blocks;
        attention.kv_heads = m.kv_heads;
        attention.block_size = a.block_size;
        attention.head_dim = m.head_dim;
        attention.query_start_loc = a.query_start_loc;
        attention.seq_lens = a.seq_lens;
        attention.block_tables = a.block_tables;
        attention.table_stride = a.table_stride;
        attention.table_width = a.table_width;
        attention.num_seqs = a.num_seqs;
        attention.scale = m.scale;
        attention.window = m.window;
        attention.soft_cap = m.soft_cap;
        attention.out = b.attended.data;
        attention.out_stride = b.attended.stride;
        attention.num_threads = 1;
        return attention;
    }

    void forward(Member member) {
        embed(member);
        BackgroundFetch ahead = ahead_of(member, 0, {&m.layers[0].qkv});
        for (std::int64_t layer = 0; layer + 1 < m.num_layers; ++layer) {
            const LayerWeights &now = m.layers[layer], &next = m.layers[layer + 1];
            attend(member, layer, ahead);
            ahead = ahead_of(member, layer + 1, {&now.output, &now.gate_up, &now.down, &next.qkv});
            finish(member, now, b.attended, b.residual, a.tokens, next.input_norm, ahead);
        }
        const std::int64_t last = m.num_layers - 1, rows = a.num_logits;
        attend(member, last, ahead);
        ahead = {};
        if (rows > 0) {
            member.share(rows, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t row = begin; row < end; ++row) {
                    copy(b.residual[a.logits_indices[row]], b.wanted_residual[row], hidden);
                    copy(b.attended[a.logits_indices[row]], b.wanted_attended[row], m.query_heads * m.head_dim);
                }
            });
            member.meet();
            finish(member, m.layers[last], b.wanted_attended, b.wanted_residual, rows, m.final_norm, ahead);
            if (a.hidden == nullptr)
                project(member, rows);
            else
                member.share(rows, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) copy(b.x[row], a.hidden + row * hidden, hidden);
                });
        }
        member.meet();  // asleep, if need be, in this wait and not in the region's own
    }

    static void copy(const float* from, float* to, std::int64_t count) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    }

    void embed(Member& member) {
        member.share(a.tokens, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t t = begin; t < end; ++t) {
                const std::int64_t first = a.token_ids[t] * hidden;
                if (m.bfloat16)
                    widen(static_cast<const BFloat16*>(m.embedding) + first, b.residual[t], hidden);
                else
                    copy(static_cast<const float*>(m.embedding) + first, b.residual[t], hidden);
                rms_norm_row(b.residual[t], m.layers[0].input_norm, b.x[t], hidden, eps);
            }
        });
        member.meet();
    }

    static void widen(const BFloat16* from, float* to, std::int64_t count) {
        for (std::int64_t i = 0; i < count; i += kLanes) store_up_to(to + i, load_up_to(from + i, count - i), count - i);
    }

    // x, normalised -> attended, of all tokens; writes the layer's keys and values.
    void attend(Member& member, std::int64_t index, BackgroundFetch& ahead) {
        const LayerWeights& layer = m.layers[index];
        linear(member, layer.qkv, b.x, b.qkv, a.tokens, ahead);
        member.meet();
        const RopeAndCacheArguments rope = rope_of(index);
        member.share(a.tokens, [&](std::int64_t begin, std::int64_t end) {
            if (layer.q_norm != nullptr)
                for (std::int64_t t = begin; t < end; ++t) normalise_heads(b.qkv[t], layer);
            rope_and_cache_tokens(rope, begin, end);
        });
        member.meet();
        const AttentionArguments attention = attention_of(index);
        member.share_pieces(tasks.count, 1, [&](std::int64_t task, std::int64_t) {
            const AttentionTask* next = task + 1 < tasks.count ? tasks.tasks + task + 1 : nullptr;
            if (attention_task(attention, tasks.tasks[task], next) != kAttentionOk) out_of_memory = true;
        });
        member.meet();
        if (!tasks.merges) return;
        member.share_pieces(tasks.count, 1, [&](std::int64_t task, std::int64_t) {
            if (attention_merge(attention, tasks.tasks + task) != kAttentionOk) out_of_memory = true;
        });
        member.meet();
    }

    void normalise_heads(float* head, const LayerWeights& layer) const {
        for (std::int64_t h = 0; h < m.query_heads + m.kv_heads; ++h, head += m.head_dim)
            rms_norm_row(head, h < m.query_heads ? layer.q_norm : layer.k_norm, head, m.head_dim, eps);
    }

    // The rest of a layer: attended -> x, normalised for what comes next; residual is brought up to date.
    void finish(Member& member, const LayerWeights& layer, Rows attended, Rows residual, std::int64_t rows,
                const float* next_norm, BackgroundFetch& ahead) {
        linear(member, layer.output, attended, b.x, rows, ahead);
        member.meet();
        add_norm(member, residual, rows, layer.post_attention_norm);
        linear(member, layer.gate_up, b.x, b.gate_up, rows, ahead);
        member.meet();
        activate(member, layer.down.k, rows);
        linear(member, layer.down, b.activated, b.x, rows, ahead);
        member.meet();
        add_norm(member, residual, rows, next_norm);
    }

    void add_norm(Member& member, Rows residual, std::int64_t rows, const float* weight) {
        member.share(rows, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row)
                add_rms_norm_row(b.x[row], residual[row], weight, b.x[row], hidden, eps);
        });
        member.meet();
    }

    void activate(Member& member, std::int64_t size, std::int64_t rows) {
        SiluAndMulArguments silu;
        silu.gate_up = b.gate_up.data;
        silu.stride = b.gate_up.stride;
        silu.out = b.activated.data;
        silu.out_stride = b.activated.stride;
        silu.rows = rows;
        silu.size = size;
        silu.num_threads = 1;
        const std::int64_t parts = (size + kActivationColumns - 1) / kActivationColumns;
        member.share(rows * parts, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t part = begin; part < end; ++part) {
                const std::int64_t first = part % parts * kActivationColumns, last = first + kActivationColumns;
                silu_and_mul_row(silu, part / parts, first, last < size ? last : size);
            }
        });
        member.meet();
    }

    // x is complete and met for; y is complete once the threads have met.
    void linear(Member& member, const LinearWeights& weights, Rows x, Rows y, std::int64_t rows,
                BackgroundFetch& ahead) {
        const LinearArguments linear = arguments_of(weights, x, y, rows);
        prepare(member, linear);
        const LinearPieces pieces = linear_pieces(linear, member.threads());
        member.share_pieces(pieces.count(), 1, [&](std::int64_t piece, std::int64_t) {
            linear_piece(linear, b.prepared, pieces, piece, &ahead);
        });
    }

    void prepare(Member& member, const LinearArguments& linear) {
        if (linear_scratch_bytes(linear) == 0) return;
        member.share(linear.rows, [&](std::int64_t begin, std::int64_t end) {
            linear_prepare(linear, b.prepared, begin, end);
        });
        member.meet();
    }

    // x -> logits, where they are kept, and tokens, where they are sampled.
    void project(Member& member, std::int64_t rows) {
        LinearArguments linear = arguments_of(m.lm_head, b.x, b.logits, rows);
        const bool keeps = b.logits.data != nullptr;
        const Rows columns = {b.columns[member.thread() * rows], b.columns.stride};
        Best* bests = b.bests + member.thread() * b.bests_stride;
        for (std::int64_t row = 0; row < rows; ++row) bests[row] = Best();
        prepare(member, linear);
        member.share_pieces(linear.panels(), panels_per_piece(rows), [&](std::int64_t begin, std::int64_t end) {
            const std::int64_t first = begin * kPanel, last = end * kPanel < linear.n ? end * kPanel : linear.n;
            if (!keeps) {
                linear.y = columns.data - first;
                linear.y_stride = columns.stride;
            }
            linear_block(linear, b.prepared, 0, rows, begin, end);
            if (!a.samples) return;
            for (std::int64_t row = 0; row < rows; ++row)
                bests[row].add(find_best(linear.y + row * linear.y_stride + first, last - first, first));
        });
        if (!a.samples) return;
        member.meet();
        member.share_pieces(rows, 1, [&](std::int64_t row, std::int64_t) {
            Best best = b.bests[row];
            for (std::int64_t t = 1; t < member.threads(); ++t) best.add(b.bests[t * b.bests_stride + row]);
            const float* logits = keeps ? b.logits[row] : nullptr;
            if (!sample_row(a.sampling, row, best, logits, logits, linear.n)) out_of_memory = true;
        });
    }
};

}  // namespace
}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

// The caches and logits are untouched unless it returns 0, or 7 where memory ran out.
OCTAVO_EXPORT(decoder_step, DecoderStepArguments) { return a.tokens == 0 ? kOk : Step(a).run(); }
