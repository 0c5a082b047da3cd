// The sampler of worker/sampler.py in native form; that file gives the order of the steps and their sources.
//
// A row is a function of its own logits and parameters alone: sums and selections have one order whatever the batch and
// the threads. A draw takes random words only for tokens that can still win: the noise of a token is at most 16.7, so
// one that lies further below the best so far cannot.
#include "sample.h"

#include <algorithm>

#include "parallel.h"
#include "philox.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr float kMasked = -1e30f;  // MASKED in worker/sampler.py
constexpr float kSmallestTemperature = 1.17549435e-38f;
constexpr std::int64_t kBlock = 64;  // logits whose maximum stands for them in a selection
// x = (logit - largest) / temperature, down to which a nucleus is looked for before all tokens are sorted.
constexpr float kNucleusFloors[] = {-4.6f, -9.2f, -13.8f, -__builtin_inff()};

struct Candidate {
    float order;  // logit or weight
    std::int32_t token;
};

bool operator<(const Candidate& a, const Candidate& b) {  // the larger first, of equals the lower token
    return a.order > b.order || (a.order == b.order && a.token < b.token);
}

class Row {
public:
    Row(const SamplingColumns& columns, std::int64_t row, const Best& best, const float* logits, std::int64_t width,
        Candidate* memory)
        : a(columns), row(row), best(best), logits(logits), width(width), kept(memory), size(width) {
        const double temperature = a.temperature[row];
        divisor = temperature > kSmallestTemperature ? static_cast<float>(temperature) : kSmallestTemperature;
    }

    // The most memory that a row takes.
    static std::size_t bytes(std::int64_t width) { return static_cast<std::size_t>(width) * sizeof(Candidate); }

    std::int32_t draw() {
        if (a.min_p[row] > 0) keep_likely(static_cast<float>(a.min_p[row]));
        if (a.top_k[row] > 0 && a.top_k[row] < size) keep_largest(a.top_k[row]);
        if (a.top_p[row] < 1) keep_nucleus(a.top_p[row]);
        return whole ? draw_from_all() : draw_from_kept();
    }

    void write_logprobs(std::int32_t token) {
        const float log_sum = static_cast<float>(__builtin_log(sum_of_exp(1.0f)));
        a.logprobs[row] = logits[token] - best.value - log_sum;
        const std::int64_t count = a.num_logprobs[row] < width ? a.num_logprobs[row] : width;
        if (count == 0) return;
        whole = true;
        size = width;
        if (count < width)
            keep_largest(count);
        else
            collect(-__builtin_inff());
        std::sort(kept, kept + size);
        for (std::int64_t i = 0; i < count; ++i) {
            a.top_tokens[a.top_begin[row] + i] = kept[i].token;
            a.top_logprobs[a.top_begin[row] + i] = kept[i].order - best.value - log_sum;
        }
    }

private:
    const SamplingColumns& a;
    const std::int64_t row;
    const Best best;
    const float* logits;
    const std::int64_t width;
    float divisor;
    Candidate* kept;    // by logit
    std::int64_t size;  // tokens left
    bool whole = true;  // all of the vocabulary is left; `kept` says nothing yet

    float scaled(float logit) const { return (logit - best.value) / divisor; }
    Vec scaled(const Vec& logit) const { return (logit - broadcast(best.value)) / broadcast(divisor); }

    // Sum over the vocabulary of exp((logit - largest) / by).
    double sum_of_exp(float by) const {
        const Vec shift = broadcast(best.value), scale = broadcast(by);
        double sum = 0;
        std::int64_t i = 0;
        while (i + kLanes <= width) {
            Vec part = zero();
            for (int n = 0; n < 4 && i + kLanes <= width; ++n, i += kLanes)
                part = part + exp((load(logits + i) - shift) / scale);
            sum += reduce_add(part);
        }
        for (; i < width; ++i) sum += exp((logits[i] - best.value) / by);
        return sum;
    }

    // Keeps the tokens of the vocabulary with logits of at least `least`.
    void collect(float least) {
        size = 0;
        whole = false;
        for (std::int64_t i = 0; i < width; ++i)
            if (logits[i] >= least) kept[size++] = {logits[i], static_cast<std::int32_t>(i)};
    }

    template <typename Predicate>
    void filter(const Predicate& keep) {
        std::int64_t count = 0;
        for (std::int64_t i = 0; i < size; ++i)
            if (keep(kept[i])) kept[count++] = kept[i];
        size = count;
    }

    // A logit below that of every token with (logit - largest) / temperature >= x.
    float logit_below(float x) const {
        const float logit = best.value + x * divisor;
        return logit - (__builtin_fabsf(logit) + __builtin_fabsf(best.value)) * 1e-5f;
    }

    void keep_likely(float min_p) {
        const double x = __builtin_log(static_cast<double>(min_p));
        collect(logit_below(static_cast<float>(x) - 1e-3f));
        filter([&](const Candidate& candidate) { return exp(scaled(candidate.order)) >= min_p; });
    }

    void keep_largest(std::int64_t count) {
        if (whole) collect(count < width / kBlock ? largest_of_blocks(count) : -__builtin_inff());
        std::nth_element(kept, kept + count - 1, kept + size);
        size = count;
    }

    // The count-th largest of the blocks' maxima: at least as many logits are no smaller.
    float largest_of_blocks(std::int64_t count) {
        const std::int64_t blocks = width / kBlock;
        for (std::int64_t b = 0; b < blocks; ++b) {
            Vec largest = load(logits + b * kBlock);
            for (std::int64_t i = kLanes; i < kBlock; i += kLanes)
                largest = maximum(load(logits + b * kBlock + i), largest);
            kept[b] = {reduce_max(largest), static_cast<std::int32_t>(b)};
        }
        std::nth_element(kept, kept + count - 1, kept + blocks);
        return kept[count - 1].order;
    }

    void keep_nucleus(double top_p) {
        const bool from_all = whole;
        const double target = top_p * (from_all ? sum_of_exp(divisor) : sum_of_kept());
        for (const float floor : kNucleusFloors) {
            if (from_all) collect(floor == -__builtin_inff() ? floor : logit_below(floor));
            weigh();
            double sum = 0;
            std::int64_t count = 0;
            std::sort(kept, kept + size);
            while (count < size && sum < target) sum += kept[count++].order;
            if (from_all && floor != -__builtin_inff() && sum < target) continue;
            size = count > 0 ? count : 1;
            return;
        }
    }

    double sum_of_kept() const {
        double sum = 0;
        for (std::int64_t i = 0; i < size; ++i) sum += exp(scaled(kept[i].order));
        return sum;
    }

    // Orders what is kept by weight from here on.
    void weigh() {
        for (std::int64_t i = 0; i < size; ++i) kept[i].order = exp(scaled(kept[i].order));
    }

    static std::uint32_t counter_of(std::int64_t token) {
        return static_cast<std::uint32_t>((token >> 10) << 8 | (token & 255));
    }

    // The token with the largest sum of x and noise, the lower one of equals.
    struct Winner {
        float score = -__builtin_inff();
        std::int64_t token = 0;

        void offer(float other, std::int64_t candidate) {
            if (other > score || (other == score && candidate < token)) {
                score = other;
                token = candidate;
            }
        }
    };

    void offer(Winner& winner, const std::int64_t* tokens, int count) const {
        std::uint32_t counters[kLanes] = {}, chosen[kLanes] = {};
        for (int i = 0; i < count; ++i) counters[i] = counter_of(tokens[i]);
        const PhiloxWords random = philox(counters, static_cast<std::uint32_t>(a.output_index[row]), a.seeds[row]);
        for (int i = 0; i < count; ++i) chosen[i] = random.words[tokens[i] >> 8 & 3][i];
        float noise[kLanes];
        store(noise, gumbel(chosen));
        for (int i = 0; i < count; ++i) winner.offer(scaled(logits[tokens[i]]) + noise[i], tokens[i]);
    }

    std::int32_t draw_from_kept() const {
        Winner winner;
        std::int64_t tokens[kLanes];
        for (std::int64_t i = 0; i < size;) {
            int count = 0;
            for (; count < kLanes && i < size; ++i) tokens[count++] = kept[i].token;
            offer(winner, tokens, count);
        }
        return static_cast<std::int32_t>(winner.token);
    }

    // Sixteen counters at a time give the words of as many tokens in each of four places, 256 apart.
    std::int32_t draw_from_all() const {
        Winner winner;
        const std::int64_t likely = best.token;
        offer(winner, &likely, 1);
        for (std::int64_t group = 0; group < width; group += 4 * 256) {
            for (std::int64_t first = group; first < group + 256 && first < width; first += kLanes) {
                Vec x[4], largest = broadcast(-__builtin_inff());
                for (int place = 0; place < 4; ++place) {
                    x[place] = scaled(load_or_lowest(first + place * 256));
                    largest = maximum(x[place], largest);
                }
                if (reduce_max(largest) + kLargestGumbel < winner.score) continue;
                std::uint32_t counters[kLanes];
                for (int i = 0; i < kLanes; ++i) counters[i] = counter_of(first + i);
                const PhiloxWords random = philox(counters, static_cast<std::uint32_t>(a.output_index[row]), a.seeds[row]);
                for (int place = 0; place < 4; ++place) offer(winner, x[place] + gumbel(random.words[place]), first + place * 256);
            }
        }
        return static_cast<std::int32_t>(winner.token);
    }

    // Sixteen logits; those past the vocabulary cannot win.
    Vec load_or_lowest(std::int64_t first) const {
        if (first + kLanes <= width) return load(logits + first);
        float padded[kLanes];
        for (int i = 0; i < kLanes; ++i) padded[i] = first + i < width ? logits[first + i] : -__builtin_inff();
        return load(padded);
    }

    static void offer(Winner& winner, const Vec& scores, std::int64_t first) {
        if (reduce_max(scores) < winner.score) return;
        float lanes[kLanes];
        store(lanes, scores);
        for (int i = 0; i < kLanes; ++i) winner.offer(lanes[i], first + i);
    }
};

}  // namespace

Best find_best(const float* logits, std::int64_t count, std::int64_t first) {
    Best best;
    Vec largest = broadcast(best.value);
    NativeInt highest = NativeInt{};  // of the magnitudes' bits: infinity and NaN have the highest
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const Vec value = load(logits + i);
        largest = maximum(value, largest);
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
            const NativeInt magnitude = bit_cast<NativeInt>(value.part[part]) & 0x7fffffff;
            highest = magnitude > highest ? magnitude : highest;
        }
    }
    best.value = reduce_max(largest);
    for (int lane = 0; lane < kNativeLanes; ++lane) best.finite &= highest[lane] < 0x7f800000;
    for (; i < count; ++i) {
        best.finite &= (bit_cast<std::int32_t>(logits[i]) & 0x7fffffff) < 0x7f800000;
        if (logits[i] > best.value) best.value = logits[i];
    }
    i = 0;
    while (i + 1 < count && !(logits[i] == best.value)) ++i;
    best.token = static_cast<std::int32_t>(first + i);
    return best;
}

bool sample_row(const SamplingColumns& a, std::int64_t row, const Best& best, const float* logits, const float* raw,
                std::int64_t width) {
    a.finite[row] = best.finite;
    a.tokens[row] = best.finite ? best.token : 0;
    if (a.temperature == nullptr) return true;
    a.logprobs[row] = 0;
    if (!best.finite || !a.wants_logits(row)) return true;
    thread_local Scratch scratch;
    auto* memory = static_cast<Candidate*>(scratch.reserve(Row::bytes(width)));
    if (memory == nullptr) return false;
    if (a.temperature[row] > 0) a.tokens[row] = Row(a, row, best, logits, width, memory).draw();
    if (a.num_logprobs[row] >= 0) {
        const Best of_raw = raw == logits ? best : find_best(raw, width, 0);
        Row(a, row, of_raw, raw, width, memory).write_logprobs(a.tokens[row]);
    }
    return true;
}

}  // namespace octavo::OCTAVO_ISA

using namespace octavo::OCTAVO_ISA;

struct SampleArguments {
    float* logits;                     // [rows, width]
    std::int64_t stride;               // elements from one row to the next
    const float* const* raw;           // [rows] of [width], or null: what logprobs are of, where not of the logits
    const std::uint8_t* const* kept;   // [rows] of [width], or null: 1 for the tokens that may be drawn
    std::int64_t rows, width, num_threads;
    SamplingColumns columns;
};

// Writes over the logits that are not kept. Whether all of those were finite.
static bool mask_row(float* logits, const std::uint8_t* kept, std::int64_t width) {
    std::int32_t highest = 0;  // of the magnitudes' bits: infinity and NaN have the highest
    for (std::int64_t i = 0; i < width; ++i) {
        const std::int32_t magnitude = bit_cast<std::int32_t>(logits[i]) & 0x7fffffff;
        highest = magnitude > highest ? magnitude : highest;
        logits[i] = kept[i] != 0 ? logits[i] : kMasked;
    }
    return highest < 0x7f800000;
}

// 1 if memory ran out.
OCTAVO_EXPORT(sample, SampleArguments) {
    int status = 0;
    parallel_ranges(a.rows, a.num_threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            float* logits = a.logits + row * a.stride;
            const float* raw = a.raw != nullptr && a.raw[row] != nullptr ? a.raw[row] : logits;
            const bool finite = a.kept == nullptr || a.kept[row] == nullptr || mask_row(logits, a.kept[row], a.width);
            Best best = find_best(logits, a.width, 0);
            best.finite &= finite;
            if (!sample_row(a.columns, row, best, logits, raw, a.width)) {
#pragma omp atomic write
                status = 1;
            }
        }
    });
    return status;
}
