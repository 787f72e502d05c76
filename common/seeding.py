"""Seeds for every random choice of a run, derived from the run's one seed.

Each choice (client sampling of round 7, batch order of client-03 in round 7, ...) has a
generator of its own, named by what it is for. Nothing depends on what was drawn before,
so a resumed run, a simulation and a deployment draw the same numbers.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a seed in [0, 2**63) for one purpose, e.g. ``("sample", round)``."""
    text = "\x1f".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
