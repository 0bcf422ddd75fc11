"""Servers that echo, each in a process of its own: bare ones of each transport, and menv's transports with an echo.

    python -m benchmarks.echo_servers {bare,ours} {tcp,http}

The first line is one JSON object with host and port; the process ends when its standard input does. `serving` starts
one for the rows of the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.processes import ROOT

KINDS = ("tcp", "http")


@contextmanager
def serving(*command: str) -> Iterator[tuple[str, int]]:
    """Run a server, `python -m <command>`, and yield where it listens."""
    arguments = [sys.executable, "-m", *command]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            place = json.loads(process.stdout.readline())
            yield place["host"], place["port"]
        finally:
            process.stdin.close()
            process.wait()


def announce(host: str, port: int) -> None:
    print(json.dumps({"host": host, "port": port}), flush=True)


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def bare_tcp() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Echo, "127.0.0.1", 0)
    announce(*server.sockets[0].getsockname())
    await loop.run_in_executor(None, sys.stdin.read)


async def bare_http() -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def echo(request: Request) -> Response:
        return Response(await request.body(), media_type="application/json")

    # As uvicorn makes its own: of a socket that does not say TCP, asyncio lets Nagle delay what it sends.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/rllink", echo, methods=["POST"])])
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, http="h11")
    server = uvicorn.Server(config)
    announce(*listening.getsockname())
    task = asyncio.create_task(server.serve(sockets=[listening]))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.should_exit = server.force_exit = True
    await task


class _Talk:
    admitted = True

    def received(self, body: bytes, reply: Callable[[bytes], None], close: object) -> None:
        reply(body)

    def lost(self) -> None:
        pass


class _Talks:
    def open(self, peer: object, token: object) -> _Talk:
        return _Talk()

    def metrics(self) -> str:
        return ""

    def refused(self, why: str) -> bytes:
        return json.dumps({"type": "ERROR", "message": why}).encode()


def ours(kind: str) -> None:
    from menv.serving.transports.http import HttpTransport
    from menv.serving.transports.server import Server
    from menv.serving.transports.tcp import TcpTransport

    transports: dict[str, Any] = {"tcp": TcpTransport, "http": HttpTransport}
    with Server(_Talks(), [transports[kind]()]) as server:
        announce(*server.addresses[0])
        sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("whose", choices=["bare", "ours"])
    parser.add_argument("kind", choices=KINDS)
    args = parser.parse_args()
    if args.whose == "ours":
        ours(args.kind)
    else:
        asyncio.run({"tcp": bare_tcp, "http": bare_http}[args.kind]())


if __name__ == "__main__":
    main()
