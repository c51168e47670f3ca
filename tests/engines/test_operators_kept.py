"""No operator that trains, is cut or converts is lost: operators.txt is what was there, and what is there has to be it.

The file has one section for each of the three, an operator a line. An operator that is new is added there by hand; one
that is gone is a capability that is gone. That a gradient is right is held in tests/engines/ort/rewrites.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxsparse.engines.ort import gradients, rewrites
from onnxsparse.engines.torch import library as torch_library

TRAINS, CUT, CONVERTS = "onnxruntime-training: trains", "onnxruntime-training: cut", "torch: converts"
FILE = Path(__file__).with_name("operators.txt")


def kept() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    section = ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line:
            found.setdefault(section, set()).add(line)
    return found


def right() -> set[str]:
    return {name for name, fact in gradients.FACTS.items() if fact.verdict == gradients.GOOD}


def test_every_operator_that_trained_still_does() -> None:
    assert right() | set(rewrites.known()) == kept()[TRAINS]


def test_every_operator_that_is_cut_is_known_to_be() -> None:
    assert set(gradients.FACTS) - right() - set(rewrites.known()) == kept()[CUT]


@pytest.mark.skipif(not torch_library.available(), reason="needs torch")
def test_every_operator_that_converted_still_does() -> None:
    from onnxsparse.engines.torch import operators

    own = {f"{domain}:{name}" if domain else name for domain, name in operators.table()}
    assert own | set(operators.CONTROL) == kept()[CONVERTS]
