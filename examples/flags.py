"""Runs an example from the command line: each keyword of its `main` is a flag, such as --seconds and --seed."""

import argparse
import inspect
import json
from collections.abc import Callable
from typing import Any, get_args


def run_with_flags(main: Callable[..., dict[str, Any]]) -> None:
    """Call `main` with the flags of the command line, and print what it returns as one line of JSON."""
    parser = argparse.ArgumentParser(
        description=inspect.getdoc(inspect.getmodule(main)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, parameter in inspect.signature(main).parameters.items():
        default = parameter.default
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            default=default,
            choices=get_args(parameter.annotation) or None,
            help="(%(default)s)",
        )
    print(json.dumps(main(**vars(parser.parse_args()))))
