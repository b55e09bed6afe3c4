"""Checks the identity of a ring's files: the owner and number in each header against the file names and each other.

A header's number may be wrong, or the header may be another file's; whole files may have been exchanged, and their
headers show which is which; or a file may be a copy of another, or of another journal. A file that does not belong here
is omitted: reading it would bring back messages that were consumed long ago or were never this queue's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qstore.formats.rhm.file_header import FILE_NUMBER_OFFSETS, FileHeader
from qstore.formats.rhm.jinf import JournalInfo
from qstore.store.damage import Damage
from qstore.store.damage_effects import Effect
from qstore.store.damage_kinds import DamageKind
from qstore.store.journal.ring.order import RingFile


def leave_out_strangers(
    files: Sequence[RingFile], version: int, info: JournalInfo | None, damage: list[Damage]
) -> None:
    """Omit files of another version, or (version 2) of another queue or incarnation.

    Args:
        files: the files of the ring.
        version: the journal's.
        info: the content of the info file; without it the majority of the files decides.
        damage: receives the damage found.
    """
    identities = Counter(owner_of(file.header) for file in files if file.header and file.header.version == version)
    own = (info.queue_id, info.incarnation) if info is not None else None
    believed = own if own in identities else next(iter(dict(identities.most_common(1))), None)
    for file in files:
        if file.header is None:
            continue
        if file.header.version != version:
            recorded = file.header.version
            found = Damage(file.path, 0, None, DamageKind.FILE_OF_OTHER_VERSION, recorded=recorded, version=version)
        elif believed is not None and owner_of(file.header) != believed:
            found = _of_other_incarnation(file.path, file.header, believed)
        else:
            continue
        damage.append(found)
        file.leave_out()


def owner_of(header: FileHeader) -> tuple[int, int]:
    """Version 2: queue id and incarnation."""
    return header.queue_id, header.incarnation


def _of_other_incarnation(path: str, header: FileHeader, believed: tuple[int, int]) -> Damage:
    return Damage(
        path,
        0,
        None,
        DamageKind.FILE_OF_OTHER_INCARNATION,
        recorded_queue=header.queue_id,
        recorded_incarnation=header.incarnation,
        queue=believed[0],
        incarnation=believed[1],
    )


def by_number(files: Sequence[RingFile], damage: list[Damage]) -> list[RingFile]:
    """The files of a ring in its order, by their numbers, which may differ from those in their names."""
    if len(files) == 1:
        return list(files)  # the name of a single file means nothing
    for file in files:
        _believe_second_number(file, damage)
    numbers = [file.number for file in files]
    places = {file.number: file for file in files if file.header is not None and _number(file) == file.number}
    moved = [file for file in files if file.header is not None and _number(file) != file.number]
    known = set(numbers)
    all_go = all(file.goes_with_header for file in moved)
    for file in moved:
        assert file.header is not None
        number, version = _number(file), file.header.version
        if number not in known or not (file.goes_with_header if version == 2 else all_go):
            effect = Effect.SALT_NOT_BELIEVED if version == 2 else Effect.NAME_BELIEVED_ONLY
            file.header = None
        elif number in places:
            effect = Effect.NUMBER_TAKEN
            file.leave_out()
        else:
            effect = Effect.HEADER_BELIEVED
            places[number] = file
        offset, kind = FILE_NUMBER_OFFSETS[version], DamageKind.FILE_NUMBER
        damage.append(Damage(file.path, offset, None, kind, effect, recorded=number, number=file.number))
    rest = [file for file in files if places.get(_number(file)) is not file]
    for file in list(rest):
        if places.setdefault(file.number, file) is file:
            rest.remove(file)
    free = [number for number in numbers if number not in places]
    places.update(dict(zip(free, rest, strict=True)))
    return [places[number] for number in numbers]


def _number(file: RingFile) -> int:
    return file.number if file.header is None else file.header.file_number


def _believe_second_number(file: RingFile, damage: list[Damage]) -> None:
    """Version 1 has the number twice in the header: if the second one agrees with the name, the first is wrong."""
    header = file.header
    if header is None or header.version != 1 or header.file_number == file.number:
        return
    if header.logical_number != file.number:
        return
    kind, recorded = DamageKind.FILE_NUMBERS_DIFFER, header.file_number
    damage.append(Damage(file.path, FILE_NUMBER_OFFSETS[1], None, kind, recorded=recorded, number=file.number))
    file.header = replace(header, file_number=file.number)


def tell_zeros(placed: Sequence[RingFile], damage: list[Damage], *, has_creation_headers: bool) -> None:
    """Report files that look as if never written, though a later one was written; and files that are all zeros.

    Args:
        placed: the files of the ring by number.
        damage: receives the damage found.
        has_creation_headers: whether each file was created with a header, so that even one never entered has one.
    """
    last = max((place for place, file in enumerate(placed) if file.header is not None), default=0)
    for place, file in enumerate(placed):
        if file.used:
            continue
        if place < last:
            kind = DamageKind.FILE_ALL_ZEROS if file.is_blank else DamageKind.FILE_EMPTY
            damage.append(Damage(file.path, 0, None, kind, later=placed[last].number))
            file.leave_out()
        elif has_creation_headers and file.is_blank:
            damage.append(Damage(file.path, 0, None, DamageKind.CREATION_HEADER_MISSING))
