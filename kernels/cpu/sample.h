// The next token of a row of logits, for threads that share the rows.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

// Columns of R rows, in the order of Sampling.description in sampling.py. The results of a row that is not finite are
// token 0, logprob 0 and nothing else.
struct SamplingColumns {
    const double* temperature;     // 0: the most likely token; null, with all columns but the first two results: all 0
    const double* top_p;           // 1: off
    const double* min_p;           // 0: off
    const std::uint64_t* seeds;
    const std::int64_t* output_index;
    const std::int32_t* top_k;         // 0: off
    const std::int32_t* num_logprobs;  // -1: none, 0: the token's, k: of the k most likely besides
    const std::int64_t* top_begin;     // where the k most likely of a row go
    std::int32_t* tokens;
    std::int32_t* finite;  // 1 or 0
    float* logprobs;
    std::int32_t* top_tokens;
    float* top_logprobs;

    // Whether a row's token takes more than its largest logit.
    bool wants_logits(std::int64_t row) const {
        return temperature != nullptr && (temperature[row] > 0 || num_logprobs[row] >= 0);
    }
};

// The largest of some logits, the first of equal ones, and whether all were finite.
struct Best {
    float value = -__builtin_inff();
    std::int32_t token = 0;
    std::int32_t finite = 1;

    void add(const Best& other) {
        finite &= other.finite;
        if (other.value > value || (other.value == value && other.token < token)) {
            value = other.value;
            token = other.token;
        }
    }
};

// Of `count` logits, the first of which is that of token `first`.
Best find_best(const float* logits, std::int64_t count, std::int64_t first);

// Fills a row's results. `logits` [width] are looked at where the row wants them, and `raw` [width] where it wants
// logprobs: they are of these. False if memory ran out.
bool sample_row(const SamplingColumns& a, std::int64_t row, const Best& best, const float* logits, const float* raw,
                std::int64_t width);

}  // namespace octavo::OCTAVO_ISA
