"""Expand the tables of a sweep into its learners and domains."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from retvar import domains
from retvar.engine.streams import stream_of
from retvar.errors import InputError
from retvar.learners import LEARNERS, Learner
from retvar.mdp import MDP
from retvar.mdp.toml import parse_mdp
from retvar.sweep.convert import suggest
from retvar.sweep.grids import Range, steps_of
from retvar.sweep.spec import STEPS, Domain, Learners, Sweep

__all__ = ["DomainInstance", "digest", "domains_of", "learner_key", "learners_of"]

METHODS = {kind.method: kind for kind in LEARNERS.values()}
MAX_LEARNERS = 100_000  # of one table


def digest(data: Any) -> str:
    """A digest of data that JSON can hold.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------------- learners


def learners_of(sweep: Sweep) -> list[Learner]:
    """All learners; the method varies fastest, so that equal value nodes are consecutive."""
    found: dict[str, tuple[int, Learner]] = {}
    for i, table in enumerate(sweep.learners):
        for learner in _learners_of_table(f"learners[{i}]", table):
            key = learner_key(learner)
            if key in found:
                other = found[key][0]
                problem = "is there twice" if other == i else f"is in learners[{other}] too"
                name = f"{type(learner).__name__} alpha={learner.alpha}"
                raise InputError(f"learners[{i}]", name, f"{problem}; ranges must not overlap")
            found[key] = (i, learner)
    return [learner for _, learner in found.values()]


def learner_key(learner: Learner) -> str:
    """A digest that is equal for equal learners, whether a default is given explicitly or not."""
    nodes = [[repr(node.step), node.kappa, np.asarray(node.initial).tolist()]
             for node in learner.nodes()]  # fmt: skip
    rest = [learner.gamma, learner.lam, learner.estimand, learner.learn_value]
    return digest([learner.method, nodes, rest])


def _learners_of_table(field: str, table: Learners) -> Iterator[Learner]:
    """The learners of one table."""
    methods = table.method if isinstance(table.method, list) else [table.method]
    if not methods:
        raise InputError(f"{field}.method", "[]", "must hold at least one")
    for method in methods:
        if method not in METHODS:
            raise InputError(f"{field}.method", method, suggest(method, METHODS))
    if len(set(methods)) < len(methods):
        raise InputError(f"{field}.method", methods, "a method is there twice; leave one out")
    own = {m: {f.name for f in dataclasses.fields(METHODS[m])} for m in methods}
    spans, equal = _spans(field, table, set().union(*own.values()))
    count = len(methods) * math.prod(map(len, spans.values()))
    if count > MAX_LEARNERS:
        remedy = f"must be at most {MAX_LEARNERS:,}; let settings have fewer values"
        raise InputError(field, f"{count:,} learners", remedy)
    done = set()
    for values in itertools.product(*spans.values()):
        chosen = dict(zip(spans, values, strict=True))
        chosen |= {name: chosen[other] for name, other in equal.items()}
        for method in methods:
            settings = {name: x for name, x in chosen.items() if name in own[method]}
            combination = (method, *settings.items())
            if combination in done:
                continue  # only a setting that this method lacks differs
            done.add(combination)
            try:
                yield METHODS[method](**settings)
            except InputError as error:
                raise InputError(f"{field}.{error.field}", error.value, error.remedy) from None


def _spans(
    field: str, table: Learners, known: set[str]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """The values of each setting, and the settings that are set equal to another one."""
    given = {n: getattr(table, n) for n in table.__struct_fields__ if n != "method"}
    given = {name: x for name, x in given.items() if x is not None}
    spans: dict[str, list[Any]] = {}
    equal: dict[str, str] = {}
    for name, x in given.items():
        where = f"{field}.{name}"
        if name not in known:
            raise InputError(where, x, "none of the methods has this setting; leave it out")
        if isinstance(x, str) and name != "estimand":
            equal[name] = x
            continue
        spans[name] = _values(where, steps_of(where, x) if name in STEPS else x)
    for name, other in equal.items():
        if other not in spans:
            remedy = suggest(other, spans).replace("unknown", "is no setting with numbers here")
            raise InputError(f"{field}.{name}", other, remedy)
    return spans, equal


def _values(field: str, given: Any) -> list[Any]:
    values = given.values(field) if isinstance(given, Range) else given
    values = values if isinstance(values, list) else [values]
    if not values:
        raise InputError(field, "[]", "is empty; must hold at least one value")
    if len(set(values)) < len(values):
        twice = next(x for x in values if values.count(x) > 1)
        raise InputError(field, twice, "is there twice; values must differ")
    return values


# ---------------------------------------------------------------------- domains


@dataclass(frozen=True)
class DomainInstance:
    """One MDP of a sweep; it is built when needed.

    >>> DomainInstance("chain", Domain(id="chain")).mdp().n_states
    4
    """

    label: str
    spec: Domain
    seed: int | None = None  #: of a random MDP

    def mdp(self) -> MDP:
        """Build the MDP."""
        spec = self.spec
        if spec.random is not None:
            mdp = domains.random_mdp(**spec.random, seed=self.seed or 0)
        elif spec.file is not None:
            return parse_mdp(spec.text or "", spec.file, spec.gamma)
        else:
            return domains.find(str(spec.id), gamma=spec.gamma, **(spec.options or {}))
        return mdp if spec.gamma is None else mdp.replace(gamma=spec.gamma)

    @cached_property
    def key(self) -> str:
        """A digest of everything that determines the MDP and its policies."""
        d = self.spec
        parts: list[Any] = [d.id, d.random, d.options, d.text, d.gamma, d.target, d.behaviour]
        return digest([*parts, self.seed, _mdp_digest(self.mdp()) if d.kind == "gymnasium" else ""])


def _mdp_digest(mdp: MDP) -> str:
    """A digest of the tables of an MDP that comes from another package."""
    columns = [*mdp.edges, mdp.lam, mdp.start, *(p.probabilities for p in mdp.policies.values())]
    return hashlib.sha256(b"".join(np.ascontiguousarray(c).tobytes() for c in columns)).hexdigest()


def domains_of(sweep: Sweep) -> list[DomainInstance]:
    """All MDPs; one of each table is built to check it."""
    found: list[DomainInstance] = []
    for i, spec in enumerate(sweep.domains):
        instances = [DomainInstance(_label(spec, seed), spec, seed) for seed in _seeds(spec)]
        _check(f"domains[{i}]", instances[0], sweep)
        found += instances
    counts: dict[str, int] = {}
    labels: dict[str, str] = {}
    for number, domain in enumerate(found):
        if domain.key in labels:
            remedy = f"is the same as {labels[domain.key]}; domains must differ"
            raise InputError("domains", domain.label, remedy)
        counts[domain.label] = counts.get(domain.label, 0) + 1
        if counts[domain.label] > 1:
            label = f"{domain.label} ({counts[domain.label]})"
            found[number] = dataclasses.replace(domain, label=label)
        labels[domain.key] = found[number].label
    return found


def _seeds(domain: Domain) -> list[int | None]:
    if domain.random is None:
        return [None]
    if domain.seeds is None:
        return [0]
    if isinstance(domain.seeds, list):
        return list(domain.seeds)
    return list(range(domain.seeds.first, domain.seeds.first + domain.seeds.count))


def _label(domain: Domain, seed: int | None) -> str:
    if domain.random is not None:
        sizes = [str(domain.random[n]) for n in ("states", "actions", "branching")
                 if n in domain.random]  # fmt: skip
        return f"{domain.name or 'random ' + '×'.join(sizes)} #{seed}"
    if domain.name is not None:
        return domain.name
    return str(domain.id or domain.file).removesuffix(".toml")


def _check(field: str, domain: DomainInstance, sweep: Sweep) -> None:
    """Build a domain and its stream; errors name the path of the field."""
    spec = domain.spec
    try:
        mdp = domain.mdp()
        stream_of(mdp, spec.target, spec.behaviour, sweep.seed)
    except InputError as error:
        raise _with_path(field, spec, error) from None
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise InputError(field, spec.kind, f"cannot be built: {error}") from None
    if sweep.episodes is not None and not mdp.episodic:
        remedy = f"{domain.label} has no edge that ends an episode; give steps"
        raise InputError("episodes", sweep.episodes, remedy)


def _with_path(field: str, domain: Domain, error: InputError) -> InputError:
    """The error with the path of the field in the specification."""
    if error.field == "domain":
        remedy = suggest(str(domain.id), [*domains.BUILT_IN, "gymnasium:ID"])
        return InputError(f"{field}.id", error.value, remedy)
    if domain.file is not None:
        return InputError(f"{field}.file: {error.field}", error.value, error.remedy)
    if error.field == "option":
        return InputError(f"{field}.options", error.value, error.remedy)
    name = re.split(r"[\[.]", error.field)[0]
    below = "random." if domain.random is not None and name in domain.random else ""
    return InputError(f"{field}.{below}{error.field}", error.value, error.remedy)
