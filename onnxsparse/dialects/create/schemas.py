"""RecipeVariables: what a created recipe may be told beside its words, with a help text for each value.

    RecipeVariables(num_epochs=10, target="vnni", sparsity="0.9")

1. A value is made what its field declares, also of a text. One that means nothing is an error that names it.
2. Names that no field has are ignored, with one warning for all of them.
3. It remembers which values were given: a default gives way where target or pruning demand something else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Union

from onnxsparse import targets
from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.recipes.modifiers.magnitude import MagnitudePruningModifier
from onnxsparse.recipes.modifiers.masked import GROUPS
from onnxsparse.recipes.modifiers.modifier import as_declared

TENSORRT = "tensorrt"
MASKS = {"vnni": "block4", TENSORRT: "2:4", "ampere": "2:4", "amba": "unstructured"}
"""The mask type that each target demands."""
GIVEN = "_given"


def _variable(
    default: Any, meaning: str, least: float = -math.inf, most: float = math.inf, inside: bool = False
) -> Any:
    """A field from `least` to `most`; with `inside` it may be neither of the two."""
    return field(default=default, metadata={"description": meaning, "range": (least, most, inside)})


@dataclass(init=False)
class RecipeVariables:
    """Values of a recipe that `create.initialize` makes; `RecipeVariables.schema()` has what each of them means."""

    num_epochs: float = _variable(20.0, "how many epochs the recipe lasts", 0, 1e6, inside=True)
    init_lr: float = _variable(1e-3, "the learning rate at the start", 0, 1)
    final_lr: float = _variable(1e-7, "the learning rate at the end", 0, 1)
    target: str | None = _variable(
        None,
        "the hardware that is to use the zeros: vnni (blocks of 4) or tensorrt (2:4); also ampere, which is tensorrt, "
        "and amba; none for unstructured zeros",
    )
    sparsity: float = _variable(
        0.8, "the share of the weights that is zero at the end; N:M says it by itself", 0, 1, True
    )
    mask_type: str | tuple[int, ...] = _variable(
        "unstructured",
        "the layout of the zeros: unstructured, block4, N:M such as 2:4, or a block [outputs, inputs]; by default that "
        "of the target",
    )
    global_sparsity: bool = _variable(
        True,
        "whether the smallest weights of all layers go, in place of the same share of each; N:M and movement pruning "
        "go layer by layer",
    )
    hardness: float = _variable(
        0.5, "of distillation: the share of the teacher in the loss; the rest is the loss of the script", 0, 1
    )
    temperature: float = _variable(2.0, "of distillation: what the logits of both are divided by", 0, math.inf, True)

    def __init__(self, **given: Any) -> None:
        object.__setattr__(self, GIVEN, set())
        known = {one.name: one for one in fields(self)}
        for one in known.values():
            object.__setattr__(self, one.name, one.default)
        unknown = [name for name in given if name not in known]
        if unknown:
            hint = nearest(unknown[0], known) or f" (known: {', '.join(known)})"
            warnings.warn(f"recipe_variables: {', '.join(unknown)[:200]} is ignored{hint}", stacklevel=2)
        for name, value in given.items():
            if name in known:
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        one = next((one for one in fields(self) if one.name == name), None)
        if one is None:
            raise AttributeError(f"RecipeVariables has no variable {name!r}{nearest(name, self.dict())}")
        object.__setattr__(self, name, _CHECKS.get(name, _plain)(one, value))
        self.fields_set.add(name)

    @property
    def fields_set(self) -> set[str]:
        """The names of the values that were given, in place of a default."""
        found: set[str] = getattr(self, GIVEN)
        return found

    def dict(self) -> Mapping[str, Any]:
        """All values by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def parse_obj(cls, given: Mapping[str, Any]) -> RecipeVariables:
        """Of a mapping of names to values."""
        return cls(**{str(name): value for name, value in given.items()})

    @classmethod
    def schema(cls) -> Mapping[str, Any]:
        """Type, default and help text of every value."""
        told = {
            one.name: {"type": str(one.type), "default": one.default, "description": one.metadata["description"]}
            for one in fields(cls)
        }
        return {"title": cls.__name__, "type": "object", "properties": told}


Given = Union[RecipeVariables, Mapping[str, Any], None]


def variables_of(given: Given) -> RecipeVariables:
    """The variables that a call gave: the schema, a mapping, or nothing."""
    if given is None:
        return RecipeVariables()
    if isinstance(given, RecipeVariables):
        return given
    if isinstance(given, Mapping):
        return RecipeVariables.parse_obj(given)
    raise OptionError(f"recipe_variables is a RecipeVariables or a mapping of names to values, not {brief(given)}")


def _plain(one: Field[Any], value: Any) -> Any:
    """The value in the type of its field, and in its range."""
    try:
        made = as_declared(str(one.type), value)
    except OptionError as error:
        raise OptionError(f"recipe_variables: {one.name}: {error}") from None
    least, most, inside = one.metadata["range"]
    if isinstance(made, float) and not (least < made < most if inside else least <= made <= most):
        end = f" to {most:g}" if most < math.inf else ""
        start = (
            f"between {least:g} and {most:g}"
            if inside and end
            else f"above {least:g}"
            if inside
            else f"from {least:g}{end}"
        )
        raise OptionError(f"recipe_variables: {one.name} is a number {start}, not {made:g}")
    return made


def _target(one: Field[Any], value: Any) -> str | None:
    found = _plain(one, value)
    if found is None or found.lower() in ("", "none", "null"):
        return None
    target = str(found).lower()
    if target.partition(":")[0] not in MASKS:
        hint = nearest(target, MASKS) or f" (known: {', '.join(MASKS)})"
        raise OptionError(f"recipe_variables: target {target!r:.40} is not known{hint}")
    if target != TENSORRT:
        targets.parse(target)  # its profile or chip
    return target


def _mask(one: Field[Any], value: Any) -> Any:
    """Whatever a modifier takes, in the words of here."""
    found = _plain(one, value)
    try:
        MagnitudePruningModifier(0.0, 1.0, 1.0, (), found, init_sparsity=0.0, final_sparsity=_level(found))
    except OptionError as error:
        raise OptionError(f"recipe_variables: {error}") from None
    return found


def _level(mask: Any) -> float:
    found = GROUPS.fullmatch(mask) if isinstance(mask, str) else None
    return 0.5 if found is None or int(found[1]) >= int(found[2]) else 1 - int(found[1]) / int(found[2])


_CHECKS: dict[str, Callable[[Field[Any], Any], Any]] = {"target": _target, "mask_type": _mask}
