"""Library code runs no code out of files, prints nothing, and leaves logging to the program."""

import ast
from pathlib import Path

import pytest

from tests.house.sources import ROOT, called_names, python_files, tree_of

UNPICKLING_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNPICKLING_CALLS = {"load", "loads", "Unpickler", "open"}
SPEAKING = {"print", "logging.basicConfig", "logging.config.dictConfig", "logging.config.fileConfig"}


def unpickling(tree: ast.AST) -> list[str]:
    """Return the calls below `tree` that would run code out of the bytes that they read."""
    found = []
    for name, call in called_names(tree):
        module, _, last = name.rpartition(".")
        pickles = module in UNPICKLING_MODULES and last in UNPICKLING_CALLS
        allowed = [keyword.value for keyword in call.keywords if keyword.arg == "allow_pickle"]
        harmless = all(isinstance(value, ast.Constant) and value.value is False for value in allowed)
        if pickles or name in {"torch.load", "torch.jit.load", "pandas.read_pickle"} or not harmless:
            found.append(f"line {call.lineno}: {name}")
    return found


def speaking(tree: ast.AST) -> list[str]:
    """Return the calls below `tree` that print or configure logging."""
    return [f"line {call.lineno}: {name}" for name, call in called_names(tree) if name in SPEAKING]


def library_files() -> list[Path]:
    return python_files(ROOT, ("menv",))


def test_no_file_of_menv_unpickles_but_the_one_between_a_driver_and_its_own_workers() -> None:
    found = {str(path.relative_to(ROOT)): unpickling(tree_of(path)) for path in library_files()}
    assert [path for path, calls in found.items() if calls] == ["menv/workers/messages.py"]


def test_no_file_of_menv_prints_or_configures_logging_but_the_command_line_progress_and_workers() -> None:
    library = [path for path in library_files() if "cli" not in path.relative_to(ROOT).parts]
    found = {str(path.relative_to(ROOT)): speaking(tree_of(path)) for path in library}
    printing = ["menv/tracking/progress.py", "menv/workers/worker_process.py"]
    # Workers and remote environments have processes of their own, whose driver was told a log level for them.
    assert [path for path, calls in found.items() if calls] == printing


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\npickle.load(file)",
        "import pickle as p\np.loads(data)",
        "from cloudpickle import loads as read\nread(data)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=flag)",
        "def f():\n    import pickle\n    return pickle.Unpickler(file).load()",
    ],
)
def test_every_way_to_unpickle_is_found(text: str) -> None:
    assert unpickling(ast.parse(text)) != []
