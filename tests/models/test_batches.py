from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.data.batch import Batch, Detections
from models.data.batches import Images
from models.data.dataset_section import read_dataset
from models.data.image_files import ImageFiles
from models.data.scenes import make_scenes
from models.evaluation.coco_map import CocoMap
from models.evaluation.evaluators import read_evaluator
from onnxsparse.errors import OptionError

FLIP, TENSOR = {"type": "flip", "kwargs": {"flip_p": 0.5}}, {"type": "to_tensor"}
RESIZE = {"type": "torch_resize", "kwargs": {"size": [16, 16]}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def detection(**more: Any) -> dict[str, Any]:
    def part(name: str, *transformer: Any, **kwargs: Any) -> dict[str, Any]:
        reader = {"type": "fs_opencv", "kwargs": {"image_dir": f"coco/{name}", "color_mode": "RGB"}}
        options = {"meta_file": f"coco/{name}.json", "image_reader": reader, "transformer": [*transformer, TENSOR]}
        return {"dataset": {"type": "coco", "kwargs": {**options, **kwargs}}}

    sampler = {"sampler": {"type": "dist", "kwargs": {}}, "batch_size": 2, "aspect_grouping": [1]}
    evaluator = {"type": "COCO", "kwargs": {"gt_file": "coco/test.json", "iou_types": ["bbox"]}}
    return {
        "train": part("train", FLIP, source="train"),
        "test": part("test", evaluator=evaluator),
        "batch_sampler": {"type": "aspect_ratio_group", "kwargs": sampler},
        "dataloader": {"type": "base", "kwargs": {"num_workers": 0, "alignment": 32}},
        **more,
    }


def photographs(sizes: list[tuple[int, int]], part: str = "train") -> None:
    """Images of these heights and widths, each with a box and a level of its own."""
    images, annotations = [], []
    Path("coco", part).mkdir(parents=True)
    for place, (height, width) in enumerate(sizes, 1):
        Image.new("RGB", (width, height), (place, 0, 0)).save(f"coco/{part}/{place}.png")
        images.append({"id": 10 * place, "file_name": f"{place}.png", "height": height, "width": width})
        annotations.append({"id": place, "image_id": 10 * place, "category_id": 3, "bbox": [0, 0, 8, 8]})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 3}]}
    Path(f"coco/{part}.json").write_text(json.dumps(content))


def contents(batches: Iterator[Batch]) -> list[tuple[Any, ...]]:
    return [
        (one.image.tobytes(), one.image.shape, tuple(one.keys), tuple(one.seeds), str(one.boxes)) for one in batches
    ]


SIZES = [(20, 40), (40, 20), (30, 40), (33, 20), (20, 70), (50, 20), (20, 20), (10, 40), (40, 40)]


def test_batches_are_the_same_for_any_number_of_workers_and_from_any_place(folder: Path) -> None:
    photographs(SIZES)
    section = detection()
    alone = read_dataset(section, "train", seed=5)
    whole = contents(alone.epoch(1, 2))
    assert len(whole) == alone.per_epoch(2) == 4
    assert whole == contents(alone.epoch(1, 2))
    assert whole != contents(alone.epoch(2, 2))
    assert whole != contents(read_dataset(section, "train", seed=6).epoch(1, 2))
    assert whole[2:] == contents(alone.epoch(1, 2, begin=2))
    section["dataloader"]["kwargs"]["num_workers"] = 3
    assert whole == contents(read_dataset(section, "train", seed=5).epoch(1, 2))


def test_two_processes_read_what_one_reads(folder: Path) -> None:
    photographs(SIZES)
    dataset = read_dataset(detection(), "train", seed=0)
    whole = list(dataset.epoch(0, 4))
    agreed = [one.image.shape[2:] for one in whole]
    shares = []
    for rank in (0, 1):
        sizes = iter(agreed)
        shares.append(list(dataset.epoch(0, 4, rank, 2, agree=lambda _, sizes=sizes: next(sizes))))
    for one, first, second in zip(whole, *shares):
        assert one.keys == [*first.keys, *second.keys]
        assert one.seeds == [*first.seeds, *second.seeds]
        assert np.array_equal(one.image, np.concatenate([first.image, second.image]))


def test_groups_of_one_aspect_ratio_fill_batches_and_nothing_comes_twice(folder: Path) -> None:
    photographs([(20, 40)] * 7 + [(40, 20)] * 6)
    dataset = read_dataset(detection(), "train", seed=0)
    batches = list(dataset.epoch(0, 3))
    assert len(batches) == 4
    assert sum(len({size[0] > size[1] for size in one.sizes}) == 1 for one in batches) >= 4
    keys = [key for one in batches for key in one.keys]
    assert len(set(keys)) == len(keys) == 12


def test_a_test_has_all_images_padded_to_the_alignment(folder: Path) -> None:
    photographs(SIZES, "test")
    batches = list(read_dataset(detection(), "test", seed=0).epoch(0, 2))
    assert sorted(key for one in batches for key in one.keys) == list(range(9))
    assert [len(one) for one in batches] == [2, 2, 2, 2, 1]
    for one in batches:
        assert not any(side % 32 for side in one.image.shape[2:])
        for image, (height, width), key in zip(one.image, one.sizes, one.keys):
            assert (height, width) == SIZES[key]
            assert np.allclose(image[0, :height, :width] * 255, key + 1)
            assert not image[:, height:].any()
            assert not image[:, :, width:].any()
    assert batches[0].ids[0] == 10 * (batches[0].keys[0] + 1)


def test_the_last_share_of_a_test_may_be_empty(folder: Path) -> None:
    photographs([(20, 20)], "test")
    dataset = read_dataset(detection(), "test", seed=0)
    (share,) = dataset.epoch(0, 2, rank=1, processes=2, agree=lambda _: (64, 32))
    assert share.image.shape == (0, 3, 64, 32)


def test_labels_are_in_the_order_of_the_ids_of_categories(folder: Path) -> None:
    photographs([(20, 20)])
    content = json.loads(Path("coco/train.json").read_text())
    content["categories"] = [{"id": 7, "name": "car"}, {"id": 3, "name": "cat"}]
    Path("coco/train.json").write_text(json.dumps(content))
    dataset = read_dataset(detection(), "train", seed=0)
    assert dataset.categories == {1: {"id": 3, "name": "cat"}, 2: {"id": 7, "name": "car"}}
    assert dataset.source.sample(0).labels.tolist() == [1]


def test_images_without_objects_are_for_the_test_only(folder: Path) -> None:
    for part in ("train", "test"):
        photographs([(20, 20), (20, 20), (20, 20)], part)
        content = json.loads(Path(f"coco/{part}.json").read_text())
        content["annotations"].pop(1)
        Path(f"coco/{part}.json").write_text(json.dumps(content))
    assert read_dataset(detection(), "train", seed=0).size == 2
    assert read_dataset(detection(), "test", seed=0).size == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_ends_the_epoch_with_its_name_and_no_thread_stays(folder: Path, workers: int) -> None:
    photographs(SIZES)
    section = detection(dataloader={"type": "base", "kwargs": {"num_workers": workers}})
    dataset = read_dataset(section, "train", seed=0)
    Path("coco/train/4.png").write_bytes(Path("coco/train/4.png").read_bytes()[:60])
    with pytest.raises(OptionError, match=r"coco/train/4\.png cannot be read as an image"):
        list(dataset.epoch(0, 1))
    assert not [one for one in threading.enumerate() if one.name.startswith("images")]


def test_a_loop_that_is_left_leaves_no_thread(folder: Path) -> None:
    photographs(SIZES)
    section = detection(dataloader={"type": "base", "kwargs": {"num_workers": 2}})
    epoch = read_dataset(section, "train", seed=0).epoch(0, 1)
    next(epoch)
    epoch.close()  # type: ignore[attr-defined, unused-ignore]
    assert not [one for one in threading.enumerate() if one.name.startswith("images")]


def test_an_image_of_another_size_than_the_json_says_is_turned_or_refused(folder: Path) -> None:
    photographs([(20, 40)])
    turned = Image.new("RGB", (20, 40))
    turned.getexif()[0x0112] = 6
    turned.save("coco/train/1.png", exif=turned.getexif())
    dataset = read_dataset(detection(), "train", seed=0)
    assert next(dataset.epoch(0, 1)).sizes == [(20, 40)]
    Image.new("RGB", (20, 40)).save("coco/train/1.png")
    with pytest.raises(OptionError, match="is 40x20, and the annotations say 20x40"):
        next(dataset.epoch(0, 1))


def test_lists_of_images_with_both_layouts(folder: Path) -> None:
    Path("images").mkdir()
    for place, side in enumerate((20, 24, 28)):
        Image.new("L", (side, side), 40 * place).save(f"images/{place}.jpg")
    Path("list.txt").write_text("0.jpg 2\n1.jpg 0\n2.jpg 1\n")
    reader = {"type": "fs_pillow", "kwargs": {"image_dir": "images", "color_mode": "RGB"}}
    evaluator = {"type": "imagenet", "kwargs": {"topk": [1, 5], "num_classes": 3}}
    kwargs = {"meta_file": "list.txt", "image_reader": reader, "transformer": [RESIZE, TENSOR], "evaluator": evaluator}
    inside = {
        "dataset": {"type": "cls", "kwargs": kwargs},
        "batch_sampler": {"type": "base", "kwargs": {"sampler": {"type": "dist", "kwargs": {}}, "batch_size": 3}},
        "dataloader": {"type": "cls_base", "kwargs": {"num_workers": 4, "pin_memory": True}},
    }
    section = {"train": inside, "test": inside}
    dataset = read_dataset(section, "test", seed=0)
    (batch,) = dataset.epoch(0, dataset.batch)
    assert batch.image.shape == (3, 3, 16, 16)
    assert [one.tolist() for one in batch.labels] == [[2], [0], [1]]
    evaluator_found = read_evaluator(section, dataset)
    evaluator_found.add(batch, np.eye(3)[[2, 0, 0]])
    assert evaluator_found.figures() == {"top1": pytest.approx(2 / 3), "top5": 1.0}
    kwargs["transformer"] = [TENSOR]
    with pytest.raises(OptionError, match="to one size"):
        list(read_dataset(section, "test", seed=0).epoch(0, 3))
    with pytest.raises(OptionError, match="3 images to train with, fewer than a batch of 4"):
        read_dataset(section, "train", seed=0).per_epoch(4)


def change(section: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.split("/")
    for key in way:
        section = section[key]
    section[last] = value


KWARGS = "train/dataset/kwargs"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("trian", {}, "did you mean train"),
        ("train/dataset/type", "coc", "did you mean coco"),
        (f"{KWARGS}/meta_fil", "x", "did you mean meta_file"),
        (f"{KWARGS}/meta_file", "nowhere.json", "no file nowhere.json; .*--scenes"),
        (f"{KWARGS}/meta_file", 3, "a path"),
        (f"{KWARGS}/image_reader/kwargs/image_dir", "nowhere", "no folder nowhere; .*--scenes"),
        (f"{KWARGS}/image_reader/kwargs/image_dir", "coco/train.json", "this is no folder"),
        (f"{KWARGS}/image_reader/kwargs/color_mode", "RBG", "RGB, BGR"),
        (f"{KWARGS}/image_reader/type", "fs_open", "did you mean fs_opencv"),
        ("batch_sampler/type", "aspect", "base, aspect_ratio_group, not 'aspect'"),
        ("batch_sampler/kwargs/batch_size", 0, "at least 1"),
        ("batch_sampler/kwargs/sampler", {"type": "dits"}, "dist"),
        ("batch_sampler/kwargs/aspect_grouping", 1, "a list of ratios"),
        ("dataloader/kwargs/num_worker", 1, "did you mean num_workers"),
        ("dataloader/kwargs/alignment", "32", "whole number"),
    ],
)
def test_what_is_not_known_is_refused_by_name(folder: Path, path: str, value: Any, said: str) -> None:
    photographs([(20, 20)])
    section = detection()
    change(section, path, value)
    with pytest.raises(OptionError, match=said):
        read_dataset(section, "train", seed=0)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("type", "VOC", r"^dataset\.test\.dataset\.kwargs\.evaluator\.type is one of imagenet, COCO"),
        ("type", "imagenet", "COCO for images of this type"),
        ("kwargs/iou_types", ["segm"], r"\[bbox\]"),
        ("kwargs/gt_file", "nowhere.json", r"no file nowhere\.json"),
        ("kwargs/gt_file", "coco/other.json", "categories of"),
        ("kwargs/backend", "cuda", "numpy, pycocotools"),
    ],
)
def test_evaluators_that_are_not_known_are_refused(folder: Path, path: str, value: Any, said: str) -> None:
    photographs([(20, 20)], "test")
    Path("coco/other.json").write_text(
        Path("coco/test.json").read_text().replace('"id": 3}', '"id": 4}').replace('d": 3', 'd": 4')
    )
    section = detection()
    dataset = read_dataset(section, "test", seed=0)
    assert isinstance(read_evaluator(section, dataset), CocoMap)
    change(section, f"test/dataset/kwargs/evaluator/{path}", value)
    with pytest.raises(OptionError, match=said):
        read_evaluator(section, dataset)


def test_of_sixteen_bits_the_upper_eight_are_taken(tmp_path: Path) -> None:
    levels = np.asarray([[0, 255, 256, 65535]], np.uint16)
    for name in ("deep.png", "deep.tif"):
        Image.fromarray(levels).save(tmp_path / name)
        assert ImageFiles(str(tmp_path)).read(name)[0].tolist() == [[0] * 3, [0] * 3, [1] * 3, [255] * 3]
    Image.fromarray(levels.astype(np.float32)).save(tmp_path / "real.tif")
    with pytest.raises(OptionError, match="grey of 32 bits"):
        ImageFiles(str(tmp_path)).read("real.tif")


def test_color_mode_is_for_the_network_and_links_are_followed(folder: Path) -> None:
    Image.new("RGB", (4, 4), (255, 0, 0)).save("real.png")
    Path("images").mkdir()
    Path("images/link.png").symlink_to(folder / "real.png")
    assert ImageFiles("images", "BGR").read("link.png")[0, 0].tolist() == [255, 0, 0]


def answers_of(dataset: Images, batch: Batch) -> list[Detections]:
    """The annotations themselves."""
    return [
        Detections(boxes / np.asarray([scale[1], scale[0]] * 2), np.ones(len(boxes)), labels)
        for boxes, labels, scale in zip(batch.boxes, batch.labels, batch.scales)
    ]


def test_scenes_are_made_where_a_section_says(folder: Path) -> None:
    section = detection()
    notes = make_scenes(section, counts=(6, 4), size=64, seed=3)
    assert [note.split(" scenes")[0] for note in notes] == ["train: made 6", "test: made 4"]
    dataset = read_dataset(section, "test", seed=0)
    section["test"]["dataset"]["kwargs"]["transformer"].insert(
        0, {"type": "keep_ar_resize", "kwargs": {"scales": [80], "separate_wh": True}}
    )
    dataset = read_dataset(section, "test", seed=0)
    evaluator = read_evaluator(section, dataset)
    for batch in dataset.epoch(0, 3):
        assert batch.image.shape[1:] == (3, 96, 96)
        evaluator.add(batch, answers_of(dataset, batch))
    assert evaluator.figures()["mAP"] == pytest.approx(1)
    assert all("stay as they are" in note for note in make_scenes(section, counts=(9, 9)))
    Path("coco/train.json").unlink()  # as a run would leave it that is killed after the images
    assert "wrote coco/train.json" in make_scenes(section)[0]
    assert read_dataset(section, "train", seed=0).size == 6


def test_the_same_seed_draws_the_same_scenes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (folder / name).mkdir()
        monkeypatch.chdir(folder / name)
        make_scenes(detection(), counts=(2, 1), size=48, seed=seed)
        found.append((Path("coco/train.json").read_text(), Path("coco/train/000002.png").read_bytes()))
    assert found[0] == found[1] != found[2]


def test_what_is_there_is_not_written_over(folder: Path) -> None:
    Path("coco/test").mkdir(parents=True)
    Path("coco/test/mine.png").write_bytes(b"")
    with pytest.raises(Exception, match=r"coco/test is there, but coco/test\.json is not"):
        make_scenes(detection(), counts=(2, 1), size=48)
    assert sorted(path.name for path in Path("coco").iterdir()) == ["test", "train", "train.json"]
    with pytest.raises(OptionError, match="one image_dir"):
        make_scenes({**detection(), "train": detection()["test"]})


def test_an_interrupted_run_leaves_nothing_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.data import scenes

    Path("coco/.train-scenes-999999999").mkdir(parents=True)  # of one that was killed

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scenes, "_save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_scenes(detection(), counts=(2, 1), size=48)
    assert list(Path("coco").iterdir()) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_of_two_runs_at_once_one_takes_what_the_other_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    from models.data import scenes

    own = scenes.read_items

    def overtaken(source: str, part: str) -> Any:
        monkeypatch.setattr(scenes, "read_items", own)
        make_scenes(detection(), counts=(2, 1), size=48, seed=seed)
        return own(source, part)

    monkeypatch.setattr(scenes, "read_items", overtaken)
    notes = make_scenes(detection(), counts=(2, 1), size=48)
    assert notes[0].startswith("train: took the scenes that another run made" if seed else "train: made 2 scenes")
    assert Path("coco/train/.annotations").read_text() == Path("coco/train.json").read_text()
    assert sorted(one.name for one in Path("coco").iterdir()) == ["test", "test.json", "train", "train.json"]


def test_fashion_mnist_in_the_format_idx(folder: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("train", "t10k"):
        pixels = random.integers(0, 256, (5, 28, 28), np.uint8)
        header = b"\0\0\x08\x03" + b"".join(one.to_bytes(4, "big") for one in pixels.shape)
        Path(f"{name}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        Path(f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x05" + bytes([0, 1, 2, 3, 9]))
    make_scenes(detection(), ".", counts=(2, 1), size=48)
    assert json.loads(Path("coco/train.json").read_text())["categories"][9] == {"id": 10, "name": "ankle boot"}
    Path("train-images-idx3-ubyte").write_bytes(header)
    Path("coco/train.json").rename("moved.json")
    Path("coco/train").rename("moved")
    with pytest.raises(OptionError, match="or not whole"):
        make_scenes(detection(), ".", counts=(2, 1), size=48)
    with pytest.raises(OptionError, match="takes a folder"):
        make_scenes(detection(), "nowhere", counts=(2, 1), size=48)
