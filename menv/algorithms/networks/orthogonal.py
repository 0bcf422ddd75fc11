"""Orthogonal first weights, for every layer of every network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def orthogonal(rng: np.random.Generator, inputs: int, outputs: int) -> npt.NDArray[np.float64]:
    """Return an [inputs, outputs] matrix whose rows or columns, whichever are fewer, are orthonormal.

    Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks".
    """
    q, r = np.linalg.qr(rng.standard_normal((max(inputs, outputs), min(inputs, outputs))))
    # QR leaves the signs to LAPACK; a positive diagonal makes the answer unique and uniform.
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
    matrix: npt.NDArray[np.float64] = np.ascontiguousarray(q if inputs >= outputs else q.T)
    return matrix
