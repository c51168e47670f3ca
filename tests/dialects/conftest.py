"""Training graphs of onnxruntime-training that are made once for all tests here: the same job gives the same graph.

What makes and proves them is tested in tests/engines/ort. A test that asks for the fixture `fresh_graphs` has them made
for itself.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from onnxsparse.engines.ort import building

made_apart = building._made


@pytest.fixture(scope="session", autouse=True)
def shared_graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    known: dict[str, dict[str, Any]] = {}
    home = tmp_path_factory.mktemp("graphs")

    def made(folder: str, spec: Any, model: Any, samples: Any, check: bool) -> dict[str, Any]:
        parts = [spec.to_json(), building._of_samples(samples), str(check)]
        digest = hashlib.sha256(model.SerializeToString(deterministic=True))
        digest.update("\n".join([*parts, *samples]).encode())
        key = digest.hexdigest()
        if key in known:
            shutil.copytree(home / key, folder, dirs_exist_ok=True)
        else:
            found = made_apart(folder, spec, model, samples, check)
            shutil.copytree(folder, home / key)
            known[key] = json.loads(json.dumps(found))
        return dict(json.loads(json.dumps(known[key])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "_made", made)
        yield


@pytest.fixture
def fresh_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_made", made_apart)
