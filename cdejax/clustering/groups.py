"""Domain groups: pairs may share batches within a domain or explicitly merged ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from jaxtyping import Int

from cdejax.data.pairs import Pairs


@dataclass(frozen=True)
class TrainingPairs:
    """The training pairs of a pairs artefact, by domain group."""

    source: Pairs
    """The pairs artefact: texts, and rows of queries and documents."""
    names: Sequence[str]
    """Names of the groups."""
    group: Int[np.ndarray, "pairs"]
    """Group number of every training pair."""

    @classmethod
    def of(cls, pairs: Pairs, groups: Mapping[str, Sequence[str]]) -> TrainingPairs:
        """Groups the training pairs; raises ValueError as `group_domains` does."""
        names, group_of = group_domains(pairs.domains, groups)
        return cls(pairs, names, group_of[np.asarray(pairs.train.domain)])

    def __len__(self) -> int:
        return len(self.group)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the pairs artefact."""
        return self.source.fingerprint

    @property
    def sizes(self) -> Int[np.ndarray, "groups"]:
        """Number of pairs in each group."""
        return np.bincount(self.group, minlength=len(self.names))

    def filling(
        self, batch: int, min_domain: str
    ) -> list[tuple[str, Int[np.ndarray, "rows"]]]:
        """Name and rows of each group that fills a batch (see `check_sizes`)."""
        kept = check_sizes(self.names, self.sizes, batch, min_domain)
        return [(self.names[n], np.flatnonzero(self.group == n)) for n in kept]


def group_domains(
    domains: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> tuple[list[str], Int[np.ndarray, "domains"]]:
    """Merges domains into groups.

    Args:
      domains: names of all domains.
      groups: {new name: domains}; in a domain name, `*` matches any characters.

    Returns:
      Names of the groups (a domain not mentioned is a group of its own), and the group
      number of every domain.

    Raises:
      ValueError: a name matches no domain, a domain is in two groups, or a new name is
        also the name of a domain outside the group.
    """
    owner: dict[str, str] = {}
    for group, patterns in groups.items():
        for pattern in patterns:
            for domain in _matches(group, pattern, domains):
                if owner.setdefault(domain, group) != group:
                    raise ValueError(
                        f"plan.domain_groups: domain {domain!r} is in "
                        f"{owner[domain]!r} and in {group!r}; keep one of them."
                    )
        if group in domains and owner.get(group) != group:
            raise ValueError(
                f"plan.domain_groups: {group!r} is also a domain outside that group; "
                "choose another name or add the domain to it."
            )
    named = [owner.get(domain, domain) for domain in domains]
    names = list(dict.fromkeys(named))
    return names, np.array([names.index(name) for name in named], np.int32)


def check_sizes(
    names: Sequence[str],
    sizes: Sequence[int] | Int[np.ndarray, "groups"],
    batch: int,
    min_domain: str,
) -> list[int]:
    """Numbers of the groups that have enough rows for a batch.

    Raises:
      ValueError: a group is smaller than a batch and `min_domain` is `error`, or no
        group has enough rows.
    """
    small = [(n, int(s)) for n, s in zip(names, sizes, strict=True) if 0 < s < batch]
    if small and min_domain == "error":
        listed = ", ".join(f"{name!r} ({size} rows)" for name, size in small)
        raise ValueError(
            f"plan: {len(small)} domains are smaller than a batch of {batch}: {listed}."
            " Merge them with plan.domain_groups, lower plan.batch_size, or leave them "
            "out with plan.min_domain: drop."
        )
    kept = [number for number, size in enumerate(sizes) if size >= batch]
    if not kept:
        raise ValueError(
            f"plan: no domain has the {batch} rows of a batch. Lower plan.batch_size "
            "or merge domains with plan.domain_groups."
        )
    return kept


def _matches(group: str, pattern: str, domains: Sequence[str]) -> list[str]:
    found = [domain for domain in domains if fnmatchcase(domain, pattern)]
    if not found:
        near = difflib.get_close_matches(pattern, domains, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"plan.domain_groups.{group}: {pattern!r} matches no domain{hint} "
            f"There are {len(domains)}: {', '.join(map(repr, domains[:8]))}"
            f"{', …' if len(domains) > 8 else ''}."
        )
    return found
