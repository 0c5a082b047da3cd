"""Front ends as processes of their own (`--frontends N`): they share the public port and take tokenising, detokenising
and streaming off the engine's process.

The engine's process keeps the queues, the block tables and the AdminService. Each front end has a socket pair to it, on
which the values of `scheduler.messages` travel. What a front end cannot answer (AdminService, health) it passes on,
bytes as they are, to the engine's process.
"""
