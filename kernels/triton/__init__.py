"""The ops on CUDA GPUs, in Triton: one op per file, each with the signature of its reference in `kernels/`.

Shapes and layouts are those of `worker/backend/protocol.py`: caches [N, G, B, D], varlen steps described by
query_start_loc, seq_lens, block_tables and slot_mapping. Importing this package imports neither torch nor triton; its
modules import both.
"""
