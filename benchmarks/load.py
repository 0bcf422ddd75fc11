"""Clients of a server, as many as wanted, in one process that does nothing else.

    python -m benchmarks.load KIND HOST PORT [--clients N] [--seconds S] [--body-bytes N] [--ahead N] [--play]

Each client sends a body, waits for as many bytes of reply as the first time, and goes on. With --play it has begun an
episode before, of which its bodies ask for actions. The last line is one JSON object: bodies a second, and of the round
trips the median, the 99th of 100 and the longest, in ms. Bodies are JSON of a request for an action, filled up to the
length that is asked for.
"""

from __future__ import annotations

import argparse
import json
import secrets
import selectors
import socket
import statistics
import time

from benchmarks.echo_servers import KINDS

_EPISODE = b"0123456789abcdef"
_RUN = secrets.token_hex(8).encode()
"""No other run's clients are taken for ours."""
_REQUEST = b'{"type": "GET_ACTION", "episode_id": "0123456789abcdef", "observation": [0.01, 0.02, 0.03, 0.04]'


def body_of(size: int, client: int = 0) -> bytes:
    """Return JSON of `size` bytes, or of the least that a request has, of one client's episode."""
    padding = b"x" * max(0, size - len(_REQUEST) - 12)
    return b'%b, "pad": "%b"}' % (_REQUEST.replace(_EPISODE, b"%016x" % client), padding)


def first_body(client: int) -> bytes:
    """Return what begins a client's episode."""
    return b'{"type": "START_EPISODE", "episode_id": "%016x"}' % client


def request(kind: str, body: bytes, client: int = 0) -> bytes:
    """Return what a client sends for one body."""
    if kind == "tcp":
        return b"%08d%b" % (len(body), body)
    session = b"%b%016x" % (_RUN, client)
    head = b"POST /rllink HTTP/1.1\r\nHost: localhost\r\nmenv-session: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (session, len(body)) + body


def connect(address: tuple[str, int]) -> socket.socket:
    """Return a connection that is ready for bodies."""
    one = socket.create_connection(address)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


class Client:
    """One client; a reply is as long as the first one was, because it is an echo."""

    def __init__(self, one: socket.socket, sent: bytes, awaited: int) -> None:
        self.socket = one
        self.sent = sent
        self.awaited = awaited
        self.unsent = memoryview(b"")
        self.missing = 0
        self.began = 0.0

    def begin(self) -> None:
        self.began = time.perf_counter()
        self.unsent, self.missing = memoryview(self.sent), self.awaited
        self.push()

    def push(self) -> None:
        """Send what can be sent."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass

    def pull(self) -> float | None:
        """Take what has come; return the seconds of the round trip if that was the end of it."""
        self.missing -= len(self.socket.recv(min(self.missing, 1 << 20)))
        return time.perf_counter() - self.began if not self.missing else None


def reply_bytes(kind: str, one: socket.socket, sent: bytes, body: bytes) -> int:
    """Do one round trip and return how many bytes its reply has."""
    one.sendall(sent)
    got = b""
    while body not in got:
        got += one.recv(1 << 20)
    return len(got)


def answer_bytes(kind: str, one: socket.socket, sent: bytes) -> int:
    """Do one round trip with a server that answers something else; return how many bytes that has."""
    one.sendall(sent)
    got, length = b"", 1 << 30
    while len(got) < length:
        got += one.recv(1 << 20)
        if kind == "tcp" and len(got) >= 8:
            length = 8 + int(got[:8])
        elif b"\r\n\r\n" in got:
            head = got[: got.index(b"\r\n\r\n")].lower()
            length = len(head) + 4 + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    if b'"ERROR"' in got:
        raise RuntimeError(f"benchmarks.load: {got[-300:]!r}, expected an answer; look at the server")
    return len(got)


def ready(args: argparse.Namespace, number: int) -> Client:
    """Return a client that is connected and knows how long replies are."""
    one = connect((args.host, args.port))
    body = body_of(args.body_bytes, number)
    sent = request(args.kind, body, number)
    if args.play:
        answer_bytes(args.kind, one, request(args.kind, first_body(number), number))
        awaited = answer_bytes(args.kind, one, sent)
    else:
        awaited = reply_bytes(args.kind, one, sent, body)
    one.setblocking(False)
    return Client(one, sent * args.ahead, awaited * args.ahead)


def play(args: argparse.Namespace) -> tuple[list[float], float]:
    """Run all clients until the time is over and one was answered; return each round trip and the time, in seconds."""
    clients = [ready(args, number) for number in range(args.clients)]
    trips: list[float] = []
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
    for client in clients:
        client.begin()
    begun = time.perf_counter()
    while time.perf_counter() < begun + args.seconds or not trips:
        for key, _ in selector.select(0.001 if any(client.unsent for client in clients) else 1.0):
            took = key.data.pull()
            if took is not None:
                trips.append(took)
                key.data.begin()
        for client in clients:
            if client.unsent:
                client.push()
    return trips, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--body-bytes", type=int, default=0)
    parser.add_argument("--ahead", type=int, default=1, help="bodies that a client sends before it waits")
    parser.add_argument("--play", action="store_true", help="ask a policy server for actions")
    args = parser.parse_args()
    trips, seconds = play(args)
    found = {"per_second": args.ahead * len(trips) / seconds}
    ordered = sorted(1e3 * trip for trip in trips)
    found["p50_ms"], found["longest_ms"] = statistics.median(ordered), ordered[-1]
    found["p99_ms"] = ordered[len(ordered) * 99 // 100]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
