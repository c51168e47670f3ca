"""What the engine says, as a user can read it."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.engines.ort.library import batch_of, short, told
from onnxsparse.errors import ModelError, OptionError
from tests.messages import refusing

SAID = {
    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Gather node. "
    "Name:'a' Status Message: indices element out of data bounds, idx=99": (
        "Gather 'a': indices element out of data bounds, idx=99"
    ),
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: /onnxruntime_src/onnxruntime/core/"
    "framework/session_state_utils.cc:210 onnxruntime::common::Status onnxruntime::session_state_utils::Save("
    "const onnxruntime::Env&, int) const no bytes": "no bytes",
    "/onnxruntime_src/orttraining/orttraining/training_api/module.cc:555 Shapes differ": "Shapes differ",
    "[ONNXRuntimeError] : 1 : FAIL : Node () Op (MatMul) Incompatible": "Node () Op (MatMul) Incompatible",
    "Non-zero status code returned while running Reshape node. Name:'' Status Message: no": "Reshape: no",
    "two\n  lines": "two lines",
    "": "",
}


@pytest.mark.parametrize("text", SAID)
def test_only_what_is_said(text: str) -> None:
    assert short(RuntimeError(text)) == SAID[text]


def test_an_error_of_the_engine_is_told_and_others_stay() -> None:
    with (
        refusing(ModelError),
        told("do it", "; try again"),
    ):
        raise RuntimeError("no")
    for other in (OptionError("ours"), MemoryError(), OSError(28, "full"), KeyboardInterrupt()):
        with pytest.raises(type(other)), told("do it", ""):
            raise other


def test_a_batch_in_words() -> None:
    assert batch_of(None) == "a batch of the data"
    assert batch_of(np.array([7, 3])) == "the batch of samples 7, 3 (counted from 0)"
    assert batch_of(np.arange(5)) == "the batch of samples 0, 1, 2, ... (counted from 0)"
