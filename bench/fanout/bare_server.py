"""The least that gRPC's Python server can do: the same messages at the same pace, made once and sent one by one.

`python -m bench.fanout.bare_server --steps-per-second N` prints its port and serves until it is killed. No scheduler,
no text, no request is read but for its length: what is left is the cost of a message.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import grpc
import uvloop

from octavo.serving.v1 import generation_pb2


class Bare(grpc.GenericRpcHandler):
    """Generate, as bytes. All streams take their steps together, as those of a worker do."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._tick = asyncio.Event()

    async def run(self) -> None:
        """Steps for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._period_s, loop.time())
            await asyncio.sleep(due - loop.time())
            tick, self._tick = self._tick, asyncio.Event()
            tick.set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Every method is Generate."""
        return grpc.unary_stream_rpc_method_handler(self._generate)

    async def _generate(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        wanted = generation_pb2.GenerateRequest.FromString(request).sampling_params.max_tokens
        for index in range(wanted):
            await self._tick.wait()
            delta = generation_pb2.SequenceDelta(text=" token", token_ids=[index % 32768])
            usage = generation_pb2.Usage(completion_tokens=wanted) if index == wanted - 1 else None
            message = generation_pb2.GenerateResponse(request_id="0" * 32, deltas=[delta], usage=usage)
            await context.write(message.SerializeToString())


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-per-second", type=float, default=100)
    bare = Bare(1 / parser.parse_args().steps_per_second)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((bare,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await bare.run()


if __name__ == "__main__":
    uvloop.run(main())
