"""kill -9 in the torch engine, and the resumed run delivers the very file that the run nobody stopped delivers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

from tests.engines.ort.test_resume import JOBS, LEVEL, SCRIPT, Ground

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system that kills")

OWN = {"optimizer": "own", "rate_schedule": "own"}
TORCH_JOBS = {
    **{name: job for name, job in JOBS.items() if name != "built in"},
    "own": {"pruning": {**LEVEL, "sparser": "straight-through"}, "training": OWN},
    "half": {"pruning": {**LEVEL, "regrow": "gradient"}, "training": {"precision": "float16", "accumulate": 2}},
}
MOMENTS = [
    ("2:4", "step", 17),
    ("2:4", "writing", 500),
    ("nesterov", "update", 9),
    ("regrown", "step", 10),
    ("learned", "segment", 1),
    ("noise", "update", 16),
    ("by epochs", "update", 14),
    ("attempts", "step", 32),
    ("own", "update", 8),
    ("own", "step", 17),
    ("own", "naming", 12),
    ("half", "step", 11),
]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ground]]:
    made: dict[str, Ground] = {}

    def of(name: str) -> Ground:
        if name not in made:
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            made[name] = Ground(tmp_path_factory.mktemp("runs"), {**TORCH_JOBS[name], "engine": "torch"})
        return made[name]

    sys.path.insert(0, str(SCRIPT.parent))
    yield of
    sys.path.remove(str(SCRIPT.parent))


@pytest.mark.parametrize(("job", "event", "count"), MOMENTS)
def test_killed_and_resumed(ground: Callable[[str], Ground], job: str, event: str, count: int) -> None:
    here = ground(job)
    name = f"{event}-{count}"
    here.kill(name, event, count)
    found, notes = here.resumed(name)
    assert found == here.goal
    assert any("resumed at step" in note for note in notes)


def test_killed_again_and_again(ground: Callable[[str], Ground]) -> None:
    here = ground("own")
    here.kill("often", "probe", 2)
    for count in (1, 2, 3):
        here.kill("often", "update", count, resume=True)
    assert here.resumed("often")[0] == here.goal


@pytest.mark.slow
@pytest.mark.parametrize("job", TORCH_JOBS)
@pytest.mark.parametrize("event", ["step", "update", "probe", "writing", "naming", "cleaning"])
def test_killed_at_many_events(ground: Callable[[str], Ground], job: str, event: str) -> None:
    here = ground(job)
    for count in (1, 2, 6, 14, 15, 16, 22):
        name = f"many-{event}-{count}"
        here.kill(name, event, count)
        assert here.resumed(name)[0] == here.goal
