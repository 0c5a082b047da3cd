// Sixteen float lanes on any instruction set: one zmm, two ymm, or four 128-bit registers.
//
// Invariants: an operation gives the same bits in every lane, whatever the register width; where the hardware has a
// fused multiply-add, `fma` is one. Sources are compiled with -ffp-contract=off, so no other operation is ever fused.
// Everything lives in a namespace per instruction set: an inline function compiled for AVX-512 must never be merged
// by the linker with its namesake for an older processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define OCTAVO_JOIN2(a, b) a##b
#define OCTAVO_JOIN(a, b) OCTAVO_JOIN2(a, b)
// octavo_linear_v4 and the like: what ctypes binds to. An op takes one struct `a` whose fields are all 8 bytes wide:
// packing it costs Python a quarter of what converting as many arguments would. It returns 0 or a status.
#define OCTAVO_EXPORT(name, Arguments) \
    extern "C" __attribute__((visibility("default"))) int OCTAVO_JOIN(octavo_##name##_, OCTAVO_ISA)(const Arguments& a)

namespace octavo::OCTAVO_ISA {

#if defined(__AVX2__) && defined(__FMA__)
#define OCTAVO_AVX2
#endif

#if defined(__AVX512F__)
constexpr int kNativeLanes = 16;
#elif defined(OCTAVO_AVX2)
constexpr int kNativeLanes = 8;
#else
constexpr int kNativeLanes = 4;
#endif
constexpr int kLanes = 16;
constexpr int kParts = kLanes / kNativeLanes;

typedef float NativeFloat __attribute__((vector_size(kNativeLanes * 4)));
typedef std::int32_t NativeInt __attribute__((vector_size(kNativeLanes * 4)));
typedef std::uint32_t NativeBits __attribute__((vector_size(kNativeLanes * 4)));
typedef std::uint16_t NativeHalf __attribute__((vector_size(kNativeLanes * 2)));

struct BFloat16 {
    std::uint16_t bits;
};

struct Vec {
    NativeFloat part[kParts];
};

template <typename To, typename From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

template <typename F>
inline __attribute__((always_inline)) Vec each_part(F f) {
    Vec result;
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) result.part[i] = f(i);
    return result;
}

// Not a sum with zero: that would be an addition, for the sake of -0, where a load can broadcast by itself.
inline NativeFloat native_broadcast(float x) {
#if defined(__AVX512F__)
    return _mm512_set1_ps(x);
#elif defined(OCTAVO_AVX2)
    return _mm256_set1_ps(x);
#else
    return NativeFloat{x, x, x, x};
#endif
}

inline NativeFloat native_fma(NativeFloat a, NativeFloat b, NativeFloat c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(OCTAVO_AVX2)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__FP_FAST_FMAF)
    NativeFloat result;
    for (int i = 0; i < kNativeLanes; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return result;
#else
    return a * b + c;
#endif
}

inline Vec broadcast(float x) {
    return each_part([&](int) __attribute__((always_inline)) { return native_broadcast(x); });
}

inline Vec zero() { return broadcast(0.0f); }

// Part by part: a copy of the whole struct would take the way through memory where it is two registers.
inline Vec load(const float* p) {
    return each_part([&](int i) __attribute__((always_inline)) {
        NativeFloat part;
        std::memcpy(&part, p + i * kNativeLanes, sizeof(part));
        return part;
    });
}

inline NativeFloat native_load(const float* p) {
    NativeFloat x;
    std::memcpy(&x, p, sizeof(x));
    return x;
}

inline NativeFloat native_load(const BFloat16* p) {
    NativeHalf half;
    std::memcpy(&half, p, sizeof(half));
#if defined(__AVX512F__)
    const NativeBits wide = bit_cast<NativeBits>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(half)));
#elif defined(OCTAVO_AVX2)
    // What the compiler makes of the general form takes the halves of the register apart and together again.
    const NativeBits wide = bit_cast<NativeBits>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(half)));
#else
    const NativeBits wide = __builtin_convertvector(half, NativeBits);
#endif
    return bit_cast<NativeFloat>(wide << 16);
}

inline Vec load(const BFloat16* p) {
    return each_part([&](int i) __attribute__((always_inline)) { return native_load(p + i * kNativeLanes); });
}

inline void store(float* p, const Vec& x) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) std::memcpy(p + i * kNativeLanes, &x.part[i], sizeof(NativeFloat));
}

// The first `count` lanes, zeros after them: a row's tail runs through the same code as its body.
template <typename T>
inline Vec load_partial(const T* p, std::ptrdiff_t count) {
    T padded[kLanes] = {};
    std::memcpy(padded, p, static_cast<std::size_t>(count) * sizeof(T));
    return load(padded);
}

inline void store_partial(float* p, const Vec& x, std::ptrdiff_t count) {
    float padded[kLanes];
    store(padded, x);
    std::memcpy(p, padded, static_cast<std::size_t>(count) * sizeof(float));
}

template <typename T>
inline Vec load_up_to(const T* p, std::ptrdiff_t count) {
    return count >= kLanes ? load(p) : load_partial(p, count);
}

inline void store_up_to(float* p, const Vec& x, std::ptrdiff_t count) {
    if (count >= kLanes) {
        store(p, x);
    } else {
        store_partial(p, x, count);
    }
}

#define OCTAVO_LANEWISE(signature, expression) \
    inline Vec signature {                     \
        return each_part([&](int i) __attribute__((always_inline)) { return expression; }); \
    }
OCTAVO_LANEWISE(operator+(const Vec& a, const Vec& b), a.part[i] + b.part[i])
OCTAVO_LANEWISE(operator-(const Vec& a, const Vec& b), a.part[i] - b.part[i])
OCTAVO_LANEWISE(operator*(const Vec& a, const Vec& b), a.part[i] * b.part[i])
OCTAVO_LANEWISE(operator/(const Vec& a, const Vec& b), a.part[i] / b.part[i])
OCTAVO_LANEWISE(fma(const Vec& a, const Vec& b, const Vec& c), native_fma(a.part[i], b.part[i], c.part[i]))
OCTAVO_LANEWISE(maximum(const Vec& a, const Vec& b), a.part[i] > b.part[i] ? a.part[i] : b.part[i])
// `value` where x is minus infinity, else y.
OCTAVO_LANEWISE(where_minus_infinity(const Vec& x, const Vec& value, const Vec& y),
                x.part[i] == native_broadcast(-__builtin_inff()) ? value.part[i] : y.part[i])
#undef OCTAVO_LANEWISE

// One fixed tree for every instruction set: lanes 8 apart, then 4, 2, 1.
template <typename F, typename G>
inline float reduce(const Vec& x, const F& each, const G& one) {
#if defined(OCTAVO_AVX2)
#if defined(__AVX512F__)
    const auto halves = bit_cast<__m512d>(x);
    const __m256 by_8 = each(_mm256_castpd_ps(_mm512_castpd512_pd256(halves)),
                             _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xff, halves, 1)));
#else
    const __m256 by_8 = each(x.part[0], x.part[1]);
#endif
    const __m256 by_4 = each(by_8, _mm256_permute2f128_ps(by_8, by_8, 1));
    const __m256 by_2 = each(by_4, _mm256_permute_ps(by_4, 0x4e));
    return one(by_2[0], by_2[1]);
#else
    (void)each;
    float lanes[kLanes];
    store(lanes, x);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] = one(lanes[i], lanes[i + width]);
    return lanes[0];
#endif
}

inline float reduce_add(const Vec& x) {
    const auto add = [](auto a, auto b) __attribute__((always_inline)) { return a + b; };
    return reduce(x, add, add);
}

inline float reduce_max(const Vec& x) {
    const auto larger = [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; };
    return reduce(x, larger, larger);
}

// exp(x) to about 1 ulp for x in [-87.3, 88.3]; below and above it stays at the bound's value. NaN stays NaN.
// x = n ln 2 + r with the polynomial for exp(r) of the Cephes library; 2^n is built in the exponent bits.
inline NativeFloat native_exp(NativeFloat x) {
    const NativeFloat high = native_broadcast(88.37626f), low = native_broadcast(-87.33654f);
    const NativeFloat shifter = native_broadcast(12582912.0f);  // 1.5 * 2^23: leaves the integer n in the low bits
    x = high < x ? high : x;  // written so that NaN passes
    x = x < low ? low : x;
    const NativeFloat shifted = native_fma(x, native_broadcast(1.44269504f), shifter);
    const NativeFloat n = shifted - shifter;
    NativeFloat r = native_fma(n, native_broadcast(-0.693359375f), x);
    r = native_fma(n, native_broadcast(2.12194440e-4f), r);
    NativeFloat p = native_broadcast(1.9875691500e-4f);
    p = native_fma(p, r, native_broadcast(1.3981999507e-3f));
    p = native_fma(p, r, native_broadcast(8.3334519073e-3f));
    p = native_fma(p, r, native_broadcast(4.1665795894e-2f));
    p = native_fma(p, r, native_broadcast(1.6666665459e-1f));
    p = native_fma(p, r, native_broadcast(5.0000001201e-1f));
    p = native_fma(p, r * r, r) + 1.0f;
    const NativeBits power = (bit_cast<NativeBits>(shifted) << 23) + 0x3f800000u;
    return p * bit_cast<NativeFloat>(power);
}

// log(x) to about 1 ulp for normal x > 0, by the polynomial of the Cephes library over [sqrt(1/2), sqrt(2)).
inline NativeFloat native_log(NativeFloat x) {
    const NativeBits bits = bit_cast<NativeBits>(x);
    NativeFloat m = bit_cast<NativeFloat>((bits & 0x7fffffu) | 0x3f000000u);  // in [1/2, 1)
    NativeFloat e = __builtin_convertvector(bit_cast<NativeInt>(bits >> 23) - 126, NativeFloat);
    const auto small = m < native_broadcast(0.707106781186547524f);
    e = small ? e - 1.0f : e;
    m = (small ? m + m : m) - 1.0f;
    const NativeFloat square = m * m;
    NativeFloat p = native_broadcast(7.0376836292e-2f);
    p = native_fma(p, m, native_broadcast(-1.1514610310e-1f));
    p = native_fma(p, m, native_broadcast(1.1676998740e-1f));
    p = native_fma(p, m, native_broadcast(-1.2420140846e-1f));
    p = native_fma(p, m, native_broadcast(1.4249322787e-1f));
    p = native_fma(p, m, native_broadcast(-1.6668057665e-1f));
    p = native_fma(p, m, native_broadcast(2.0000714765e-1f));
    p = native_fma(p, m, native_broadcast(-2.4999993993e-1f));
    p = native_fma(p, m, native_broadcast(3.3333331174e-1f));
    p = p * m * square;
    p = native_fma(e, native_broadcast(-2.12194440e-4f), p);
    p = native_fma(square, native_broadcast(-0.5f), p);
    return native_fma(e, native_broadcast(0.693359375f), m + p);
}

// tanh(x) to about 2 ulp; NaN stays NaN. Near zero the Cephes library's polynomial, where 1 - 2 / (exp(2 |x|) + 1) would
// lose digits to cancellation.
inline NativeFloat native_tanh(NativeFloat x) {
    const NativeFloat size = bit_cast<NativeFloat>(bit_cast<NativeBits>(x) & 0x7fffffffu);
    NativeFloat far = 1.0f - 2.0f / (native_exp(size + size) + 1.0f);
    far = bit_cast<NativeFloat>(bit_cast<NativeBits>(far) | (bit_cast<NativeBits>(x) & 0x80000000u));
    const NativeFloat square = x * x;
    NativeFloat p = native_broadcast(-5.70498872745e-3f);
    p = native_fma(p, square, native_broadcast(2.06390887954e-2f));
    p = native_fma(p, square, native_broadcast(-5.37397155531e-2f));
    p = native_fma(p, square, native_broadcast(1.33314422036e-1f));
    p = native_fma(p, square, native_broadcast(-3.33332819422e-1f));
    return size < native_broadcast(0.625f) ? native_fma(p * square, x, x) : far;
}

inline Vec tanh(const Vec& x) {
    return each_part([&](int i) __attribute__((always_inline)) { return native_tanh(x.part[i]); });
}

inline Vec exp(const Vec& x) {
    return each_part([&](int i) __attribute__((always_inline)) { return native_exp(x.part[i]); });
}

inline float exp(float x) {
    float lanes[kLanes];
    store(lanes, exp(broadcast(x)));
    return lanes[0];
}

}  // namespace octavo::OCTAVO_ISA
