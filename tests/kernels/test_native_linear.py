"""The native linear layer against its reference, on sizes that are no multiple of the panel or the tile."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.ops import CpuOps
from kernels.cpu.packed_linear import PackedLinear
from kernels.linear_coded_ref import coded_weight
from kernels.linear_coded_ref import fits as fits_codes
from kernels.linear_integer_ref import GROUP, fits, linear_integer, shifted_weight
from kernels.linear_ref import linear
from kernels.quantize_int8 import dequantize_int8, quantize_int8
from tests.kernels.cases import MULTIPLIES_INTEGERS, ROUNDS_ACTIVATIONS, assert_near

ROWS = (1, 2, 3, 4, 7, 12, 13, 25, 64, 70, 97, 200)
STORAGE = [torch.float32, torch.bfloat16, torch.int8]
"""How a layer keeps its weights; int8 is quantised from what the test draws."""


def prepare(
    native: NativeLibrary, weight: torch.Tensor, bias: torch.Tensor | None, storage: torch.dtype, num_threads: int = 2
) -> PackedLinear:
    quantization = "int8" if storage is torch.int8 else "none"
    return CpuOps(native, num_threads=num_threads, quantization=quantization).prepare_linear(weight, bias)


def draw(n: int, k: int, storage: torch.dtype) -> torch.Tensor:
    return torch.randn(n, k).to(torch.float32 if storage is torch.int8 else storage)


def expected(
    native: NativeLibrary, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, storage: torch.dtype
) -> torch.Tensor:
    """The reference's result of what the layer multiplies: its quantised weights, and x rounded where it rounds x."""
    if storage is not torch.float32 and native.instruction_set in MULTIPLIES_INTEGERS:
        return linear_integer(x, *(quantize_int8(weight) if storage is torch.int8 else shifted_weight(weight)), bias)
    if storage is torch.int8:
        weight = dequantize_int8(*quantize_int8(weight))
    if storage is not torch.float32 and native.instruction_set in ROUNDS_ACTIVATIONS:
        x = x.bfloat16().float()
        weight = coded_weight(weight) if storage is torch.bfloat16 else weight
    return linear(x, weight, bias)


def tolerance(native: NativeLibrary, storage: torch.dtype) -> float:
    """Where x becomes integers, a last bit of its scale can tip one of them to the other side."""
    return 1e-4 if storage is not torch.float32 and native.instruction_set in MULTIPLIES_INTEGERS else 1e-5


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 3), (31, 64), (32, 17), (33, 100), (160, 63), (257, 513)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_matches_the_reference(native: NativeLibrary, storage: torch.dtype, n: int, k: int, with_bias: bool) -> None:
    weight = draw(n, k, storage)
    bias = torch.randn(n) if with_bias else None
    layer = prepare(native, weight, bias, storage)
    for rows in ROWS:
        x = torch.randn(rows, k)
        y = layer(x)
        assert_near(y, expected(native, x, weight, bias, storage), tolerance(native, storage))
        assert_near(y, linear(x, weight, bias), 2e-2)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("k", [639, 1281, 2049, 4500])
def test_deep_layers_are_summed_in_several_passes(native: NativeLibrary, storage: torch.dtype, k: int) -> None:
    weight, bias = draw(100, k, storage), torch.randn(100)
    layer = prepare(native, weight, bias, storage)
    for rows in (1, 2, 3, 7, 40):
        x = torch.randn(rows, k)
        assert_near(layer(x), expected(native, x, weight, bias, storage), 3 * tolerance(native, storage))


@pytest.mark.parametrize("storage", STORAGE)
def test_a_nan_stays_in_its_row(native: NativeLibrary, storage: torch.dtype) -> None:
    x = torch.randn(9, 33)
    x[4, 32] = float("nan")
    y = prepare(native, draw(70, 33, storage), None, storage)(x)
    assert y[4].isnan().all()
    assert not y[[0, 1, 2, 3, 5, 6, 7, 8]].isnan().any()


def test_a_channel_that_is_not_finite_stays_alone(native: NativeLibrary) -> None:
    weight = torch.randn(70, 33)
    weight[35, 7] = float("nan")
    y = prepare(native, weight, None, torch.int8)(torch.randn(9, 33))
    assert y[:, 35].isnan().all() and y.isnan().sum() == 9


def test_rows_of_x_may_lie_apart(ops: CpuOps) -> None:
    weight = torch.randn(40, 24)
    x = torch.randn(9, 100)[:, 30:54]
    assert_near(ops.prepare_linear(weight, None)(x), linear(x, weight))


def test_no_rows_give_no_rows(ops: CpuOps) -> None:
    assert ops.prepare_linear(torch.randn(40, 24), None)(torch.empty(0, 24)).shape == (0, 40)


@pytest.mark.parametrize("storage", STORAGE)
def test_the_weight_may_be_freed(native: NativeLibrary, storage: torch.dtype) -> None:
    weight, bias, x = draw(40, 24, storage), torch.randn(40), torch.randn(3, 24)
    layer = prepare(native, weight, bias, storage)
    before = layer(x)
    weight.zero_()
    bias.zero_()
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize(("n", "k"), [(70, 300), (1056, 97), (97, 2111)])
def test_a_row_has_the_same_bits_in_every_batch(native: NativeLibrary, storage: torch.dtype, n: int, k: int) -> None:
    weight, bias, x = draw(n, k, storage), torch.randn(n), torch.randn(230, k)
    layers = [prepare(native, weight, bias, storage, num_threads) for num_threads in (1, 2, 5)]
    alone = torch.cat([layers[0](row[None]) for row in x])
    for rows in (1, 2, 3, 5, 7, 12, 13, 64, 97, 230):
        for layer in layers:
            assert torch.equal(layer(x[:rows]), alone[:rows])
            assert torch.equal(layer(x[230 - rows :]), alone[230 - rows :])


@pytest.mark.parametrize(("storage", "bytes_per_weight"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.int8, 1)])
def test_a_layer_keeps_its_weights_and_little_else(
    native: NativeLibrary, storage: torch.dtype, bytes_per_weight: float
) -> None:
    layer = prepare(native, draw(640, 500, storage), None, storage)
    if storage is torch.bfloat16 and native.instruction_set in MULTIPLIES_INTEGERS + ROUNDS_ACTIVATIONS:
        bytes_per_weight = 1.5
    num_bytes = kept_bytes(layer)
    assert 640 * 500 * bytes_per_weight <= num_bytes <= 640 * (500 * bytes_per_weight + 4) + 64


def padded(native: NativeLibrary, n: int) -> int:
    """Channels in whole panels."""
    panel = 32 if native.instruction_set in ("x86-64-v4", "x86-64-v4-bf16") else 16
    return -(-n // panel) * panel


def kept_bytes(layer: PackedLinear) -> int:
    return sum(tensor.nbytes for tensor in layer.tensors())


class TestIntegers:
    """What bfloat16 and int8 weights are multiplied in on x86-64-v3 and x86-64-v4."""

    @pytest.fixture(autouse=True)
    def _integers(self, native: NativeLibrary) -> None:
        if native.instruction_set not in MULTIPLIES_INTEGERS:
            pytest.skip("multiplies no integers")

    @pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 11, 64])
    @pytest.mark.parametrize("outlier", [1.0, 30.0, 1e4])
    def test_rounds_less_than_bfloat16_activations_would(
        self, native: NativeLibrary, rows: int, outlier: float
    ) -> None:
        weight, x = draw(200, 576, torch.bfloat16), torch.randn(rows, 576)
        x[:, ::97] *= outlier
        exact = x.double() @ weight.double().T
        error = (prepare(native, weight, None, torch.bfloat16)(x) - exact).norm(dim=1)
        rounded = (x.bfloat16().double() @ weight.double().T - exact).norm(dim=1)
        assert (error < rounded / 3).all()

    @pytest.mark.parametrize("storage", [torch.bfloat16, torch.int8])
    @pytest.mark.parametrize("rows", [1, 4, 7])
    def test_the_largest_sums_do_not_overflow(self, native: NativeLibrary, storage: torch.dtype, rows: int) -> None:
        """x along the weights, all of the largest magnitude: every sum of a group is as large as it can be."""
        signs = torch.randn(32, 640).sign()
        weight = (signs * 255 / 256).to(torch.float32 if storage is torch.int8 else storage)
        x = signs[:rows] * torch.tensor([1.0, 1e-3, 1e30, 1e-30])[torch.arange(rows) % 4, None]
        assert_near(prepare(native, weight, None, storage)(x), linear(x, weight), 2e-3)
        one = torch.zeros(rows, 640)  # as a single element
        one[:, 3] = 7
        assert_near(prepare(native, weight, None, storage)(one), linear(one, weight), 1e-3)

    def test_weights_within_six_powers_of_two_of_the_largest_keep_every_bit(self, native: NativeLibrary) -> None:
        significands = torch.randint(128, 256, (48, 64)).float() * torch.randn(48, 64).sign()
        weight = significands * 2.0 ** torch.randint(-60, -53, (48, 64))
        weight[:, 0] = 255 * 2.0**-54
        layer = prepare(native, weight.bfloat16(), None, torch.bfloat16)
        assert weight.bfloat16().float().equal(weight) and kept_bytes(layer) < padded(native, 48) * 64 * 2
        assert torch.equal(layer(torch.eye(64)).T, weight)  # a lone element of x is an integer and its scale exactly

    @pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
    def test_a_power_of_two_changes_no_bit(self, native: NativeLibrary, scale: float) -> None:
        weight, x = draw(48, 500, torch.bfloat16), torch.randn(7, 500)
        layer = prepare(native, weight, None, torch.bfloat16)
        assert torch.equal(layer(x * scale), layer(x) * scale)
        assert torch.equal(prepare(native, weight * scale, None, torch.bfloat16)(x), layer(x) * scale)

    def test_a_group_of_zeros_adds_nothing(self, native: NativeLibrary) -> None:
        weight, x = draw(48, 3 * GROUP, torch.bfloat16), torch.randn(7, 3 * GROUP)
        weight[:, 0] = 7  # the largest with that group and without
        x[:, GROUP : 2 * GROUP] = 0
        rest = torch.cat([weight[:, :GROUP], weight[:, 2 * GROUP :]], dim=1)
        layer, without = (prepare(native, it, None, torch.bfloat16) for it in (weight, rest))
        assert torch.equal(layer(x), without(torch.cat([x[:, :GROUP], x[:, 2 * GROUP :]], dim=1)))
        assert (layer(torch.zeros(7, 3 * GROUP)) == 0).all()

    @pytest.mark.parametrize("outlier", [3e4, float("inf"), float("nan"), 1e-38, 1e-40])
    def test_a_matrix_that_would_change_stays_as_it_is(self, native: NativeLibrary, outlier: float) -> None:
        weight, x = draw(40, 576, torch.bfloat16), torch.randn(9, 576)
        weight[17, 5] = outlier
        if outlier < 1:  # all so small that what makes them integers would be no number
            weight[17] *= outlier * 10
        layer = prepare(native, weight, None, torch.bfloat16)
        assert not fits(weight) and kept_bytes(layer) == padded(native, 40) * 576 * 2
        y, exact = layer(x), x @ weight.float().T
        others = [n for n in range(40) if n != 17]
        assert_near(y[:, others], exact[:, others])
        torch.testing.assert_close(y[:, 17], exact[:, 17], rtol=1e-4, atol=0, equal_nan=True)

    @pytest.mark.parametrize("octaves", [6, 9, 13])
    def test_large_input_channels_do_not_cost_the_others_their_bits(self, native: NativeLibrary, octaves: int) -> None:
        """A fifth of the inputs has large weights, in every channel, and small activations."""
        large = torch.arange(640) % 5 == 0
        weight = (torch.randn(64, 640) * torch.where(large, 1.0, 2.0**-octaves)).bfloat16()
        x = torch.randn(9, 640) * torch.where(large, 2.0**-octaves, 1.0)
        y, exact = prepare(native, weight, None, torch.bfloat16)(x), x.double() @ weight.double().T
        rounded = x.bfloat16().double() @ weight.double().T
        assert not fits(weight)
        assert (y - exact).norm() < (rounded - exact).norm()

    @pytest.mark.parametrize("scale", [1e-20, 1e-30, 1e25])
    def test_activations_may_be_tiny_or_huge(self, native: NativeLibrary, scale: float) -> None:
        weight, x = draw(48, 500, torch.bfloat16), torch.randn(7, 500)
        layer = prepare(native, weight, None, torch.bfloat16)
        assert_near(layer(x * scale) / scale, layer(x), 1e-3)
        none = prepare(native, torch.zeros(16, 500, dtype=torch.bfloat16), None, torch.bfloat16)
        assert (none(torch.full((1, 500), 3e38)) == 0).all()

    def test_a_channel_of_zeros_fits(self, native: NativeLibrary) -> None:
        weight = draw(40, 576, torch.bfloat16)
        weight[17] = 0
        layer = prepare(native, weight, None, torch.bfloat16)
        assert fits(weight) and kept_bytes(layer) < padded(native, 40) * 576 * 1.6
        assert (layer(torch.randn(9, 576))[:, 17] == 0).all()

    @pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
    def test_what_is_no_number_makes_its_row_nan(self, native: NativeLibrary, bad: float) -> None:
        x = torch.randn(9, 200)
        x[4, 150] = bad
        y = prepare(native, draw(70, 200, torch.bfloat16), None, torch.bfloat16)(x)
        assert y[4].isnan().all() and not y[[0, 1, 2, 3, 5, 6, 7, 8]].isnan().any()


class TestCodes:
    """The 12 bits in which x86-64-v4-bf16 keeps bfloat16 weights."""

    @pytest.fixture(autouse=True)
    def _codes(self, native: NativeLibrary) -> None:
        if native.instruction_set not in ROUNDS_ACTIVATIONS:
            pytest.skip("keeps no codes")

    def kept(self, native: NativeLibrary, weight: torch.Tensor) -> torch.Tensor:
        """What the layer multiplies with: its products with the unit vectors."""
        return prepare(native, weight, None, torch.bfloat16)(torch.eye(weight.shape[1])).T

    @pytest.mark.parametrize("top", [-119, -60, 0, 1, 100])
    def test_weights_of_thirteen_powers_of_two_keep_every_bit(self, native: NativeLibrary, top: int) -> None:
        significands = torch.randint(128, 256, (70, 101)).float() / 128 * torch.randn(70, 101).sign()
        weight = significands * 2.0 ** torch.randint(top - 12, top + 1, (70, 101)).clamp(min=-124)
        weight[:, 3] = 0
        weight[:, 7] = 255 / 128 * 2.0**top
        assert weight.bfloat16().float().equal(weight) and fits_codes(weight.bfloat16())
        assert torch.equal(self.kept(native, weight.bfloat16()), weight)

    @pytest.mark.parametrize("n", [1, 31, 32, 33, 70])
    def test_the_smallest_are_rounded_to_zero_or_the_least_code(self, native: NativeLibrary, n: int) -> None:
        weight = (
            torch.randn(n, 200) * 2.0 ** -torch.rand(n, 200).mul(18).where(torch.rand(n, 200) < 0.05, 0)
        ).bfloat16()
        assert fits_codes(weight) and not coded_weight(weight).equal(weight.float())
        assert torch.equal(self.kept(native, weight), coded_weight(weight))

    @pytest.mark.parametrize("outlier", [3e4, 2e38, float("inf"), float("nan"), 1e-38, 1e-40])
    def test_a_matrix_that_would_change_stays_as_it_is(self, native: NativeLibrary, outlier: float) -> None:
        weight, x = draw(40, 576, torch.bfloat16), torch.randn(9, 576)
        weight[17, 5] = outlier
        if outlier < 1:
            weight[17] *= outlier * 10
        layer = prepare(native, weight, None, torch.bfloat16)
        assert not fits_codes(weight) and kept_bytes(layer) == 64 * 576 * 2
        y, exact = layer(x), x.bfloat16().float() @ weight.float().T
        others = [n for n in range(40) if n != 17]
        assert_near(y[:, others], exact[:, others])
        if outlier > 1:
            torch.testing.assert_close(y[:, 17], exact[:, 17], rtol=1e-4, atol=0, equal_nan=True)

    def test_a_small_channel_beside_a_large_one_keeps_its_bits(self, native: NativeLibrary) -> None:
        weight = draw(64, 576, torch.bfloat16)
        weight[5] *= 2.0**-7
        assert not fits_codes(weight)
        assert torch.equal(self.kept(native, weight), weight.float())


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(2, 23), r"x must be \[T, 24\] in float32"),
        (torch.randn(2, 24, dtype=torch.float64), "float64"),
        (torch.randn(24, 2).T, "contiguous rows"),
    ],
)
def test_refuses_what_it_cannot_read(ops: CpuOps, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.prepare_linear(torch.randn(40, 24), None)(x)


@pytest.mark.parametrize("weight", [torch.randn(4, 4, dtype=torch.float16), torch.randn(4), torch.randn(4, 0)])
def test_refuses_what_is_no_weight(ops: CpuOps, weight: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"weight must be \[N, K\] in float32 or bfloat16, not empty"):
        ops.prepare_linear(weight, None)


def test_refuses_a_bias_that_does_not_fit(ops: CpuOps) -> None:
    with pytest.raises(ValueError, match=r"bias must be \[4\], got \[5\]"):
        ops.prepare_linear(torch.randn(4, 4), torch.randn(5))


def test_refuses_an_unknown_quantization(native: NativeLibrary) -> None:
    with pytest.raises(ValueError, match="quantization must be one of none, int8, got 'int4'"):
        CpuOps(native, num_threads=1, quantization="int4")
