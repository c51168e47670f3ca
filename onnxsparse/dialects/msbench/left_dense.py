"""Excluded layers: which stay dense because a configuration says so, and which of its names match no layer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxsparse.dialects.msbench.configuration import NOT_PRUNED, Configuration, words
from onnxsparse.errors import nearest
from onnxsparse.planning.names import NamedWeights
from onnxsparse.train.layers import Site


@dataclass(frozen=True)
class Excluded:
    """Parts of names, whole names, and whatever layers are inside of."""

    keywords: Sequence[str]
    exact: Sequence[str]
    leaves: Sequence[str]

    @classmethod
    def of(cls, config: Configuration) -> Excluded:
        keywords, exact = (words(config.scheduler.kwargs[name], name) for name in NOT_PRUNED)
        return cls(keywords, exact, config.leaf_module)

    def reasons(self, sites: Sequence[Site]) -> dict[str, str]:
        """Why layers stay dense, by key; layers that do not are missing."""
        whole = {sites[place].key: word for word in reversed(self.exact) for place in self._layer(word, sites)}
        return {site.key: why for site in sites if (why := self._reason(site, whole))}

    def _layer(self, word: str, sites: Sequence[Site]) -> list[int]:
        """The places of the layer that a whole name is of."""
        known = NamedWeights(site.answers for site in sites)
        return known.meant(word, "no_prune_layer", "; no_prune_keyword takes a part of many")

    def _reason(self, site: Site, whole: Mapping[str, str]) -> str:
        names = _names(site)
        word = next((word for word in self.keywords if any(word in name for name in names)), None)
        if word is not None:
            return f"no_prune_keyword {word}"
        if site.key in whole:
            return f"no_prune_layer {whole[site.key]}"
        leaf = next((leaf for leaf in self.leaves if leaf in site.within or leaf in names), None)
        return f"leaf_module {leaf}" if leaf is not None else ""

    def unknown(self, sites: Sequence[Site], modules: Collection[str] = ()) -> list[str]:
        """A line for each name that is that of no layer; `leaf_module` may name any of the modules."""
        names = {one for site in sites for one in _names(site)}
        found = names | {one for site in sites for one in site.within}
        keywords = [word for word in self.keywords if not any(word in one for one in found)]
        exact = [word for word in self.exact if not self._layer(word, sites)]
        return [
            *unknown("no_prune_keyword", keywords, ()),
            *unknown("no_prune_layer", exact, names - set(exact)),
            *unknown("leaf_module", [leaf for leaf in self.leaves if leaf not in modules], found),
        ]


def _names(site: Site) -> tuple[str, ...]:
    return (*site.names, *site.answers.every)


def unknown(option: str, words: Iterable[str], known: Iterable[str]) -> list[str]:
    known = set(known)
    return [
        f"{option} {word!r:.60} names no layer{nearest(word, sorted(known))}" for word in words if word not in known
    ]


def unfit(sites: Iterable[Site], reasons: Mapping[str, str]) -> list[str]:
    """A line for each reason why layers do not fit, with their names."""
    by_reason: dict[str, list[str]] = {}
    for site in sites:
        if site.key in reasons:
            by_reason.setdefault(reasons[site.key], []).append(site.name)
    return [f"left dense: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]
