"""The scheduler core: a deterministic state machine that decides what every step computes.

It imports the standard library only, does no I/O, reads no clock (time is an argument) and iterates over nothing whose
order depends on `id()` or `hash()`: the same calls give the same plans, byte for byte.
"""
