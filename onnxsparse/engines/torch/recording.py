"""A match in the model's metadata, as JSON under `onnxsparse.torch.match`, and back from there.

For every parameter: tensor, scope, layout, how it was found, shape and first element, once for each copy.
"""

from __future__ import annotations

import json
import math
from typing import Any

from onnxsparse.engines.torch.layouts import GATES, PLAIN
from onnxsparse.engines.torch.match import Match, Matched
from onnxsparse.engines.torch.materialize import keys
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model

KEY = "onnxsparse.torch.match"


def record_match(model: Model, match: Match) -> None:
    """Write the match into the metadata, over an earlier one."""
    _demand_own(model, match)
    rows = {name: [_row(one) for one in (matched, *matched.copies)] for name, matched in match.matched.items()}
    parts = {"matched": rows, "aliases": match.aliases, "folded": match.folded, "refused": match.refused}
    content = {name: dict(part) for name, part in parts.items()}
    model.set_metadata({KEY: json.dumps(content, separators=(",", ":"), ensure_ascii=False)})


def _demand_own(model: Model, match: Match) -> None:
    """Every tensor that it names is in the file, and large enough for what is to lie in it."""
    if not isinstance(match, Match):
        raise OptionError(f"match is what osp.torch.match returns, not a {type(match).__name__}")
    sizes = {key: tensor.size for tensor, key in keys(model.flow.stores).items()}
    for name, first in match.matched.items():
        for one in (first, *first.copies):
            size = sizes.get((one.scope, one.tensor))
            if size is None or one.start + math.prod(one.shape) > size:
                what = "is not in this one" if size is None else f"has {size} numbers in this one, too few for it"
                raise OptionError(
                    f"the match was made from another file: tensor '{one.tensor}' of parameter '{name}' {what}; "
                    "match this file and the module"
                )


def recorded_match(model: Model) -> Match | None:
    """The match that stands in the metadata, if one does."""
    text = model.metadata.get(KEY)
    if text is None:
        return None
    try:
        content = json.loads(text)
        matched = {str(name): _matched(rows) for name, rows in content["matched"].items()}
        rest = [{str(name): str(one) for name, one in content[part].items()} for part in _TEXTS]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"the metadata entry '{KEY}' cannot be read; match the model and the module again") from error
    return Match(matched, *rest)


_TEXTS = ("aliases", "folded", "refused")


def _row(matched: Matched) -> list[Any]:
    return [matched.tensor, matched.scope, matched.layout, matched.how, list(matched.shape), matched.start]


def _matched(rows: list[list[Any]]) -> Matched:
    first, *copies = [_read(*row) for row in rows]
    return Matched(**{**vars(first), "copies": tuple(copies)})


def _read(tensor: str, scope: str, layout: str, how: str, shape: list[int], start: int) -> Matched:
    numbers = [start, *shape]
    if layout not in (*PLAIN, *GATES) or any(not isinstance(one, int) or one < 0 for one in numbers):
        raise ValueError(layout)
    return Matched(str(tensor), str(scope), layout, str(how), tuple(shape), start)
