"""`menv dashboard`: shows runs in a browser while they train. Its page needs the extra `serve`."""

from __future__ import annotations

from collections.abc import Sequence

from menv.cli.arguments import Parser, port, print_text
from menv.tracking.dashboard import Dashboard

_PORT = 6007


def main(arguments: Sequence[str], program: str) -> int:
    """Serve the page of the arguments until Ctrl-C and return the exit status."""
    parser = Parser(prog=program, description="Show runs in a browser on this machine while they train.")
    parser.add_argument(
        "folder", nargs="?", default="runs", help="a folder of run folders, or one run (%(default)s)"
    )
    parser.add_argument("--port", type=port, default=_PORT, help="the port, 0 for any free one (%(default)s)")
    args = parser.parse_args(arguments)
    dashboard = Dashboard(args.folder, args.port)
    print_text(f"dashboard: {dashboard.url} (Ctrl-C ends it)", program)
    dashboard.run()
    return 0
