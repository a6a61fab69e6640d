"""The manifest of a store: which sweep it belongs to, and which versions made it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retvar.errors import InputError
from retvar.format import listed
from retvar.reading import read_json
from retvar.sweep.plan import Plan, digest, identity
from retvar.sweep.spec import Sweep

__all__: list[str] = []  # imported by name

MANIFEST = "manifest.json"
FORMAT = 1  # of the folder


def text_of(plan: Plan) -> str:
    """The manifest of a plan as JSON."""
    entries = {
        "format": FORMAT,
        "made_with": plan.made_with,
        "cells": plan.count,
        "digest": plan.digest,
        "sweep": plan.sweep.to_dict(),
    }
    return json.dumps({**entries, "checksum": digest(entries)}, indent=1, ensure_ascii=False) + "\n"


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest in a folder; None if it is missing or damaged."""
    try:
        found = read_json(folder / MANIFEST)
        checksum = found.pop("checksum")
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    return found if digest(found) == checksum else None


def plan_of(manifest: dict[str, Any]) -> Plan:
    """The plan that a manifest describes."""
    return Plan.from_sweep(Sweep.from_dict(manifest["sweep"]), manifest["made_with"])


def other_versions(made_with: dict[str, str]) -> str:
    """How the versions of a store differ from those in use; empty if they do not."""
    here = identity()
    differ = [name for name in here if made_with.get(name) != here[name]]
    return ", ".join(f"{name} {made_with.get(name)}, not {here[name]}" for name in differ)


def check_format(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise if the folder or its cells have another format."""
    made_with = manifest.get("made_with", {})
    for name, found, here in (
        ("format", manifest.get("format"), FORMAT),
        ("cells of format", made_with.get("cells"), identity()["cells"]),
    ):
        if found != here:
            raise InputError("store", folder, f"has {name} {found}, not {here}")


def check_versions(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise if the store was made with another format or other versions."""
    check_format(folder, manifest)
    versions = other_versions(manifest["made_with"])
    if versions:
        remedy = f"was made with {versions}; continue with that version, or give another folder"
        raise InputError("store", folder, remedy)


def check_same_sweep(folder: Path, manifest: dict[str, Any], plan: Plan) -> None:
    """Raise if the manifest is that of another sweep, and name the fields that differ."""
    if manifest["digest"] == plan.digest and manifest["cells"] == plan.count:
        return
    other = manifest["sweep"]
    fields = listed(_differences(other, plan.sweep.to_dict())) or "the domains of a package"
    remedy = (
        f"was made by another specification, {other.get('name')!r}; they differ in {fields}; "
        "give another folder, or --extend if this one only adds to it"
    )
    raise InputError("store", folder, remedy)


def _differences(a: Any, b: Any, field: str = "") -> list[str]:
    """Paths of the fields in which two specifications differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = dict.fromkeys([*a, *b])
        pairs = [(f"{field}.{n}" if field else n, a.get(n), b.get(n)) for n in names]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(f"{field}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        return [] if a == b else [field]
    return [found for where, x, y in pairs for found in _differences(x, y, where)]
