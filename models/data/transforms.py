"""What is done to an image before a network sees it, boxes along with it: the transforms of `transformer:` by name.

Those of detection mean what they mean in United Perception, those that begin with `torch_` what they mean in
torchvision, on images of bytes. Resizing is Pillow's, which averages where it makes smaller.

| name | what it does |
|---|---|
| flip | mirrored with the probability `flip_p` |
| keep_ar_resize | the shorter side becomes one of `scales`, drawn; the longer stays within `max_size` |
| fix_output_resize | height and width become `scales`, whatever the shape was; `max_size` says nothing then |
| stitch_expand | with `expand_prob`, a window up to `expand_ratios` times as large, cut from 2 x 2 copies |
| crop | a square of the shorter side, with `crop_prob` down to half of it; padded with `means` where no object fits |
| color_jitter | brightness, contrast, saturation and hue, each with `prob` (.5), in an order that is drawn |
| torch_random_resized_crop | a part of `scale` of the area and a `ratio` of sides, resized to `size` |
| torch_random_horizontal_flip | mirrored with the probability `p` |
| torch_color_jitter | brightness, contrast, saturation and hue, in an order that is drawn |
| torch_resize | the shorter side becomes `size`, or both sides become height and width |
| torch_center_crop | `size` from the middle, with black around what is smaller |
| to_tensor | numbers from 0 to 1, channels first, in the order of `color_mode` |
| normalize | (x - mean) / std for each channel |

1. Whatever is drawn comes from the generator of the image; the transforms hold no state.
2. Of a window cut from an image remain the objects whose centre lies in it, cut at its edges; a window has at least one
   object whole. Crowds remain as far as they reach into it.
3. `color_jitter`: a `brightness` above 1 is a number of levels (of 255) to add, a `hue` above .5 one of degrees.
   United Perception's own default of `prob` is 0, with which the published files jitter nothing: write `prob: 0` for
   that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from models.data.batch import Array
from models.data.image_files import pillow
from models.sections import Section
from onnxsparse.errors import OptionError

Window = tuple[int, int, int, int]


def _no_boxes() -> Array:
    return np.zeros((0, 4), np.float32)


@dataclass(frozen=True)
class Sample:
    """An image with what is known of it; bytes (H, W, 3) of RGB, and after to_tensor floats (3, H, W)."""

    image: Array
    labels: Array
    boxes: Array = field(default_factory=_no_boxes)
    ignored: Array = field(default_factory=_no_boxes)
    scale: tuple[float, float] = (1.0, 1.0)


Transform = Callable[[Sample, np.random.Generator], Sample]


def transforms(entries: Any, where: str, color_mode: str = "RGB") -> list[Transform]:
    """Those that a list of {type, kwargs} names, in its order."""
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise OptionError(f"{where} is a list of {{type, kwargs}}")
    made: list[Transform] = []
    kinds: list[str] = []
    for place, entry in enumerate(entries, 1):
        kind, kwargs = Section(where, {f"{place}": entry}).typed(f"{place}", tuple(KINDS))
        kwargs.where = f"{where}: {kind}"
        _demand_order(kind, kinds, where)
        made.append(KINDS[kind](kwargs, color_mode))
        kwargs.end()
        kinds.append(kind)
    if "to_tensor" not in kinds:
        raise OptionError(f"{where} has no to_tensor, so what it makes is no input of a network")
    return made


def _demand_order(kind: str, before: Sequence[str], where: str) -> None:
    if kind == "normalize" and "to_tensor" not in before:
        raise OptionError(f"{where}: normalize comes after to_tensor")
    if kind != "normalize" and "to_tensor" in before:
        raise OptionError(f"{where}: {kind} works on pixels, so before to_tensor")


# -- mirrored


def _flip(options: Section, _: str) -> Transform:
    return _mirror(_probability(options, "flip_p"))


def _torch_flip(options: Section, _: str) -> Transform:
    return _mirror(_probability(options, "p", 0.5))


def _mirror(probability: float) -> Transform:
    def apply(sample: Sample, random: np.random.Generator) -> Sample:
        if random.random() >= probability:
            return sample
        width = sample.image.shape[1]
        boxes, ignored = (_mirrored(boxes, width) for boxes in (sample.boxes, sample.ignored))
        return replace(sample, image=sample.image[:, ::-1], boxes=boxes, ignored=ignored)

    return apply


def _mirrored(boxes: Array, width: int) -> Array:
    return np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1)


# -- resized


def _keep_ratio(options: Section, _: str) -> Transform:
    scales = options.wholes("scales", least=1)
    if not scales:
        options.refuse("scales", "a list of lengths of the shorter side", scales)
    longest = options.whole("max_size", 1 << 30)
    exact = options.flag("separate_wh", False)

    def apply(sample: Sample, random: np.random.Generator) -> Sample:
        height, width = sample.image.shape[:2]
        wanted = scales[int(random.integers(len(scales)))]
        factor = min(wanted / min(height, width), longest / max(height, width))
        size = max(1, round(height * factor)), max(1, round(width * factor))
        return _resized(sample, size, None if exact else (factor, factor))

    return apply


def _fixed_size(options: Section, _: str) -> Transform:
    size = options.wholes("scales", least=1)
    if len(size) != 2:
        options.refuse("scales", "[height, width]", size)
    options.whole("max_size", 1)
    options.flag("separate_wh", True)
    return lambda sample, _: _resized(sample, (size[0], size[1]))


def _torch_resize(options: Section, _: str) -> Transform:
    sides, method = _sides(options), _interpolation(options)

    def apply(sample: Sample, _: np.random.Generator) -> Sample:
        height, width = sample.image.shape[:2]
        if len(sides) == 2:
            return _resized(sample, (sides[0], sides[1]), method=method)
        longer = int(sides[0] * max(height, width) / min(height, width))
        return _resized(sample, (longer, sides[0]) if height > width else (sides[0], longer), method=method)

    return apply


def _resized(
    sample: Sample, size: tuple[int, int], factors: tuple[float, float] | None = None, method: str = "bilinear"
) -> Sample:
    height, width = sample.image.shape[:2]
    down, across = factors or (size[0] / height, size[1] / width)
    by = np.asarray([across, down, across, down], np.float64)
    return replace(
        sample,
        image=_resample(sample.image, size, method),
        boxes=(sample.boxes * by).astype(np.float32),
        ignored=(sample.ignored * by).astype(np.float32),
        scale=(sample.scale[0] * down, sample.scale[1] * across),
    )


def _resample(image: Array, size: tuple[int, int], method: str) -> Array:
    if image.shape[:2] == size:
        return image
    library = pillow()
    how = library.Resampling[method.upper()]
    return np.asarray(library.fromarray(np.ascontiguousarray(image)).resize((size[1], size[0]), how))


# -- cut


def _stitch(options: Section, _: str) -> Transform:
    largest, probability = options.number("expand_ratios", 2.0, least=1), _probability(options, "expand_prob", 0.5)
    if largest > 2:
        options.refuse("expand_ratios", "at most 2, as it cuts from 2 x 2 copies", largest)

    def apply(sample: Sample, random: np.random.Generator) -> Sample:
        if random.random() >= probability:
            return sample
        factor = random.uniform(1, largest)
        if not len(sample.boxes) or factor - 1 <= 0.01:
            return sample
        height, width = sample.image.shape[:2]
        copies = _copies(sample)
        for _ in range(10):
            window = _window(random, (2 * height, 2 * width), (int(factor * height), int(factor * width)))
            if _one_whole(copies.boxes, window):
                return _cut(copies, window)
        return sample

    return apply


def _copies(sample: Sample) -> Sample:
    """2 x 2 copies of the image, and of its boxes."""
    height, width = sample.image.shape[:2]
    moves = np.asarray([(x, y, x, y) for y in (0, height) for x in (0, width)], np.float32)
    boxes, ignored = (
        (boxes[None] + moves[:, None]).reshape(-1, 4).astype(np.float32) for boxes in (sample.boxes, sample.ignored)
    )
    image = np.tile(sample.image, (2, 2, 1))
    return replace(sample, image=image, boxes=boxes, ignored=ignored, labels=np.tile(sample.labels, 4))


def _crop(options: Section, color_mode: str) -> Transform:
    means = _levels(options, color_mode)
    target, probability = options.whole("scale", 600), _probability(options, "crop_prob", 0.5)

    def apply(sample: Sample, random: np.random.Generator) -> Sample:
        height, width = sample.image.shape[:2]
        short = min(height, width)
        if not len(sample.boxes):
            return _cut(sample, _window(random, (height, width), (short, short)))
        for _ in range(100):
            side = short if random.random() >= probability else max(1, int(random.uniform(0.5, 1) * short))
            window = _window(random, (height, width), (side, side))
            if _one_whole(sample.boxes, window) and _large_enough(sample.boxes, window, target / side):
                return _cut(sample, window)
        return _square(sample, means)

    return apply


def _levels(options: Section, color_mode: str) -> Array:
    """The color of what is padded, as RGB."""
    found = np.asarray(_numbers(options, "means", [127.5], (1, 3)))
    return np.broadcast_to(found[::-1] if color_mode == "BGR" else found, (3,))


def _square(sample: Sample, means: Array) -> Sample:
    """The image at the upper left of a square of its longer side."""
    height, width = sample.image.shape[:2]
    side = max(height, width)
    image = np.empty((side, side, 3), np.uint8)
    image[:] = np.clip(means, 0, 255).astype(np.uint8)
    image[:height, :width] = sample.image
    return replace(sample, image=image)


SMALLEST = 6.0  # pixels that an object's shorter side has when the window is resized to `scale`


def _large_enough(boxes: Array, window: Window, factor: float) -> bool:
    kept = boxes[_centres_in(boxes, window)]
    sides = np.minimum(kept[:, 2] - kept[:, 0], kept[:, 3] - kept[:, 1])
    return bool((sides * factor >= SMALLEST).any())


def _window(random: np.random.Generator, size: tuple[int, int], cut: tuple[int, int]) -> Window:
    """Left, top, right and bottom of a window somewhere in an image."""
    top, left = (int(random.integers(whole - part + 1)) for whole, part in zip(size, cut))
    return left, top, left + cut[1], top + cut[0]


def _one_whole(boxes: Array, window: Window) -> bool:
    inside = (boxes[:, :2] >= window[:2]).all(axis=1) & (boxes[:, 2:] <= window[2:]).all(axis=1)
    return bool(inside.any())


def _centres_in(boxes: Array, window: Window) -> Array:
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    return np.asarray(((centres > window[:2]) & (centres < window[2:])).all(axis=1))


def _cut(sample: Sample, window: Window) -> Sample:
    left, top, right, bottom = window
    kept = _centres_in(sample.boxes, window)
    boxes, ignored = _clipped(sample.boxes[kept], window), _clipped(sample.ignored, window)
    area = (ignored[:, 2] > ignored[:, 0]) & (ignored[:, 3] > ignored[:, 1])
    image = sample.image[top:bottom, left:right]
    return replace(sample, image=image, boxes=boxes, labels=sample.labels[kept], ignored=ignored[area])


def _clipped(boxes: Array, window: Window) -> Array:
    low, high = np.asarray(window[:2] * 2, np.float32), np.asarray(window[2:] * 2, np.float32)
    return np.clip(boxes, low, high) - low


def _torch_resized_crop(options: Section, _: str) -> Transform:
    sides, method = _sides(options), _interpolation(options)
    size = (sides[0], sides[-1])
    scale = _range(options, "scale", [0.08, 1.0])
    ratio = _range(options, "ratio", [3 / 4, 4 / 3])

    def apply(sample: Sample, random: np.random.Generator) -> Sample:
        left, top, right, bottom = _part(sample.image.shape[:2], scale, ratio, random)
        return replace(sample, image=_resample(sample.image[top:bottom, left:right], size, method))

    return apply


def _part(shape: Any, scale: Sequence[float], ratio: Sequence[float], random: np.random.Generator) -> Window:
    """A window of an area and a ratio of sides that are drawn; after ten that do not fit, one in the middle."""
    height, width = shape
    for _ in range(10):
        area = height * width * random.uniform(scale[0], scale[1])
        sides = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        across, down = round(math.sqrt(area * sides)), round(math.sqrt(area / sides))
        if 0 < across <= width and 0 < down <= height:
            return _window(random, (height, width), (down, across))
    across = min(width, round(height * ratio[1]))
    down = min(height, round(width / ratio[0]))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down


def _torch_center_crop(options: Section, _: str) -> Transform:
    sides = _sides(options)

    def apply(sample: Sample, _: np.random.Generator) -> Sample:
        image = _padded(sample.image, sides[0], sides[-1])
        top, left = round((image.shape[0] - sides[0]) / 2), round((image.shape[1] - sides[-1]) / 2)
        return replace(sample, image=image[top : top + sides[0], left : left + sides[-1]])

    return apply


def _padded(image: Array, height: int, width: int) -> Array:
    """With black around it, where it is smaller."""
    more = max(0, height - image.shape[0]), max(0, width - image.shape[1])
    if not any(more):
        return image
    return np.pad(image, (*((one // 2, one - one // 2) for one in more), (0, 0)))


# -- colors


def _color_jitter(options: Section, _: str) -> Transform:
    brightness = _around(options, "brightness", 1.0, [0.0, 0.0]) if _unit(options) else None
    delta = 0.0 if brightness else options.number("brightness", 0.0, least=0)
    contrast, saturation = (_around(options, name, 1.0, [1.0, 1.0]) for name in ("contrast", "saturation"))
    hue = options.number("hue", 0.0, least=0)
    probability = _probability(options, "prob", 0.5)
    changes: list[Change] = [
        ("Brightness", brightness) if brightness else ("levels", [-delta, delta]),
        ("Contrast", contrast),
        ("Color", saturation),
        ("hue", [-hue, hue] if hue <= 0.5 else [-hue / 360, hue / 360]),
    ]
    return _jitter(changes, probability)


def _unit(options: Section) -> bool:
    """Whether brightness is one of factors."""
    found = options.any("brightness", 0.0)
    return isinstance(found, Sequence) or (isinstance(found, float) and 0 < found <= 1)


def _torch_color_jitter(options: Section, _: str) -> Transform:
    changes: list[Change] = [
        (change, _around(options, name, 1.0, [1.0, 1.0]))
        for change, name in (("Brightness", "brightness"), ("Contrast", "contrast"), ("Color", "saturation"))
    ]
    hue = _around(options, "hue", 0.0, [0.0, 0.0])
    if max(abs(one) for one in hue) > 0.5:
        options.refuse("hue", "at most 0.5, half of the circle", options.any("hue"))
    return _jitter([*changes, ("hue", hue)], 1.0)


Change = tuple[str, Sequence[float]]


def _jitter(changes: Sequence[Change], probability: float) -> Transform:
    used = [(name, limits) for name, limits in changes if tuple(limits) != _nothing(name)]

    def apply(sample: Sample, random: np.random.Generator) -> Sample:
        image = pillow().fromarray(np.ascontiguousarray(sample.image))
        for place in random.permutation(len(used)):
            name, limits = used[place]
            chosen = random.random() < probability
            amount = random.uniform(limits[0], limits[1])
            image = _changed(image, name, amount) if chosen else image
        return replace(sample, image=np.asarray(image))

    return apply


def _nothing(name: str) -> tuple[float, float]:
    return (0.0, 0.0) if name in ("levels", "hue") else (1.0, 1.0)


def _changed(image: Any, name: str, amount: float) -> Any:
    from PIL import ImageEnhance

    if name == "levels":
        return image.point([min(255, max(0, round(level + amount))) for level in range(256)] * 3)
    if name != "hue":
        return getattr(ImageEnhance, name)(image).enhance(amount)
    angle, *rest = image.convert("HSV").split()
    turned = np.asarray(angle) + np.uint8(round(amount * 256) % 256)  # bytes wrap around as the circle does
    return pillow().merge("HSV", (pillow().fromarray(turned), *rest)).convert("RGB")


# -- numbers for a network


def _to_tensor(_options: Section, color_mode: str) -> Transform:
    backwards = color_mode == "BGR"

    def apply(sample: Sample, _: np.random.Generator) -> Sample:
        channels = sample.image[..., ::-1] if backwards else sample.image
        return replace(sample, image=channels.transpose(2, 0, 1) / np.float32(255))

    return apply


def _normalize(options: Section, _: str) -> Transform:
    mean, std = (
        np.asarray(_numbers(options, name, None, (1, 3)), np.float32)[:, None, None] for name in ("mean", "std")
    )
    if (std <= 0).any():
        options.refuse("std", "numbers above 0", options.any("std"))
    return lambda sample, _: replace(sample, image=(sample.image - mean) / std)


KINDS: Mapping[str, Callable[[Section, str], Transform]] = {
    "flip": _flip,
    "keep_ar_resize": _keep_ratio,
    "fix_output_resize": _fixed_size,
    "stitch_expand": _stitch,
    "crop": _crop,
    "color_jitter": _color_jitter,
    "torch_random_resized_crop": _torch_resized_crop,
    "torch_random_horizontal_flip": _torch_flip,
    "torch_color_jitter": _torch_color_jitter,
    "torch_resize": _torch_resize,
    "torch_center_crop": _torch_center_crop,
    "to_tensor": _to_tensor,
    "normalize": _normalize,
}


# -- options


def _probability(options: Section, name: str, default: float | None = None) -> float:
    found = options.number(name, least=0) if default is None else options.number(name, default, least=0)
    if found > 1:
        options.refuse(name, "a probability from 0 to 1", found)
    return found


def _numbers(options: Section, name: str, default: list[float] | None, lengths: Sequence[int]) -> list[float]:
    found = options.any(name) if default is None else options.any(name, default)
    listed = list(found) if isinstance(found, Sequence) and not isinstance(found, str) else [found]
    real = all(isinstance(one, (int, float)) and not isinstance(one, bool) and math.isfinite(one) for one in listed)
    if not real or len(listed) not in lengths:
        options.refuse(name, f"a list of {' or '.join(map(str, lengths))} numbers", found)
    return [float(one) for one in listed]


def _range(options: Section, name: str, default: list[float]) -> list[float]:
    low, high = _numbers(options, name, default, (2,))
    if not 0 < low <= high:
        options.refuse(name, "two numbers above 0, the smaller first", options.any(name))
    return [low, high]


def _around(options: Section, name: str, centre: float, default: list[float]) -> list[float]:
    """The limits that one number (as far from the centre) or two say."""
    found = _numbers(options, name, default, (1, 2))
    low, high = (centre - found[0], centre + found[0]) if len(found) == 1 else found
    if low > high:
        options.refuse(name, "a number of at least 0, or two with the smaller first", options.any(name))
    return [max(low, 0.0) if centre else low, high]


def _sides(options: Section) -> list[int]:
    found = options.any("size")
    sides = list(found) if isinstance(found, Sequence) and not isinstance(found, str) else [found]
    if len(sides) not in (1, 2) or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in sides):
        options.refuse("size", "a number of pixels, or [height, width]", found)
    return sides


def _interpolation(options: Section) -> str:
    return options.word("interpolation", ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"), "bilinear")
