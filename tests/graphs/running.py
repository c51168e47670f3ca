"""Cases run by the installed runtime, and which of them an older runtime is excused from."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest

from graphs.builders import CASES, Built
from graphs.case import feed, graph, model, node

onnxruntime.set_default_logger_severity(4)


def run(asked: onnx.ModelProto, built: Built) -> list[np.ndarray]:
    """The outputs of a model on the inputs of its case; the graph runs as it stands."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    # A constant operand is packed beforehand and then summed in another order than a computed one.
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(asked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(built.feeds))  # type: ignore[no-any-return]


def demand_runtime(name: str) -> None:
    """Skip the test of a case that the runtime does not run as it was built: the newer runtime is the judge of it."""
    if refusal(name):
        pytest.skip(f"this runtime, older than opset {newest_opset()}, does not run the case: {refusal(name)}")


@cache
def refusal(name: str) -> str:
    """What an older runtime says of the untouched case; of a runtime that knows every opset nothing is excused."""
    return "" if knows_every_opset() else _refusal(CASES[name].build())


@cache
def knows_every_opset() -> bool:
    """Asked with one Identity of the newest opset among the cases."""
    feeds = {"x": feed(1, 4)}
    plain = model(graph([node("Identity", "x", "y")], feeds, [("y", 2)]), opset=newest_opset(), ir=10)
    return not _refusal(Built(plain, feeds, ()))


@cache
def newest_opset() -> int:
    built = [case.build() for case in CASES.values()]
    return max(one.version for each in built if each.runs for one in each.model.opset_import if not one.domain)


def _refusal(built: Built) -> str:
    try:
        run(built.model, built)
    except Exception as error:  # the runtime raises types of its own for each kind of refusal
        return " ".join(str(error).split())[:200]
    return ""
