"""Whether a run ended too early: the loss on the samples held out was still falling clearly."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

FEWEST = 6
"""Looks at the samples held out that say anything of where the loss goes."""
CLEARLY, MATTERS = 0.93, 0.02
"""What the last third of the looks is at most of the third before; and what is left of the loss without training."""


def still_falling(probes: Sequence[float], untrained: float) -> str:
    """A note with what to do, or nothing. `probes` were taken at even distances, under the final masks."""
    third = len(probes) // 3
    if len(probes) < FEWEST or probes[-1] < MATTERS * untrained:
        return ""
    before, last = median(probes[-2 * third : -third]), median(probes[-third:])
    if not 0 < last <= CLEARLY * before or probes[-1] > last:
        return ""
    return (
        f"the loss on the samples held out was still falling when the run ended, by {100 * (1 - last / before):.0f} % "
        "in its last third: more --epochs (or --steps) may help"
    )
