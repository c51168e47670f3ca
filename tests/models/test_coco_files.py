from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.data.coco import read_coco
from models.data.image_lists import read_list
from onnxsparse.errors import OptionError

IMAGES = [
    {"id": 9, "file_name": "b.png", "height": 20, "width": 40},
    {"id": 4, "file_name": "a.png", "height": 30, "width": 30},
]
CATEGORIES = [{"id": 90, "name": "dog"}, {"id": 7, "name": "cat"}]


def annotation(image: int = 9, category: int = 7, **more: Any) -> dict[str, Any]:
    return {"id": 1, "image_id": image, "category_id": category, "bbox": [1, 2, 3, 4], **more}


def written(folder: Path, annotations: Any = None, **more: Any) -> str:
    annotations = [] if annotations is None else annotations
    content = {"images": IMAGES, "annotations": annotations, "categories": CATEGORIES, **more}
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_ids_with_gaps_become_classes_in_their_order(tmp_path: Path) -> None:
    coco = read_coco(written(tmp_path, [annotation(4, 90), annotation(9, 7), annotation(4, 7)]))
    assert coco.categories == [7, 90]
    assert coco.category_names == ["cat", "dog"]
    assert coco.boxes(0)[1].tolist() == [1]
    assert coco.boxes(1)[1].tolist() == [2, 1]
    assert coco.boxes(1)[0].tolist() == [[1, 2, 4, 6]] * 2


def test_crowds_are_apart_and_boxes_are_cut_at_the_edges(tmp_path: Path) -> None:
    crowd = annotation(iscrowd=1, segmentation={"counts": [3, 4], "size": [20, 40]})
    outside, long = annotation(bbox=[50, 2, 3, 4]), annotation(bbox=[-5, 10, 100, 100], segmentation=[[1, 2, 3, 4]])
    coco = read_coco(written(tmp_path, [crowd, outside, annotation(bbox=[3, 3, 0, 5]), long]))
    boxes, labels, ignored = coco.boxes(0)
    assert boxes.tolist() == [[0, 10, 40, 20]]
    assert labels.tolist() == [1]
    assert ignored.tolist() == [[1, 2, 4, 6]]
    assert coco.with_objects().tolist() == [0]
    assert len(coco.corners) == 4  # an evaluation sees them all


def test_an_image_with_nothing_but_a_crowd_is_not_learnt_from(tmp_path: Path) -> None:
    assert read_coco(written(tmp_path, [annotation(iscrowd=1)])).with_objects().tolist() == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"annotations": [annotation(), annotation(bbox=[1, 2, 3])]},
            r"annotation 2 \(id 1\) has the bbox \[1, 2, 3\]",
        ),
        ({"annotations": [annotation(bbox=[1, 2, "x", 4])]}, "annotation 1 .* not \\[x, y, width, height\\]"),
        ({"annotations": [annotation(bbox=[1, 2, float("nan"), 4])]}, "annotation 1 has a bbox that is infinite"),
        ({"annotations": [annotation(), annotation(5)]}, "annotation 2 names the image 5"),
        ({"annotations": [annotation(category=8)]}, "annotation 1 names the category 8"),
        ({"annotations": [annotation([])]}, "annotation 1 names the image"),
        ({"annotations": [{"id": 3}]}, "not all mappings with image_id"),
        ({"annotations": [{"x": annotation()}]}, "not all mappings with image_id"),
        ({"annotations": {}}, "not all mappings with image_id"),
        ({"images": []}, "has no images"),
        ({"images": [{"file_name": "a"}]}, "entry 1 of images has no id"),
        ({"images": [IMAGES[0], IMAGES[0]]}, "an id twice among its images"),
        ({"images": [{**IMAGES[0], "height": "20"}]}, "image 9 has no height and width"),
        ({"images": [{**IMAGES[0], "file_name": None}]}, "image 9 has no file_name"),
        ({"images": [{**IMAGES[0], "file_name": "../b.png"}]}, "leads out of image_dir"),
        ({"images": [{**IMAGES[0], "file_name": "x/../../b.png"}]}, "leads out of image_dir"),
        ({"images": [{**IMAGES[0], "file_name": "/etc/passwd"}]}, "leads out of image_dir"),
        ({"categories": [{"id": 1}, {"id": "x"}]}, "partly numbers, partly texts"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    path = written(tmp_path, **content)
    with pytest.raises(OptionError, match=said) as error:
        read_coco(path)
    assert str(error.value).startswith(path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "\x00"])
def test_a_broken_json_is_said_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(OptionError, match=r"broken\.json is not"):
        read_coco(str(tmp_path / "broken.json"))


def test_polygons_are_passed_over_and_rows_put_in_the_order_of_images(tmp_path: Path) -> None:
    polygon = [[float(one) for one in range(40)]]
    rows = [annotation(4 if one % 3 else 9, 7, bbox=[one, 0, 1, 1], segmentation=polygon) for one in range(30)]
    coco = read_coco(written(tmp_path, rows))
    assert np.diff(coco.begins).tolist() == [10, 20]
    assert coco.corners[coco.of(0), 0].tolist() == list(range(0, 30, 3))


def test_a_list_has_a_path_and_a_label_in_each_line(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.png 3\n\nb/with space.png\t0\nc d.png 1")
    listed = read_list(str(tmp_path / "list.txt"))
    assert listed.names == ["a.png", "b/with space.png", "c d.png"]
    assert listed.labels.tolist() == [3, 0, 1]
    assert listed.classes == 4


@pytest.mark.parametrize("line", ["a.png", "a.png -1", "a.png 1.5", "3", "../a.png 3", "/a.png 3", "a.png 99999999999"])
def test_a_wrong_line_is_said_with_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "list.txt").write_text(f"fine.png 0\n{line}\n")
    with pytest.raises(OptionError, match=r"list\.txt, line 2"):
        read_list(str(tmp_path / "list.txt"))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe 1"])
def test_a_list_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(OptionError, match=r"list\.txt"):
        read_list(str(tmp_path / "list.txt"))
