"""`menv serve`: answers external clients with the policies of a run, which learn from them unless they are frozen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

from menv.algorithms.rollouts.worker_messages import synced_filters
from menv.cli.arguments import Parser, option, parsed, port, repeated, switch
from menv.cli.reopen import take_env, take_level
from menv.cli.train import train, train_parser
from menv.env_context import InputContext
from menv.errors import ConfigError, MenvError, message_of
from menv.inference.checkpoint_folder import LATEST, checkpoint_root, find_checkpoint
from menv.plain_files import read_named
from menv.policy import Policy
from menv.serving.limits import Limits
from menv.serving.policy_server import PolicyServerInput, TransportName
from menv.serving.transports.access import Access
from menv.tracking.tracker import Tracker

_log = logging.getLogger("menv.serving")

_LEVELS = ("debug", "info", "warning", "error")
_LIMITS = {
    "max_body": "bytes of a request",
    "max_connections": "clients at the same time",
    "handshake_s": "seconds until a new connection has sent its first request, and until any request is complete",
    "idle_s": "seconds until a silent connection is closed",
    "max_unsent": "bytes of replies that may wait for a slow client",
    "max_agents": "agents of an episode",
    "max_episodes": "open episodes of a client",
    "max_open_episodes": "open episodes of all clients",
    "max_waiting": "bytes of a client's steps that may wait to be sampled",
}


class ServedPolicies:
    """The setting `input` of a run that is served.

    A run folder holds its name alone, so not the token; the fields of a dataclass would be stored.
    """

    server: PolicyServerInput

    def __init__(self, access: Access, port: int, transport: TransportName, limits: Limits) -> None:
        self.access, self.port, self.transport, self.limits = access, port, transport, limits

    def __call__(self, ioctx: InputContext) -> PolicyServerInput:
        self.server = PolicyServerInput(
            ioctx, port=self.port, transport=self.transport, access=self.access, limits=self.limits, idle_timeout=None
        )  # fmt: skip
        return self.server


class FrozenPolicies(Tracker):
    """Gives a server the policies of a snapshot, and with `reloads` the policies of each new checkpoint of its run.

    A thread reads new checkpoints. One that cannot be read, such as one that is still being copied, is logged once and
    tried again.

    Args:
        run: The run folder, or its folder of checkpoints.
        served: The input of the run.
        snapshot: The snapshot or the level whose policies are served; None for the run's.
        reloads: Whether the server follows the run.
    """

    interval_s = 1.0

    def __init__(self, run: str, served: ServedPolicies, snapshot: str | None, reloads: bool) -> None:
        self._run, self._served, self._snapshot, self._reloads = run, served, snapshot, reloads
        self._current = self._newest()
        if reloads and self._current is None:
            raise ConfigError(
                f"--reload: {run} is one checkpoint, which does not change, expected a run folder; leave --reload out"
            )
        self._over = threading.Event()
        self._logged = ""

    def begin(self, algorithm: Any) -> None:
        """Give the policies of the snapshot, and begin to watch the folder."""
        if self._snapshot is not None:
            _replace(algorithm, self._read(algorithm, self._run), "the snapshot")
        if self._reloads:
            threading.Thread(target=self._watch, args=(algorithm,), name="menv reload", daemon=True).start()

    def end(self, reason: str) -> None:
        """Stop watching."""
        self._over.set()

    def _newest(self) -> tuple[int, int] | None:
        """Return what changes with each checkpoint; None in a folder that is a checkpoint itself."""
        latest = checkpoint_root(self._run) / LATEST
        return (latest.stat().st_mtime_ns, latest.stat().st_ino) if latest.is_file() else None

    def _read(self, algorithm: Any, folder: str | Path) -> Mapping[str, Policy]:
        found: Any = Policy.from_checkpoint(folder, list(algorithm.inference), snapshot=self._snapshot)
        return cast(Mapping[str, Policy], found)

    def _watch(self, algorithm: Any) -> None:
        while not self._over.wait(self.interval_s):
            try:
                newest = self._newest()
                if newest in (None, self._current):
                    continue
                folder = find_checkpoint(self._run)
                policies = self._read(algorithm, folder)
            except (MenvError, OSError) as error:
                self._warn(error)
            else:
                self._current = newest
                self._served.server.call_soon(partial(self._update, algorithm, policies, folder))

    def _update(self, algorithm: Any, policies: Mapping[str, Policy], folder: Path) -> None:
        """Replace the policies; called in the sampler's thread."""
        try:
            _replace(algorithm, policies, folder)
        except MenvError as error:
            self._warn(error)
        else:
            self._logged = ""
            _log.info("serving the policies of %s", folder)

    def _warn(self, error: Exception) -> None:
        if message_of(error) != self._logged:
            self._logged = message_of(error)
            _log.warning("--reload: %s; the server keeps its weights", self._logged)


def _replace(algorithm: Any, policies: Mapping[str, Policy], source: str | Path) -> None:
    """Replace weights and the statistics of filters, all or none."""
    mine = synced_filters({name: algorithm.get_policy(name) for name in policies})
    new = synced_filters(policies)
    if any(mine[name].keys() != new[name].keys() for name in policies):
        raise ConfigError(f"{source}: other observation filters, expected the filters of the served run")
    algorithm.set_weights({name: policy.get_weights() for name, policy in policies.items()})
    for name, filters in new.items():
        for position, one in filters.items():
            mine[name][position].sync(one)
    # Clients with local inference receive filters with the weights.
    algorithm.set_weights({})


def main(arguments: Sequence[str] | None = None, program: str = "menv serve") -> int:
    """Serve until Ctrl-C and return the exit status."""
    args = parsed(_parser(program), arguments)
    snapshot = args.level or args.policy
    if (args.reload or snapshot) and not args.frozen:
        option = "--reload" if args.reload else "--level" if args.level else "--policy"
        raise ConfigError(
            f"{option}: given without --frozen, expected both, because policies that learn change their "
            "weights themselves; add --frozen"
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("menv").setLevel(args.log_level.upper())
    access = Access(
        address=args.address, token=_token(args.token_file), ssl_certificate=args.tls_cert, ssl_key=args.tls_key,
        allowed_origins=args.allow_origin, allowed_hosts=args.allow_host,
    )  # fmt: skip
    limits = Limits(**{name: getattr(args, name) for name in _LIMITS})
    served = ServedPolicies(access, args.port, args.transport, limits)
    training = parsed(train_parser(program), ["--resume", args.run])
    training.env = args.env
    training.config = {"input": served, "num_workers": 0}
    if args.frozen:
        # Nothing here needs torch, which may be missing.
        training.config |= {
            "multiagent": {"policies_to_train": []}, "evaluation_interval": None, "self_play": {"enabled": False},
            "num_gpus": 0,
        }  # fmt: skip
        training.no_save = True
    training.trust, training.typed, training.json = args.trust, args.typed, args.json
    trackers = [FrozenPolicies(args.run, served, snapshot, args.reload)] if args.reload or snapshot else []
    return train(training, args.typed, trackers)


def _parser(program: str) -> Parser:
    parser = Parser(
        prog=program, description="Serve the policies of a run to menv.serving.client.PolicyClient."
    )
    option(parser, "run", "a run folder, or a checkpoint")
    switch(
        parser, "--frozen", "only act, which needs no torch; otherwise the policies learn from the clients"
    )
    switch(parser, "--reload", "with --frozen: use the weights of each new checkpoint, without a restart")
    either = parser.add_mutually_exclusive_group()
    option(either, "--policy", "with --frozen: a snapshot of a league, such as snapshot_3", metavar="NAME")
    take_level(either)
    take_env(parser)
    option(parser, "--address", "the address to listen at; any other needs a token", default="127.0.0.1")
    option(parser, "--port", "the port; 0 chooses a free one", type=port, default=9900)
    option(parser, "--transport", "the protocol", choices=("http", "tcp"), default="http")
    option(parser, "--token-file", "a file with the token that clients must send", metavar="FILE")
    repeated(parser, "--allow-host", "a host name of this server, if it has no token", metavar="NAME")
    repeated(parser, "--allow-origin", "a web page that may connect: https://lab.example", metavar="ORIGIN")
    option(parser, "--tls-cert", "a PEM file with the certificate chain; turns on TLS", metavar="FILE")
    option(parser, "--tls-key", "its private key, unless --tls-cert contains it", metavar="FILE")
    switch(parser, "--json", "print results as JSON, one object per line")
    option(
        parser, "--log-level", "what to log to stderr; info includes reloads, and clients that connect and leave",
        choices=_LEVELS, default="warning",
    )  # fmt: skip
    limits = parser.add_argument_group("limits")
    for one in fields(Limits):
        name, kind = f"--{one.name.replace('_', '-')}", int if one.type == "int" else float
        option(limits, name, _LIMITS[one.name], metavar="N", type=kind, default=one.default)
    return parser


def _token(file: str | None) -> str | None:
    return None if file is None else read_named("--token-file", Path(file)).strip()
