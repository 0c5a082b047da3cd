"""Conversions between float32/float16 and the bits of float8 e4m3 (torch.float8_e4m3fn), for a KV cache of one byte.

Kernels see such a cache as uint8: architectures before 8.9 have no e4m3 and Triton refuses the type there. Reading goes
to float16, which holds every e4m3 value exactly. Where the hardware converts (two values an instruction) it does;
elsewhere the bits are moved: e4m3's 4 exponent and 3 mantissa bits, put below the top one of float16's 5 and at the top
of its 10, are the value times 2^-8, subnormals included.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAX = tl.constexpr(448.0)


@triton.jit
def decode(bits, NATIVE: tl.constexpr):
    """uint8 -> float16: the value if NATIVE, the value times 2^-8 if not, which `scale_of` makes up for. NaN stays NaN
    if NATIVE and becomes 480 times 2^-8 if not."""
    if NATIVE:
        return bits.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    sign_extended = bits.to(tl.int8, bitcast=True).to(tl.int16)
    return ((sign_extended << 7) & ~0x4000).to(tl.float16, bitcast=True)


@triton.jit
def scale_of(scale_ptr, head, NATIVE: tl.constexpr):
    """What a product with decoded values of a head must be multiplied with. scale_ptr [G] float32."""
    scale = tl.load(scale_ptr + head)
    if NATIVE:
        return scale
    return scale * 256.0


@triton.jit
def encode(x):
    """float32 -> uint8, rounded to nearest even, clamped to the largest finite values; NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = tl.minimum(tl.abs(x), MAX)
    raw = magnitude.to(tl.uint32, bitcast=True)
    # Drop 20 of 23 mantissa bits, ties to even, and move the exponent's bias from 127 to 7.
    normal = ((raw + 0x7FFFF + ((raw >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 the spacing is 2^-9, that of float32 at 2^14: adding 2^14 rounds and leaves the count of steps.
    subnormal = (magnitude + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0.015625, subnormal, normal)
    code = tl.where(x != x, 0x7F, code)
    return (sign | code).to(tl.uint8)
