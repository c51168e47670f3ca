"""The pruning rule of a command, checked once: pattern or target, sparsity, score, and which weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxsparse import allocations, patterns, scores, targets
from onnxsparse.allocations import Allocation
from onnxsparse.errors import OptionError, nearest
from onnxsparse.options import Names, SparsityOptions
from onnxsparse.patterns import Pattern
from onnxsparse.planning.names import NameFilter
from onnxsparse.scores import Score, demand_samples
from onnxsparse.targets import Target

WORDS = {
    "embedding": "lookup tables",
    "tied-embedding": "lookup tables that are an output layer too",
    "stem": "convolutions with fewer than 4 input channels",
    "depthwise": "depthwise convolutions",
    "small": "weights of fewer than 256 elements",
    "basis": "recognisably fixed filterbanks and interpolation matrices",
    "output": "output layers under filter",
}


@dataclass(frozen=True)
class Rule:
    """One checked request. `pattern` is None only where masks or a plan say everything."""

    pattern: Pattern | None
    target: Target | None = None
    sparsity: float | None = None
    allocation: Allocation = field(default_factory=lambda: allocations.parse("uniform"))
    score: Score = field(default_factory=lambda: scores.parse("magnitude"))
    names: NameFilter = field(default_factory=NameFilter)
    allow: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()  # weights known not to be fixed mathematics
    heads: frozenset[str] = frozenset()  # output layers, where the pattern could silence an output
    ties: bool = False  # weights that are copies of one another are one
    by: str = ""  # the score that samples decide by, where they do; the other one is for what they say nothing of

    @classmethod
    def make(cls, *options: Any, **named: Any) -> Rule:
        """The rule of options that are given one by one."""
        return cls.of(SparsityOptions(*options, **named))

    @classmethod
    def of(cls, asked: SparsityOptions) -> Rule:
        device = targets.parse(asked.target) if asked.target else None
        shape = patterns.parse(asked.pattern) if asked.pattern else None
        if device and shape and patterns.parse(device.pattern).text != shape.text:
            raise OptionError(f"target {device.text} demands {device.pattern}, not {shape.text}; give one of the two")
        return cls(
            patterns.parse(device.pattern) if device else shape,
            device,
            read_sparsity(of_level(asked.level, asked.sparsity, device)),
            allocations.parse(asked.allocation or (device.allocation if device else "uniform")),
            scores.parse(_seeded(asked.score or "magnitude", asked.seed)),
            NameFilter(tuple(listed(asked.include)), tuple(listed(asked.exclude))),
            read_words(listed(asked.allow)) | frozenset(device.allows if device else ()),
            ties=bool(asked.tie_equal),
        )

    def demand(self, level: bool = True) -> Rule:
        """Refuse a request that does not say enough, or says too much."""
        if self.pattern is None:
            raise OptionError(
                "say which zeros you want: --pattern (such as 2:4, or unstructured with --sparsity) or "
                "--target (such as ampere)"
            )
        if self.sparsity is not None and not self.pattern.takes_sparsity:
            raise OptionError(f"pattern {self.pattern.text} fixes its own sparsity; leave --sparsity out")
        if level and self.sparsity is None and self.pattern.takes_sparsity:
            if self.knows_levels:
                raise OptionError("a level is needed: --level 70 or --sparsity 0.7")
            raise OptionError(f"pattern {self.pattern.text} needs --sparsity, such as --sparsity 0.8")
        if not self.allocation.supports(self.pattern):
            raise OptionError(
                f"allocation {self.allocation.name} does not work with pattern {self.pattern.text}; use uniform"
            )
        return self.demand_score(self.pattern)

    def demand_score(self, pattern: Pattern) -> Rule:
        """Refuse a score that says nothing about the units of a pattern, or nothing without samples."""
        demand_samples(self.score)
        if not self.score.supports(pattern.name):
            known = " and ".join(self.score.patterns_supported)
            raise OptionError(f"score {self.score.name} is for pattern {known}, not for {pattern.text}")
        return self

    @property
    def knows_levels(self) -> bool:
        """Whether the level is that of the whole network, by the rules of a device."""
        return self.target is not None and self.target.tolerance is not None

    @property
    def text(self) -> str:
        """The request in a few words, for reports."""
        parts = [self.target.text if self.target else "", self.pattern.text if self.pattern else ""]
        level = f"at {self.sparsity:.4g}" if self.sparsity is not None else ""
        if self.knows_levels and self.sparsity is not None:
            level = f"at level {100 * self.sparsity:.4g}"
        leveled = self.pattern is not None and self.pattern.takes_sparsity
        by = f"({self.allocation.name}, {self.by or self.score.name})" if leveled else ""
        return " ".join(part for part in (*parts, level, by) if part)


def of_level(level: float | str | None, sparsity: float | str | None, device: Target | None) -> float | str | None:
    """A level of a device is a network sparsity in per cent."""
    if level is None:
        return sparsity
    if device is None or device.tolerance is None:
        raise OptionError("--level belongs to a target that knows levels, such as --target amba; or use --sparsity")
    if sparsity is not None:
        raise OptionError("--level and --sparsity both say how much; leave one out")
    share = read_sparsity(f"{str(level).strip().rstrip('%')}%", "--level")
    assert share is not None
    return share


def _seeded(score: str, seed: int | None) -> str:
    """The seed belongs to the scores that draw numbers; the others do not look at it."""
    if seed is None:
        return score
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise OptionError(f"a seed is a whole number, not {seed!r:.40}")
    if isinstance(score, str) and score.startswith("random:"):
        raise OptionError(f"--seed and --score {score[:40]} both give a seed; leave one out")
    return f"random:seed={seed}" if score == "random" else score


LEAST = 0.01
"""Levels are per cents: one below 1 was meant as a share."""


def read_sparsity(value: float | str | None, option: str = "--sparsity") -> float | None:
    """A share from 0 to below 1; `80%` is 0.8."""
    if value is None:
        return None
    text = str(value).strip()
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        example = "a level such as 70" if option == "--level" else "a share such as 0.8 or 80%"
        raise OptionError(f"{option} takes {example}, not {text[:40]!r}") from None
    if option == "--level" and 0 < share < LEAST:
        raise OptionError(f"--level is in per cent, not a share; did you mean {10000 * share:g}?")
    if option == "--level" and not 0 <= share < 1:
        raise OptionError(f"--level lies from 0 to below 100, not at {text[:40].rstrip('%')}")
    if not 0 <= share < 1 or math.isnan(share):
        hint = f"; did you mean {share:g}%?" if 1 < share < 100 else ""
        raise OptionError(f"--sparsity lies from 0 to below 1, not at {text[:40]}{hint}")
    return share


def read_words(given: Sequence[str]) -> frozenset[str]:
    words = [word.strip() for entry in given for word in entry.split(",") if word.strip()]
    for word in words:
        if word not in WORDS:
            raise OptionError(
                f"--allow does not know {word[:40]!r}{nearest(word, WORDS) or ' (known: ' + ', '.join(WORDS) + ')'}"
            )
    return frozenset(words)


def listed(names: Names) -> Sequence[str]:
    """A single name may stand for a list of one, and None for none."""
    if names is not None and not isinstance(names, Iterable):
        raise OptionError(f"names of weights are a text or a list of texts, not {names!r:.40}")
    return [names] if isinstance(names, str) else list(names or ())
