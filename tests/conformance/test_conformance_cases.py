"""The test material tested: every case is a valid model, runs, and its expected axes are what the arithmetic says."""

from __future__ import annotations

from typing import List

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs.builders import CASES, Built

onnxruntime.set_default_logger_severity(4)


def _run(model: onnx.ModelProto, built: Built) -> List[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(built.feeds))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", list(CASES))
def test_case_is_a_valid_model(name: str) -> None:
    built = CASES[name].build()
    if built.checks and not built.files:
        onnx.checker.check_model(built.model, full_check=False)


@pytest.mark.parametrize("name", list(CASES))
def test_case_runs(name: str) -> None:
    built = CASES[name].build()
    if not built.runs or built.files:
        pytest.skip("the runtime has no kernel for it")
    assert all(np.asarray(result).size for result in _run(built.model, built))
