"""Choosing a metric by what the user said: a plug-in's text or a function of theirs, and the labels that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from onnxsparse.data.field import LABELS
from onnxsparse.data.samples import USUAL
from onnxsparse.errors import OptionError, nearest
from onnxsparse.metrics import Metric, available, function_metric
from onnxsparse.metrics import parse as parse_metric

LOSS = "loss"
"""The metric that is what training makes small."""
TOP = "top-5"


class Labelled(Protocol):
    """Data that may have labels."""

    @property
    def has_labels(self) -> bool: ...

    @property
    def numbers(self) -> bool: ...

    @property
    def called(self) -> str: ...

    @property
    def names(self) -> Sequence[str]: ...


def demand_labels(metric: Metric, data: Labelled) -> None:
    if LABELS not in metric.needs:
        return
    if not data.has_labels:
        raise OptionError(
            f"--metric {metric.text} needs labels, and {data.called} has none called {', '.join(USUAL)} with a row for "
            f"each sample; it has {', '.join(data.names)}: name one of them with --labels"
        )
    if metric.of_classes and data.numbers:
        raise OptionError(
            f"--metric {metric.text} needs labels that are numbers of classes, and those of {data.called} are floats; "
            "save them as int64, or measure numbers with --metric r2, mae or mse"
        )


def chosen(wanted: Any) -> Metric:
    """A plug-in's text, or a function of the user's."""
    if callable(wanted):
        return function_metric(wanted)
    known = {entry.syntax.partition(":")[0] for entry in available()} | {TOP}
    word = str(wanted).partition(":")[0]
    if word in known or ":" in str(wanted) or word.startswith("top-"):
        return parse_metric(wanted) if word in known or ":" not in wanted else function_metric(wanted)
    every = [LOSS, *sorted(known - {TOP})]
    close = nearest(word, every)
    raise OptionError(f"unknown metric {word[:60]!r}{close} (known: {', '.join(every)}, or module:function)")
