"""What holds for the whole test run."""

import gc


def pytest_collection_finish() -> None:
    # Thousands of tests and the libraries they import stay until the end: not to be looked through at each collection.
    gc.collect()
    gc.freeze()
