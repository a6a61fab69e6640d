"""A folder of finished cells: any number of processes on any number of machines write to it.

``manifest.json`` says which sweep it is; ``cells/`` holds a netCDF file for each finished cell,
named by a digest of all that determines it; ``claims/`` says who computes what; ``failed/`` has the
traceback of each cell that was set aside.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retvar import cache
from retvar.errors import InputError
from retvar.files import write_text
from retvar.format import listed
from retvar.sweep import leases
from retvar.sweep.plan import Cell, Plan, digest, identity
from retvar.sweep.spec import Sweep

if TYPE_CHECKING:
    import xarray

__all__ = ["Store"]

MANIFEST = "manifest.json"
PARTS = ("cells", "claims", "failed")
FORMAT = 1  # of the folder
AGAIN = "run the sweep again, which computes this cell anew"


class Store:
    """The finished cells of one plan.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> folder = Path(tempfile.mkdtemp()) / "out"
    >>> store = Store.made(folder, sweep.plan())
    >>> cell = store.plan.cells[0]
    >>> store.sound(cell)
    False
    >>> store.write(cell, store.plan.compute(cell))
    >>> store.sound(cell), Store.opened(folder).read(cell).sizes["run"]
    (True, 2)
    """

    def __init__(self, folder: Path, plan: Plan, stale: float = leases.STALE) -> None:
        self.folder, self.plan, self.stale = folder, plan, leases.seconds("stale", stale)
        self.notes: list[str] = []  #: what people may want to know about the opening

    @classmethod
    def made(
        cls, folder: str | Path, plan: Plan, stale: float = leases.STALE, *, extend: bool = False
    ) -> Store:
        """The store of `plan`, made if it is not there; refused if it is another's.

        With `extend` it may be that of a smaller sweep, to which `plan` adds domains, learners or
        runs: cells that both have are kept.
        """
        store = cls(Path(folder), plan, stale)
        try:
            for part in PARTS:
                (store.folder / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"cannot be made a store: {error.strerror or error}"
            raise InputError("out", folder, problem) from None
        found = _manifest(store.folder)
        if found is None:
            store._begin()
            found = _manifest(store.folder)
        if found is None:
            raise InputError("out", folder, f"its {MANIFEST} cannot be read back")
        if extend:
            store._extend(found)
        else:
            _refuse_version(store.folder, found)
            _refuse_other(store.folder, found, plan)
        store.tidy()
        return store

    @classmethod
    def opened(cls, folder: str | Path, stale: float = leases.STALE) -> Store:
        """A store that is there, with the sweep that its manifest tells.

        One that was made by other versions can be read, but not gone on with.
        """
        path = Path(folder)
        if not (path / MANIFEST).is_file():
            raise InputError("folder", path, "holds no sweep; `retvar sweep run` makes one")
        found = _manifest(path)
        if found is None:
            remedy = "is damaged; `retvar sweep run` with the specification writes it again"
            raise InputError("manifest", path / MANIFEST, remedy)
        _refuse_format(path, found)
        store = cls(path, _plan_of(found), stale)
        _refuse_other(path, found, store.plan)
        if store.others:
            store.notes.append(f"{path} was made with {store.others}")
        return store

    @property
    def others(self) -> str:
        """The versions by which it was made, where they are others."""
        return _others(self.plan.made_with)

    def _begin(self) -> None:
        """Write the manifest, unless what is there belongs to another sweep."""
        path = self.folder / MANIFEST
        strangers = self._strangers()
        if strangers:
            remedy = (
                f"holds {len(strangers):,} cells of another specification or version, and its "
                f"{MANIFEST} is missing or damaged; give another folder, or move them away"
            )
            raise InputError("out", self.folder, remedy)
        if path.exists():
            self.notes.append(f"{path} was damaged and is written again")
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise InputError("out", path, f"cannot be replaced: {error.strerror}") from None
        _write_new(path, _text_of(self.plan))

    def _extend(self, found: dict[str, Any]) -> None:
        """Become the store of a larger plan; cells go that are part of a larger one now."""
        _refuse_version(self.folder, found)
        smaller = _plan_of(found)
        missing = self.plan.beyond(smaller)
        if missing:
            remedy = f"has {missing}, which this specification has not; extending can only add"
            raise InputError("store", self.folder, remedy)
        if smaller.digest != self.plan.digest:
            more = self.plan.count - len(set(self.plan.keys) & set(smaller.keys))
            self.notes.append(f"{self.folder} is extended; {more:,} cells are new")
            write_text(self.folder / MANIFEST, _text_of(self.plan))
        for path in self._strangers():
            path.unlink(missing_ok=True)

    def _strangers(self) -> list[Path]:
        """Finished cells that are not of this plan."""
        own = set(self.plan.keys)
        return [path for path in (self.folder / "cells").glob("*.nc")
                if path.stem not in own and not path.name.startswith(".")]  # fmt: skip

    # ------------------------------------------------------------------ cells

    def key(self, cell: Cell) -> str:
        """What determines it, as a digest."""
        return self.plan.keys[cell.number]

    def path(self, cell: Cell) -> Path:
        """Where its result is, or will be."""
        return self.folder / "cells" / f"{self.key(cell)}.nc"

    def has(self, cell: Cell) -> bool:
        """Whether there is a file for it, sound or not."""
        return self.path(cell).exists()

    def sound(self, cell: Cell) -> bool:
        """Whether it is there, with the right checksum."""
        seal = cache.seal_of(self.path(cell))
        return seal is not None and seal.key == self.key(cell)

    def read(self, cell: Cell) -> xarray.Dataset:
        """The result, checked."""
        return cache.read(self.path(cell), self.key(cell), AGAIN)

    def write(self, cell: Cell, data: xarray.Dataset) -> None:
        """Keep a result; the file appears whole or not at all."""
        cache.write(self.path(cell), data, self.key(cell), classic=True)

    def contents(self) -> str | None:
        """A digest of what all cells hold, whatever computed them; None while some are missing."""
        seals = [cache.seal_of(self.path(cell)) for cell in self.plan.cells]
        if any(s is None or s.key != k for s, k in zip(seals, self.plan.keys, strict=True)):
            return None
        return digest([seal.contents for seal in seals if seal is not None])

    # ------------------------------------------------------------------ who works, what failed

    def claim(self, cell: Cell) -> leases.Claim | None:
        """Claim a cell; None where somebody else is at it."""
        if self.others:
            remedy = f"was made with {self.others}; go on with that version"
            raise InputError("store", self.folder, remedy)
        return leases.take(self._claim(cell), self.stale)

    def claimed(self, cell: Cell) -> bool:
        """Whether somebody is at it."""
        return leases.alive(self._claim(cell), self.stale)

    def holder(self, cell: Cell) -> str:
        """Who is at it, in words."""
        return leases.holder(self._claim(cell))

    def _claim(self, cell: Cell) -> Path:
        return self.folder / "claims" / self.key(cell)

    def failure(self, cell: Cell) -> Path:
        """Where the traceback is if it was set aside."""
        return self.folder / "failed" / f"{self.key(cell)}.txt"

    def set_aside(self, cell: Cell, trace: str) -> None:
        """Note that a cell cannot be computed."""
        write_text(self.failure(cell), f"{self.plan.name(cell)}\n\n{trace}")

    def failed(self) -> list[Cell]:
        """Cells that were set aside."""
        names = {path.stem for path in (self.folder / "failed").glob("*.txt")}
        return [cell for cell in self.plan.cells if self.key(cell) in names]

    def tidy(self) -> None:
        """Remove what writers left behind that were killed; nothing that a live one needs."""
        for folder in (self.folder, *(self.folder / part for part in PARTS)):
            for path in _within(folder):
                with contextlib.suppress(OSError, InputError):
                    self._tidy(path)

    def _tidy(self, path: Path) -> None:
        hidden, folder = path.name.startswith("."), path.parent
        if folder in (self.folder, self.folder / "failed"):
            if hidden and leases.abandoned(path, self.stale):
                path.unlink(missing_ok=True)
        elif folder == self.folder / "cells":
            claim = self.folder / "claims" / path.name[1:].partition("-")[0]
            if hidden and not leases.alive(claim, self.stale):
                path.unlink(missing_ok=True)
        elif path.name.startswith(".now-"):
            path.unlink(missing_ok=True)  # its owner has it open, and needs no name
        elif leases.void(path, self.stale):
            if hidden:
                path.unlink(missing_ok=True)
            elif (taken := leases.take(path, self.stale)) is not None:
                taken.release()


def _within(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


# ---------------------------------------------------------------------- the manifest


def _text_of(plan: Plan) -> str:
    told = {
        "format": FORMAT,
        "made_with": plan.made_with,
        "cells": plan.count,
        "digest": plan.digest,
        "sweep": plan.sweep.plain(),
    }
    return json.dumps({**told, "checksum": digest(told)}, indent=1, ensure_ascii=False) + "\n"


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What the manifest says; None where there is none, or a damaged one."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
        checksum = found.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return found if digest(found) == checksum else None


def _write_new(path: Path, text: str) -> None:
    """Write a file if there is none yet: of two at the same time, the first is kept."""
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex}-{os.getpid()}")
    try:
        for _ in range(3):  # one on another machine may take it for abandoned
            temporary.write_text(text, encoding="utf-8")
            with contextlib.suppress(FileNotFoundError):
                os.link(temporary, path)
                return
    except FileExistsError:
        return
    except OSError:  # not every file system has links
        pass
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    write_text(path, text)


def _plan_of(found: dict[str, Any]) -> Plan:
    return Plan.of(Sweep.from_dict(found["sweep"]), found["made_with"])


def _others(made: dict[str, str]) -> str:
    """In what versions differ, empty where they do not."""
    here = identity()
    differ = [name for name in here if made.get(name) != here[name]]
    return ", ".join(f"{name} {made.get(name)}, not {here[name]}" for name in differ)


def _refuse_format(folder: Path, found: dict[str, Any]) -> None:
    made = found.get("made_with", {})
    for name, given, here in (
        ("format", found.get("format"), FORMAT),
        ("cells of format", made.get("cells"), identity()["cells"]),
    ):
        if given != here:
            raise InputError("store", folder, f"has {name} {given}, not {here}")


def _refuse_version(folder: Path, found: dict[str, Any]) -> None:
    _refuse_format(folder, found)
    told = _others(found["made_with"])
    if told:
        remedy = f"was made with {told}; go on with that version, or give another folder"
        raise InputError("store", folder, remedy)


def _refuse_other(folder: Path, found: dict[str, Any], plan: Plan) -> None:
    if found["digest"] == plan.digest and found["cells"] == plan.count:
        return
    ours, theirs = plan.sweep.plain(), found["sweep"]
    differ = listed(_differences(theirs, ours)) or "what a package gives for its domains"
    remedy = (
        f"was made by another specification, {theirs.get('name')!r}; they differ in {differ}; "
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
