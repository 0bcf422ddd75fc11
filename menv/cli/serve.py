"""`menv serve`: answers external clients with the policies of a run, which learn from them unless they are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from menv.cli.arguments import Parser, parsed, port, take_imports
from menv.cli.reopen import take_trust
from menv.cli.train import train, train_parser
from menv.env_context import InputContext
from menv.plain_files import read_named
from menv.serving.policy_server import PolicyServerInput, TransportName
from menv.serving.transports.access import Access


class ServedPolicies:
    """The setting `input` of a run that is served. Run folders hold its name alone, so not the token."""

    def __init__(self, access: Access, port: int, transport: TransportName) -> None:
        self.access = access
        self.port = port
        self.transport = transport

    def __call__(self, ioctx: InputContext) -> PolicyServerInput:
        return PolicyServerInput(
            ioctx, port=self.port, transport=self.transport, access=self.access, idle_timeout=None
        )


def main(arguments: Sequence[str] | None = None, program: str = "menv serve") -> int:
    """Serve until Ctrl-C and return the exit status."""
    parser = Parser(
        prog=program, description="Serve the policies of a run to menv.serving.client.PolicyClient."
    )
    parser.add_argument("run", help="a run folder, or a checkpoint")
    parser.add_argument(
        "--frozen", action="store_true", help="only act; otherwise the run continues to learn"
    )
    parser.add_argument("--env", help="the environment of the clients, for its spaces (the run's)")
    parser.add_argument("--address", default="127.0.0.1", help="%(default)s; any other needs a token")
    parser.add_argument("--port", type=port, default=9900, help="%(default)s; 0 chooses a free one")
    parser.add_argument("--transport", choices=("http", "tcp"), default="http")
    parser.add_argument("--token-file", metavar="FILE", help="a file with the token that clients must send")
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[],
        help="a host name by which clients may reach a server without a token; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--allow-origin", metavar="ORIGIN", action="append", default=[],
        help="web pages that may connect, such as https://lab.example:8080; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="a PEM file with the certificate chain; turns on TLS"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, unless --tls-cert contains it")
    parser.add_argument("--json", action="store_true", help="print results as JSON, one object per line")
    take_trust(parser)
    take_imports(parser)
    args = parsed(parser, arguments)
    access = Access(
        address=args.address, token=_token(args.token_file), ssl_certificate=args.tls_cert, ssl_key=args.tls_key,
        allowed_origins=args.allow_origin, allowed_hosts=args.allow_host,
    )  # fmt: skip
    served = ServedPolicies(access, args.port, args.transport)
    training = parsed(
        train_parser(program), ["--resume", args.run, *(["--env", args.env] if args.env else [])]
    )
    training.config = {"input": served, "num_workers": 0}
    if args.frozen:
        training.config |= {"multiagent": {"policies_to_train": []}, "evaluation_interval": None}
        training.no_save = True
    training.trust, training.typed, training.json = args.trust, args.typed, args.json
    return train(training, args.typed)


def _token(file: str | None) -> str | None:
    return None if file is None else read_named("--token-file", Path(file)).strip()
