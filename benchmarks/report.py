"""What a run of the benchmarks found, as a table for people and as JSON for machines."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.rows import Finding, Row

PACKAGES = ("numpy", "gymnasium", "torch", "onnxruntime", "pettingzoo")
COLUMNS = f"{'workload':<54}{'bare/s':>11}{'ours/s':>11}{'value':>9}{'peer':>7}{'reach':>7}{'aim':>6}  unit, reached"


def line(row: Row, finding: Finding) -> str:
    """Return one line of the table."""
    rates = [_rate(finding.floors), _rate(finding.rates) if finding.floors else ""]
    value = "missed" if math.isinf(finding.value) else f"{finding.value:.2f}"
    peer, reach = ("-" if bar is None else f"{bar:g}" for bar in (row.peer, row.reach))
    note = f" ({finding.note})" if finding.note else ""
    return (
        f"{row.text:<54}{rates[0]:>11}{rates[1]:>11}{value:>9}{peer:>7}{reach:>7}{row.aim:>6g}"
        f"  {row.unit}, {_reached(row, finding.value)}{note}"
    )


def as_json(row: Row, finding: Finding) -> dict[str, Any]:
    """Return one row as JSON values; what was not reached is None."""
    return {
        "name": row.name,
        "workload": row.text,
        "unit": row.unit,
        "value": None if math.isinf(finding.value) else finding.value,
        "floor": statistics.median(finding.floors) if finding.floors else None,
        "ours": _finite(finding.rates),
        "floors": list(finding.floors),
        "rates": [None if math.isinf(rate) else rate for rate in finding.rates],
        "peer": row.peer,
        "reach": row.reach,
        "aim": row.aim,
        "reached": None if row.reach is None else row.met(finding.value, row.reach),
        "aim_met": row.met(finding.value, row.aim),
        "note": finding.note,
    }


def machine() -> dict[str, Any]:
    """Return what the figures depend on: versions, processors, threads."""
    import torch

    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
    }


def _reached(row: Row, value: float) -> str:
    if row.met(value, row.aim):
        return "aim"
    return "-" if row.reach is None else "yes" if row.met(value, row.reach) else "NO"


def _rate(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):,.0f}" if rates else ""


def _finite(rates: Sequence[float]) -> float | None:
    median = statistics.median(rates)
    return None if math.isinf(median) else median
