"""What a native decoder refuses to be made of. What it computes is tested with the models (tests/worker/models)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.cpu.native_decoder import DecoderParts, LayerParts, NativeDecoder, PagedCaches
from kernels.cpu.ops import CpuOps

HIDDEN, HEADS, HEAD_DIM, INTERMEDIATE, WIDTH = 24, 2, 16, 40, 50


def make_layer(ops: CpuOps) -> LayerParts:
    return LayerParts(
        input_norm=torch.ones(HIDDEN),
        qkv=ops.prepare_linear(torch.randn(3 * HEADS * HEAD_DIM, HIDDEN), None),
        q_norm=None,
        k_norm=None,
        output=ops.prepare_linear(torch.randn(HIDDEN, HEADS * HEAD_DIM), None),
        post_attention_norm=torch.ones(HIDDEN),
        gate_up=ops.prepare_linear(torch.randn(2 * INTERMEDIATE, HIDDEN), None),
        down=ops.prepare_linear(torch.randn(HIDDEN, INTERMEDIATE), None),
    )


class OneToken:
    """A step of one token by its fields."""

    token_ids = slot_mapping = logits_indices = torch.zeros(1, dtype=torch.int64)
    positions = torch.zeros(1, dtype=torch.int32)
    seq_lens = torch.ones(1, dtype=torch.int32)
    query_start_loc = torch.tensor([0, 1], dtype=torch.int32)
    block_tables = torch.zeros(1, 1, dtype=torch.int32)


@pytest.fixture
def parts(ops: CpuOps) -> DecoderParts:
    return DecoderParts(
        query_heads=HEADS,
        kv_heads=HEADS,
        head_dim=HEAD_DIM,
        eps=1e-5,
        scale=0.25,
        window=0,
        soft_cap=0.0,
        embedding=torch.randn(WIDTH, HIDDEN),
        cos_sin=torch.randn(64, HEAD_DIM),
        layers=[make_layer(ops)],
        final_norm=torch.ones(HIDDEN),
        lm_head=ops.prepare_linear(torch.randn(WIDTH, HIDDEN), None),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": []}, "at least one layer"),
        ({"head_dim": 8}, "head_dim must be a multiple of 16"),
        ({"kv_heads": 3}, "query_heads one of kv_heads"),
        ({"embedding": torch.randn(WIDTH, HIDDEN + 1)}, r"embedding must be \[50, 24\]"),
        ({"embedding": torch.randn(WIDTH, HIDDEN).half()}, "embedding must be in float32 or bfloat16"),
        ({"final_norm": torch.ones(HIDDEN, dtype=torch.bfloat16)}, r"final_norm must be \[24\] in torch.float32"),
        ({"cos_sin": torch.randn(64, 2 * HEAD_DIM)}, r"cos_sin must be \[64, 16\]"),
    ],
)
def test_refuses_parts_that_do_not_fit(
    ops: CpuOps, parts: DecoderParts, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        NativeDecoder(ops.library, replace(parts, **change), num_threads=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_norm": torch.ones(HIDDEN + 1)}, r"input_norm must be \[24\]"),
        ({"q_norm": torch.ones(HEAD_DIM)}, "q_norm and k_norm come together"),
        ({"q_norm": torch.ones(3), "k_norm": torch.ones(HEAD_DIM)}, r"q_norm must be \[16\]"),
    ],
)
def test_refuses_layers_that_do_not_fit(
    ops: CpuOps, parts: DecoderParts, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        NativeDecoder(ops.library, replace(parts, layers=[replace(parts.layers[0], **change)]), num_threads=1)


# The depth of `down` is the intermediate size, which `gate_up` then has to fit.
@pytest.mark.parametrize(
    ("name", "named"), [("qkv", "qkv"), ("output", "output"), ("gate_up", "gate_up"), ("down", "gate_up")]
)
def test_refuses_projections_of_another_shape(ops: CpuOps, parts: DecoderParts, name: str, named: str) -> None:
    layer = replace(parts.layers[0], **{name: ops.prepare_linear(torch.randn(HIDDEN + 1, HIDDEN), None)})
    with pytest.raises(ValueError, match=rf"decoder: {named} must be"):
        NativeDecoder(ops.library, replace(parts, layers=[layer]), num_threads=1)


def test_refuses_caches_of_another_model(ops: CpuOps, parts: DecoderParts) -> None:
    decoder = NativeDecoder(ops.library, parts, num_threads=1)
    caches = PagedCaches([torch.zeros(4, HEADS + 1, 16, HEAD_DIM)], [torch.zeros(4, HEADS + 1, 16, HEAD_DIM)])
    with pytest.raises(ValueError, match="caches must be of 1 layers, 2 heads and head size 16, got 1, 3 and 16"):
        decoder.forward(OneToken(), caches)


def test_refuses_caches_that_differ_between_layers() -> None:
    small, large = torch.zeros(4, 2, 16, 16), torch.zeros(5, 2, 16, 16)
    with pytest.raises(ValueError, match="layers must be alike"):
        PagedCaches([small, large], [small, large])
