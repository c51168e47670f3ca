"""Several processes on parts of each batch come to what one comes to on whole ones; one writes, and one speaks."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.engines.torch import spread_run
from tests.forks import forked

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system that kills"),
    pytest.mark.usefixtures("usual_signals"),  # a launcher ends its processes by them
]

SCRIPT, ROOT = Path(spread_run.__file__), Path(spread_run.__file__).resolve().parents[3]
DRIFT = ("batch norm", "attempts")  # statistics of a part are not those of the whole; a wild rate makes much of little
EXACT = [case for case in spread_run.CASES if "sgd" in str(spread_run.CASES[case]) and case not in DRIFT]
TOLERANCE = 1e-5


def free_port() -> int:
    """One that no system hands out by itself, so that nobody gets it before those it is for."""
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def launch(
    *words: str, count: int = 2, folder: Path | None = None, restarts: int = 0
) -> subprocess.CompletedProcess[str]:
    """Words for Python, in `count` processes that torch's launcher starts."""
    places = [f"--nproc-per-node={count}", f"--master-port={free_port()}", f"--max-restarts={restarts}"]
    spread = ["-m", "torch.distributed.run", *places]
    command = [sys.executable, *(spread if count > 1 else []), *words]
    return subprocess.run(command, env=surroundings(), capture_output=True, text=True, timeout=1800, cwd=folder)


def together(*words: str, count: int = 2, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same without a launcher, and many times as fast."""
    return forked(*words, environment=surroundings(), count=count, folder=folder)


def surroundings() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPT.parent)])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process and two came to, in all cases."""
    made = tmp_path_factory.mktemp("spread")
    for count in (1, 2):
        done = together(str(SCRIPT), str(made), *spread_run.CASES, count=count)
        assert done.returncode == 0, done.stderr
    return made


def came_to(folder: Path, case: str, count: int, rank: int) -> dict[str, np.ndarray]:
    with np.load(folder / f"{case.replace(':', '-')}-{count}-{rank}.npz") as found:
        return dict(found)


@pytest.mark.parametrize("case", EXACT)
def test_two_processes_come_to_what_one_comes_to(folder: Path, case: str) -> None:
    one, two = came_to(folder, case, 1, 0), came_to(folder, case, 2, 0)
    assert set(one) == set(two)
    for name, array in one.items():
        assert np.array_equal(array == 0, two[name] == 0), name
        assert np.abs(array - two[name]).max() <= TOLERANCE * np.abs(array).max(), name


@pytest.mark.parametrize("case", spread_run.CASES)
def test_all_processes_have_the_same_numbers(folder: Path, case: str) -> None:
    one, other = came_to(folder, case, 2, 0), came_to(folder, case, 2, 1)
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("case", spread_run.CASES)
def test_nothing_leaks_through_a_mask(folder: Path, case: str) -> None:
    assert [came_to(folder, case, 2, rank)["leaks"] for rank in (0, 1)] == [0, 0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the run comes to that nobody kills."""
    made = tmp_path_factory.mktemp("whole")
    assert together(str(SCRIPT), "killed", str(made), "regrown", "0", "0").returncode == 0
    return made


@pytest.mark.parametrize("rank", ["0", "1", "all"])
def test_killed_and_resumed(whole: Path, tmp_path: Path, rank: str) -> None:
    broken = tmp_path
    died = together(str(SCRIPT), "killed", str(broken), "regrown", "15", rank)
    assert died.returncode != 0
    assert not list(broken.glob("*.npz"))
    assert [path for path in (broken / "run").iterdir() if path.name.startswith("step-")]
    done = together(str(SCRIPT), "killed", str(broken), "regrown", "0", "0")
    assert done.returncode == 0, done.stderr
    for number in (0, 1):
        with np.load(whole / "killed-0.npz") as one, np.load(broken / f"killed-{number}.npz") as other:
            assert all(one[name].tobytes() == other[name].tobytes() for name in one.files)


def test_a_launcher_that_starts_again_needs_nobody(whole: Path, tmp_path: Path) -> None:
    done = launch(str(SCRIPT), "killed", str(tmp_path), "regrown", "15", "1", restarts=2)
    assert done.returncode == 0, done.stderr
    with np.load(whole / "killed-0.npz") as one, np.load(tmp_path / "killed-0.npz") as other:
        assert all(one[name].tobytes() == other[name].tobytes() for name in one.files)


def test_processes_meet_their_like_and_none_of_before() -> None:
    """The second time as a launcher starts again that keeps its store: one comes late, and the others wait for it."""
    from onnxsparse.engines.torch.distributed import gathered

    store, names = torch.distributed.HashStore(), []
    for _ in range(3):
        with ThreadPoolExecutor(3) as all_of_them:
            early = [all_of_them.submit(gathered, store, rank, 3) for rank in (0, 2)]
            time.sleep(0.3)
            assert not any(one.done() for one in early)
            late = all_of_them.submit(gathered, store, 1, 3)
            found = {one.result(timeout=1800) for one in (*early, late)}
        assert len(found) == 1
        names += found
    assert len(set(names)) == 3


def finetune(folder: Path, data: str, *more: str, start: Any = together) -> subprocess.CompletedProcess[str]:
    model = str(ROOT / "models" / "digits_cnn.onnx")
    words = [
        "finetune",
        model,
        "-o",
        "sparse.onnx",
        "--data",
        data,
        "--pattern",
        "2:4",
        "--steps",
        "12",
        "--init",
        "plain",
    ]
    done: subprocess.CompletedProcess[str] = start(
        "-m", "onnxsparse", *words, "--engine", "torch", *more, folder=folder
    )
    return done


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("onnxsparse:")]


def test_one_writes_and_speaks(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=spread_run.digits()["x"])
    done = finetune(tmp_path, "x.npz", "--json", "report.json", "--checkpoint", "run", start=launch)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sparse.onnx") == 1
    written = {"sparse.onnx", "sparse.recipe.yaml", "sparse.history.json", "sparse.history.csv", "report.json"}
    assert {path.name for path in tmp_path.iterdir()} == {*written, "x.npz", "run"}
    again = finetune(tmp_path, "x.npz")
    assert again.returncode != 0
    assert len(said(again)) == 1
    assert "exists" in said(again)[0]


def test_what_goes_wrong_in_one_process_ends_all_with_one_message(tmp_path: Path) -> None:
    done = finetune(tmp_path, "spread_run:uneven", "--batch-size", "16", start=launch)
    assert done.returncode != 0
    assert len(said(done)) == 1, done.stderr
    assert "this disk is broken" in said(done)[0]
    assert not (tmp_path / "sparse.onnx").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--engine", "ort"], "take --engine torch"),
        (["--batch-size", "9"], "make it a multiple"),
        (["--regrow", "x"], "regrow"),
        (["--device", "toaster"], "no device 'toaster'"),
        (["--recipe", "none.yaml"], "cannot read the recipe"),
    ],
)
def test_what_cannot_be_shared_is_said_once(tmp_path: Path, more: list[str], says: str) -> None:
    np.savez(tmp_path / "x.npz", x=spread_run.digits()["x"])
    done = finetune(tmp_path, "x.npz", *more)
    assert done.returncode != 0
    assert len(said(done)) == 1, done.stderr
    assert says in said(done)[0]


ONE_SIDED = """
import os, sys
from onnxsparse.cli import main
words = sys.argv[1:] + (["--recipe", "none.yaml"] if os.environ["RANK"] == "1" else [])
sys.exit(main(words))
"""


def test_one_that_fails_on_its_way_there_is_not_waited_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=spread_run.digits()["x"])
    (tmp_path / "one_sided.py").write_text(ONE_SIDED)
    model = str(ROOT / "models" / "digits_cnn.onnx")
    words = [
        "finetune",
        model,
        "-o",
        "sparse.onnx",
        "--data",
        "x.npz",
        "--pattern",
        "2:4",
        "--engine",
        "torch",
        "--init",
        "plain",
    ]
    done = launch("one_sided.py", *words, folder=tmp_path)
    assert done.returncode != 0
    assert len(said(done)) == 1, done.stderr
    assert "none.yaml" in said(done)[0]


DYING = """
import sys
import spread_run
from onnxsparse.cli import main
spread_run.die_at(5, sys.argv.pop(1))
sys.exit(main())
"""


def dying(folder: Path, rank: str) -> list[str]:
    """The words of a run in which one process is killed."""
    np.savez(folder / "x.npz", x=spread_run.digits()["x"])
    (folder / "dying.py").write_text(DYING)
    model = str(ROOT / "models" / "digits_cnn.onnx")
    words = [
        "finetune",
        model,
        "-o",
        "sparse.onnx",
        "--data",
        "x.npz",
        "--pattern",
        "2:4",
        "--engine",
        "torch",
        "--init",
        "plain",
    ]
    return ["dying.py", rank, *words, "--checkpoint", "run"]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_who_is_killed_is_missed_in_one_line(tmp_path: Path, rank: str) -> None:
    done = launch(*dying(tmp_path, rank), folder=tmp_path)
    assert done.returncode != 0
    assert len(said(done)) == 1, done.stderr
    assert "--resume" in said(done)[0]
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("rank", ["0", "1"])
def test_who_is_killed_is_missed_in_one_line_without_a_launcher(tmp_path: Path, rank: str) -> None:
    command, port = [sys.executable, *dying(tmp_path, rank)], free_port()
    both = []
    for own in ("0", "1"):
        place = {
            "RANK": own,
            "WORLD_SIZE": "2",
            "LOCAL_RANK": own,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        both.append(subprocess.Popen(command, env={**surroundings(), **place}, cwd=tmp_path, **streams))
    try:
        said_by = [one.communicate(timeout=1800)[1] for one in both]
    finally:
        for one in both:
            one.kill()
    left = 1 - int(rank)
    assert both[int(rank)].returncode == -signal.SIGKILL, said_by
    assert both[left].returncode == 2, said_by
    lines = said_by[left].splitlines()
    assert len(lines) == 1, said_by[left]
    assert lines[0].startswith("onnxsparse: another process of this run is gone")


DIFFERENT = """
import os, sys
import numpy as np
import torch
import onnxsparse as osp
case, model, other = sys.argv[1], sys.argv[2], os.environ["RANK"] == "1"
x = np.random.default_rng(0).standard_normal((320, 1, 8, 8)).astype(np.float32)
options = {"steps": 6, "pattern": "2:4", "batch_size": 16, "engine": "torch", "init": "plain", "data": {"x": x}}
if case == "optimizer":
    options["optimizer"] = lambda them: (torch.optim.SGD if other else torch.optim.AdamW)(them, lr=1e-3)
if case == "recipe" and other:
    options["steps"] = 9
if case == "plan" and other:
    options["pattern"] = "1:4"
if case == "samples" and other:
    options["data"] = {"x": x[:300]}
try:
    osp.finetune(model, **options)
except osp.OnnxSparseError as error:
    print("said:", error)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("case", ["recipe", "plan", "optimizer", "samples"])
def test_processes_that_were_given_different_things_do_not_begin(tmp_path: Path, case: str) -> None:
    (tmp_path / "different.py").write_text(DIFFERENT)
    done = together("different.py", case, str(ROOT / "models" / "digits_cnn.onnx"), folder=tmp_path)
    assert done.returncode != 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("said:")]
    assert lines
    assert all("do not have the same" in line and case in line for line in lines), done.stdout


@pytest.mark.parametrize("words", [["prune", "--target", "ampere", "-q"], ["train_sparse"]])
def test_what_one_process_does_is_refused_in_one_line(tmp_path: Path, words: list[str]) -> None:
    """Two of them would write the same files."""
    model = str(ROOT / "models" / "digits_cnn.onnx")
    program = ["-m", "onnxsparse", words[0], model, "-o", "sparse.onnx", *words[1:]]
    if words == ["train_sparse"]:
        np.savez(tmp_path / "x.npz", x=np.zeros((8, 1, 8, 8), np.float32))
        sections = {
            "model": model,
            "data": {"train": "x.npz", "batch_size": 4},
            "trainer": {"max_epoch": 1},
            "sparsity": {"scheduler": {"type": "AmpereScheduler"}},
        }
        (tmp_path / "config.json").write_text(json.dumps(sections), encoding="utf-8")
        program = [str(ROOT / "tools" / "train_sparse.py"), "--config", "config.json"]
    before = set(tmp_path.rglob("*"))
    done = together(*program, folder=tmp_path)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith(("onnxsparse:", "train_sparse:"))]
    assert len(lines) == 1, done.stderr
    assert "runs in one process, and WORLD_SIZE says that 2 were started; start it without torchrun" in lines[0]
    assert set(tmp_path.rglob("*")) == before


LEVELS = """
import json, os, sys
import torch
from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from tests.dialects.nets import SIZE, torch_module

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
config = preset("amba")
config["scheduler"]["kwargs"].update(
    total_iters=4, sparsity_table=[30, 60], default_input_shape=[1, 3, SIZE, SIZE], output_dir="out", save_dir="saved"
)
scheduler = build_sparse_scheduler(config)
net = torch.nn.parallel.DistributedDataParallel(scheduler.prepare_sparse_model(torch_module()))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
written, save = [], torch.save
torch.save = lambda found, path: (written.append(str(path)), save(found, path))
sys.addaudithook(lambda event, given: written.append(str(given[1])) if event in ("os.rename", "os.link") else None)
for iteration in range(4):
    scheduler.prune_model(net, iteration)
    optimizer.zero_grad()
    net(torch.ones(2, 3, SIZE, SIZE)).square().mean().backward()
    optimizer.step()
scheduler.export_sparse_onnx(net, torch.ones(1, 3, SIZE, SIZE), "sparse")
state = {name: float((one == 0).float().mean()) for name, one in net.state_dict().items()}
found = {"zeros": state, "written": [one for one in written if os.getcwd() in os.path.abspath(one)]}
torch.distributed.barrier()
with open(f"said-{rank}.json", "w") as file:
    json.dump({**found, "notes": scheduler.notes}, file)
torch.distributed.destroy_process_group()
"""


def test_levels_in_a_loop_of_several_processes_are_written_by_the_first(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LEVELS, encoding="utf-8")
    done = together("loop.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in range(2))
    assert first["zeros"] == second["zeros"]
    assert max(first["zeros"].values()) > 0.3
    assert all(name.startswith("module.") and "parametrizations" not in name for name in first["zeros"])
    assert any("saved" in one for one in first["written"])
    assert not second["written"]
    assert any("writes nothing: the first one does" in note for note in second["notes"])
    assert not any("writes nothing" in note for note in first["notes"])
    assert {one.name for one in (tmp_path / "saved").iterdir()} == {f"global_sparse_rate_{n}.pth" for n in (30, 60)}
    assert (tmp_path / "sparse.onnx").exists()
