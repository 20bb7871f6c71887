"""What a few labelled samples at the server say of an update.

A client may have some labels only, so that an honest update need not go down the loss of all samples. But it goes
down that of some mixture of labels, Δ ≈ -Σ_c α_c ∇F_c with α ≥ 0, and the opposite of an honest update does not.
FLTrust (Cao et al., NDSS 2021) asks for the sign of the cosine with one mixture, that of the server.
"""

from collections.abc import Callable

import numpy as np

from fedstale.core import Array, BadInput, Floats, imported, require, shown

SWEEPS = 60  # over the labels: the mixture need not be exact
EXACT = 1e-6  # of a squared norm that is explained


Root = Callable[[Array], Array] | int | str


def gradients_of(root: Root | None) -> Callable[[Array], Array]:
    """The function, which may be given by its name."""
    function = imported(root, "root") if isinstance(root, str) else root
    if not callable(function):
        raise BadInput(f"root must be a function from parameters to gradients, got {shown(root)}")
    return function


def gradients_at(root: Root | None, params: Array) -> Floats:
    """(labels, d) the gradients of the root samples at these parameters."""
    found = np.asarray(gradients_of(root)(params), np.float64)
    ok = found.ndim == 2 and found.shape[1] == len(params) and bool(np.isfinite(found).all())
    what = f"finite gradients (labels, {len(params)})"
    require(ok, f"the defence's root must return {what}, got {shown(found)} of shape {found.shape}")
    return found


def agreement(gradients: Floats, updates: Array) -> Floats:
    """(m,) ln of ‖what the best mixture leaves of -Δ‖ / ‖what it leaves of Δ‖: above 0 if it explains Δ better."""
    downs, signs = _unit(-gradients), _unit(updates.astype(np.float64))
    products = np.einsum("cd,md->cm", downs, signs)
    left = _unexplained(np.einsum("cd,kd->ck", downs, downs), np.hstack([products, -products]))
    up, down = np.split(np.log(np.maximum(left, EXACT)), 2)[::-1]
    agreed: Floats = (up - down) / 2
    return agreed


def _unit(rows: Floats) -> Floats:
    """The rows with norm 1, or 0 if they are zero."""
    largest = np.maximum(np.abs(rows).max(axis=1, initial=0), np.finfo(np.float64).tiny)[:, None]
    rows = rows / largest  # whose squares neither overflow nor vanish
    norms = np.sqrt(np.einsum("md,md->m", rows, rows))[:, None]
    return np.asarray(rows / np.where(norms > 0, norms, 1))


def _unexplained(gram: Floats, products: Floats) -> Floats:
    """(m,) min ‖u - Σ_c α_c v_c‖² over α ≥ 0, of unit vectors u and v_c, from their products, by coordinates."""
    mixture = np.zeros_like(products)
    for _ in range(SWEEPS):
        for c in range(len(gram)):
            mixture[c] = np.maximum(0, mixture[c] + products[c] - gram[c] @ mixture)
    explained = np.einsum("cm,cm->m", mixture, 2 * products - gram @ mixture)
    return np.asarray(1 - explained)
