"""The worker: a model, its paged KV cache, and the execution of step plans that a scheduler sends.

It decides nothing. `service` and `session` speak gRPC on the event loop, `executor` is the one thread that computes,
`runner` is a step; `sequence_table` holds the rows, `wire` translates, `assembly` builds it all from `config`.
"""
