"""The plan record in a model's metadata: what was done, written for `verify` to read.

    onnxsparse.version        the version that wrote it
    onnxsparse.pattern        the pattern asked for; `mixed` where a plan had several
    onnxsparse.sparsity       the level asked for, where the pattern takes one
    onnxsparse.target         the device, where one was named
    onnxsparse.input_digest   what the dense file is recognised by (`Model.digest`); it survives later runs, as does
                              `onnxsparse.input_sha256`, which earlier files have in its place
    onnxsparse.plan           JSON: for every pruned weight its pattern and count (for levels of a device also how many
                              outputs and numbers were zero before, where that matters), for every dense one the reason
    onnxsparse.calibration    JSON: by which score, solver, allocation, ... samples decided it, where they did
    onnxsparse.schedule       JSON: which iteration, epoch or level of which scheduler or recipe masks are of

While masks are in the graph the same keys stand under `onnxsparse.mask.`, so that dropping the masks drops them too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse.graph.model import Model
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.recorded import MASKED, ORIGINS, PREFIX, SCHEDULE
from onnxsparse.planning.stored_params import count_zeros, empty_outputs_of
from onnxsparse.version import __version__


def record(model: Model, plan: Plan, prefix: str = PREFIX) -> None:
    """Write the plan into the metadata. The digest of the first input is kept through later runs."""
    known = {key: model.metadata.get(prefix + key) or model.metadata.get(PREFIX + key) for key in ORIGINS}
    values = {
        "version": __version__,
        "pattern": _pattern(plan),
        "sparsity": "" if plan.rule.sparsity is None else repr(plan.rule.sparsity),
        "target": plan.rule.target.text if plan.rule.target else "",
        **{key: digest or "" for key, digest in known.items()},
        "plan": _rows(plan),
        "calibration": json.dumps(dict(plan.calibration), separators=(",", ":")) if plan.calibration else "",
    }
    if not any(known.values()):
        values[ORIGINS[0]] = model.digest()
    kept = {prefix + key: value for key, value in values.items() if value}
    for key in values:
        if prefix + key not in kept:
            model.drop_metadata_key(prefix + key)
    model.set_metadata(kept)


def _pattern(plan: Plan) -> str:
    texts = {row.pattern.text for row in plan.rows if row.pattern}
    if plan.rule.pattern is not None:
        texts |= {plan.rule.pattern.text}
    return texts.pop() if len(texts) == 1 else "mixed" if texts else "none"


def _rows(plan: Plan) -> str:
    pruned = {row.name: [row.pattern.text, row.drop, *_before(row, plan)] for row in plan.rows if row.pattern}
    dense = {row.name: [row.reason, row.chosen] for row in plan.rows if row.pattern is None}
    return json.dumps({"pruned": pruned, "dense": dense}, separators=(",", ":"), ensure_ascii=False)


def _before(row: PlanRow, plan: Plan) -> list[int]:
    """What was zero before, for devices that want to know: outputs altogether, and numbers, if more than go."""
    if not plan.rule.knows_levels:
        return []
    empty, zeros = len(empty_outputs_of(row.param)), count_zeros(row.weight) or 0
    return [empty, zeros] if empty or zeros > row.drop else []


def record_moment(model: Model, moment: Mapping[str, Any]) -> None:
    """Which moment of which schedule the masks in the graph are of, and what its next masks go on from."""
    text = json.dumps(moment, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    model.set_metadata({MASKED + SCHEDULE: text})


def recount(model: Model, counts: Mapping[str, int]) -> None:
    """How many numbers of some weights are zero now, where somebody trained what decides it."""
    text = model.metadata.get(MASKED + "plan")
    if not counts or text is None:
        return
    try:
        plan = json.loads(text)
        for name, count in counts.items():
            if name in plan["pruned"]:
                plan["pruned"][name] = ["unstructured", count]
    except (ValueError, TypeError, KeyError, RecursionError):
        return  # whoever reads it says that it is damaged
    model.set_metadata({MASKED + "plan": json.dumps(plan, separators=(",", ":"), ensure_ascii=False)})


def record_joined(model: Model, parts: Sequence[Mapping[str, str]]) -> None:
    """Write into a model that is put together from others what their metadata record: the layers of all of them."""
    joined = {key: value for part in parts for key, value in part.items()}
    plans = [json.loads(part[PREFIX + "plan"]) for part in parts if PREFIX + "plan" in part]
    if plans:
        rows = {kind: {name: row for plan in plans for name, row in plan[kind].items()} for kind in ("pruned", "dense")}
        patterns = {part.get(PREFIX + "pattern", "none") for part in parts} - {"none"}
        own = patterns.pop() if len(patterns) == 1 else "mixed" if patterns else "none"
        plan = json.dumps(rows, separators=(",", ":"), ensure_ascii=False)
        joined.update({PREFIX + "plan": plan, PREFIX + "pattern": own, PREFIX + ORIGINS[0]: model.digest()})
    model.set_metadata(joined)


def settle(model: Model) -> None:
    """Masks were folded: what stood under `onnxsparse.mask.` is now simply what was done."""
    moved = {PREFIX + key[len(MASKED) :]: value for key, value in model.metadata.items() if key.startswith(MASKED)}
    model.drop_metadata(MASKED)
    model.set_metadata(moved)
