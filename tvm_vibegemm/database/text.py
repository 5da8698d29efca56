"""The reviewable text form of a database: ``schedules/sm_XX``, loaded and written.

::

    sm_90/kernels/NAME.cu      source of a kernel
    sm_90/kernels/NAME.json    its plan, defaults left out
    sm_90/records.jsonl        one measurement a line, sorted

A kernel is named by its content (:func:`~.identity.kernel_text_hash`, recomputed on loading), so
the text holds no hash that could be wrong: an edited kernel is a different kernel, and the records
that speak of the old one are refused. The text is hostile input until it has been read whole;
nothing is added to a database before that.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..device import normalize_arch
from ..errors import DatabaseError, DeviceError
from ..hashing import digest
from .identity import canonical_plan, kernel_text_hash, parse_json
from .measurement import Measurement
from .rows import KernelRow, sort_key
from .store import Database

ORIGIN = "schedules"
RECORDS = "records.jsonl"
MAX_FILE = 4 << 20
MAX_RECORDS = 256 << 20
_ARCH = re.compile(r"sm_\d{2,3}", re.ASCII)
_NAME = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Schedules:
    """The files of a folder of schedules, as bytes by their place in it.

    Reading comes before hashing and parsing, so that what was hashed is what is parsed.
    """

    folder: Path
    files: dict[str, bytes]

    @classmethod
    def read(cls, folder: Path, *, links: bool = False) -> Schedules:
        """Read the files of the text form; anything else in the folder is left alone.

        Parameters
        ----------
        folder
            The folder of schedules.
        links
            Follow links out of the folder: for the shipped one, which some installers make of
            links, never for a folder from elsewhere.

        Raises
        ------
        DatabaseError
            When there is no such folder, or a file is too large, leads out of the folder, or
            cannot be read.
        """
        if not folder.is_dir():
            raise DatabaseError(f"schedules {folder}: no such folder")
        files: dict[str, bytes] = {}
        try:
            root = folder.resolve()
            for arch in sorted(folder.iterdir()):
                if not _ARCH.fullmatch(arch.name):
                    continue
                kernels = sorted((arch / "kernels").glob("*"))
                for path in [*kernels, arch / RECORDS]:
                    if path.suffix in (".cu", ".json", ".jsonl") and os.path.lexists(path):
                        place = path.relative_to(folder).as_posix()
                        files[place] = _read(path, None if links else root)
        except OSError as error:
            raise DatabaseError(f"{error.filename}: cannot be read ({error.strerror})") from error
        return cls(folder, files)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the places and bytes of all files."""
        return digest(
            *(part for place in sorted(self.files) for part in (place, self.files[place]))
        )

    def parse(self) -> tuple[list[KernelRow], list[Measurement]]:
        """Return the kernels and measurements.

        Raises
        ------
        DatabaseError
            Names the file, the line and the fault.
        """
        kernels: dict[str, KernelRow] = {}
        for place in sorted(self.files):
            path = PurePosixPath(place)
            if path.parent.name != "kernels":
                continue
            partner = path.with_suffix(".json" if path.suffix == ".cu" else ".cu")
            if str(partner) not in self.files:
                raise DatabaseError(f"{self.folder / place}: {partner.name} is missing beside it")
            if path.suffix == ".cu":
                row = self._kernel(path, str(partner))
                kernels[row.hash] = row
        measurements = []
        for place in sorted(self.files):
            if PurePosixPath(place).name == RECORDS:
                measurements += self._records(place, kernels)
        return list(kernels.values()), measurements

    def _kernel(self, source_at: PurePosixPath, plan_at: str) -> KernelRow:
        try:
            source = self.files[str(source_at)].decode()
        except UnicodeDecodeError as error:
            raise DatabaseError(f"{self.folder / source_at}: not UTF-8 ({error})") from error
        where = self.folder / plan_at
        try:
            text = canonical_plan(self.files[plan_at])
        except DatabaseError as error:
            raise DatabaseError(f"{where}: {error}") from error
        plan = parse_json(text)
        name, arch = plan.get("name"), plan.get("arch")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DatabaseError(f"{where}: {name!r:.80} is not a kernel name")
        if not (isinstance(arch, list) and arch and all(isinstance(item, str) for item in arch)):
            raise DatabaseError(f"{where}: arch is not a list of architectures")
        try:
            archs = tuple(sorted({normalize_arch(item) for item in arch}))
        except DeviceError as error:
            raise DatabaseError(f"{where}: {error}") from error
        folder = source_at.parts[0]
        if folder not in archs:
            raise DatabaseError(f"{where}: its plan is not for {folder}, where it stands")
        hash = kernel_text_hash(source, text)
        if source_at.stem not in (name, f"{name}-{hash[:8]}"):
            raise DatabaseError(
                f"{where}: the plan's name is {name!r}, with the hash {hash[:8]}…; "
                "the file is named otherwise"
            )
        return KernelRow(hash, name, archs, ORIGIN, source, text)

    def _records(self, place: str, kernels: dict[str, KernelRow]) -> list[Measurement]:
        arch = PurePosixPath(place).parts[0]
        found = []
        for number, line in enumerate(self.files[place].split(b"\n"), start=1):
            if not line.strip():
                continue
            where = f"{self.folder / place}:{number}"
            try:
                item = Measurement.from_json(line)
            except DatabaseError as error:
                raise DatabaseError(f"{where}: {error}") from error
            if item.arch != arch:
                raise DatabaseError(f"{where}: a measurement of {item.arch} stands under {arch}")
            if item.kernel is not None:
                if item.kernel not in kernels:
                    raise DatabaseError(
                        f"{where}: no kernel here has the hash {item.kernel} "
                        "(one that was edited has another)"
                    )
                if arch not in kernels[item.kernel].arch:
                    raise DatabaseError(f"{where}: kernel {item.kernel} is not for {arch}")
            found.append(item)
        return found


def load_schedules(database: Database, folder: str | Path) -> tuple[int, int]:
    """Add a folder of schedules to a database, all or nothing.

    Parameters
    ----------
    database
        Where to add; what is there already stays as it is.
    folder
        Holds ``sm_XX/kernels`` and ``sm_XX/records.jsonl``.

    Returns
    -------
    tuple of int
        How many kernels and how many measurements were new.

    Raises
    ------
    DatabaseError
        When a file does not fit; names the file, the line and the fault.
    """
    return database.merge(*Schedules.read(Path(folder)).parse())


def write_schedules(
    database: Database,
    folder: str | Path,
    arch: str,
    *,
    measurements: Iterable[Measurement] | None = None,
    kernels: Iterable[str] = (),
) -> list[Path]:
    """Write one architecture in text form: the same content gives the same bytes.

    Records are written last, so a reader never meets one whose kernel is not there yet. Files of
    kernels that are not among those written are left alone.

    Parameters
    ----------
    database
        Where the kernels are taken from.
    folder
        The folder of schedules; ``arch`` becomes a folder in it.
    arch
        Architecture, e.g. ``sm_90``.
    measurements
        What to write; by default all that the database has of the architecture.
    kernels
        Hashes of kernels to write beside those that the measurements name.

    Returns
    -------
    list of Path
        The files of the text form, sorted.

    Raises
    ------
    DatabaseError
        When a kernel is missing or its name is no file name, or a file cannot be written.
    """
    arch = normalize_arch(arch)
    chosen = list(database.measurements(arch=arch) if measurements is None else measurements)
    if any(item.arch != arch for item in chosen):
        raise DatabaseError(f"schedules {folder}: a measurement is not of {arch}")
    wanted = {item.kernel for item in chosen if item.kernel is not None} | set(kernels)
    rows = [row for row in database.kernels(arch) if row.hash in wanted]
    missing = wanted - {row.hash for row in rows}
    if missing:
        raise DatabaseError(f"schedules {folder}: no kernel {min(missing)!r:.80} for {arch}")
    names = Counter(row.name for row in rows)
    files: dict[Path, str] = {}
    for row in rows:
        plan = parse_json(row.plan_json)
        if not _NAME.fullmatch(row.name) or plan.get("name") != row.name:
            raise DatabaseError(f"schedules {folder}: {row.name!r:.80} is not its plan's name")
        # Versions of one kernel keep their common name, and their hash tells them apart.
        stem = row.name if names[row.name] == 1 else f"{row.name}-{row.hash[:8]}"
        base = Path(folder) / arch / "kernels" / stem
        files[base.with_suffix(".cu")] = row.source
        pretty = json.dumps(plan, indent=2, sort_keys=True, ensure_ascii=False)
        files[base.with_suffix(".json")] = pretty + "\n"
    unique = {item.id: item for item in chosen}
    lines = [item.to_json() + "\n" for item in sorted(unique.values(), key=sort_key)]
    records = Path(folder) / arch / RECORDS
    for path in sorted(files):
        _write(path, files[path])
    _write(records, "".join(lines))
    return [*sorted(files), records]


def _read(path: Path, root: Path | None) -> bytes:
    real = Path(os.path.realpath(path))  # a loop of links ends as a file that is not there
    if root is not None and not real.is_relative_to(root):
        raise DatabaseError(f"{path}: leads out of the folder {root}")
    if not real.is_file():
        raise DatabaseError(f"{path}: is not a regular file")
    limit = MAX_RECORDS if path.name == RECORDS else MAX_FILE
    if real.stat().st_size > limit:
        raise DatabaseError(f"{path}: is over {limit >> 20} MiB")
    return real.read_bytes()


def _write(path: Path, text: str) -> None:
    data = text.encode()
    try:
        if path.is_file() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o644)  # mkstemp's own mode is private
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DatabaseError(f"{path}: cannot be written ({error.strerror})") from error
