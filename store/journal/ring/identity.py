"""Whose the files of a ring are, and which: what their headers say, held against their names and each other.

A header's number may be wrong, or the header another file's; or whole files were exchanged, and their headers tell
which is which; or one was copied over another, or taken from another journal. A file that does not belong where it lies
is left out: to read it would bring back what was consumed long ago, or was never this queue's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from formats.rhm.file_header import FILE_NUMBER_OFFSETS, FileHeader
from formats.rhm.jinf import JournalInfo
from store.damage import Damage
from store.damage_effects import Effect
from store.damage_kinds import DamageKind
from store.journal.ring.order import RingFile


def leave_out_strangers(
    files: Sequence[RingFile], version: int, info: JournalInfo | None, damage: list[Damage]
) -> None:
    """Leave out files of another version, or (version 2) of another queue or incarnation.

    Args:
        files: the files of the ring.
        version: that of the journal.
        info: what the info file says; without it the majority of the files decides.
        damage: takes what is wrong.
    """
    identities = Counter(identity(file.header) for file in files if file.header and file.header.version == version)
    own = (info.queue_id, info.incarnation) if info is not None else None
    believed = own if own in identities else next(iter(dict(identities.most_common(1))), None)
    for file in files:
        if file.header is None:
            continue
        if file.header.version != version:
            told = file.header.version
            found = Damage(file.path, 0, None, DamageKind.FILE_OF_OTHER_VERSION, told=told, version=version)
        elif believed is not None and identity(file.header) != believed:
            found = _of_other_incarnation(file.path, file.header, believed)
        else:
            continue
        damage.append(found)
        file.leave_out()


def identity(header: FileHeader) -> tuple[int, int]:
    """Version 2: queue id and incarnation."""
    return header.queue_id, header.incarnation


def _of_other_incarnation(path: str, header: FileHeader, believed: tuple[int, int]) -> Damage:
    return Damage(
        path,
        0,
        None,
        DamageKind.FILE_OF_OTHER_INCARNATION,
        told_queue=header.queue_id,
        told_incarnation=header.incarnation,
        queue=believed[0],
        incarnation=believed[1],
    )


def by_number(files: Sequence[RingFile], damage: list[Damage]) -> list[RingFile]:
    """The files of a ring in the order of their numbers, which are not always those of their names."""
    if len(files) == 1:
        return list(files)  # alone, a file has no name that its number could contradict
    for file in files:
        _believe_second_number(file, damage)
    places = {file.number: file for file in files if file.header is not None and _number(file) == file.number}
    moved = [file for file in files if file.header is not None and _number(file) != file.number]
    all_go = all(file.goes_with_header for file in moved)
    for file in moved:
        assert file.header is not None
        number, version = _number(file), file.header.version
        if number >= len(files) or not (file.goes_with_header if version == 2 else all_go):
            effect = Effect.SALT_NOT_BELIEVED if version == 2 else Effect.NAME_BELIEVED_ONLY
            file.header = None
        elif number in places:
            effect = Effect.NUMBER_TAKEN
            file.leave_out()
        else:
            effect = Effect.HEADER_BELIEVED
            places[number] = file
        offset, kind = FILE_NUMBER_OFFSETS[version], DamageKind.FILE_NUMBER
        damage.append(Damage(file.path, offset, None, kind, effect, told=number, number=file.number))
    rest = [file for file in files if places.get(_number(file)) is not file]
    for file in list(rest):
        if places.setdefault(file.number, file) is file:
            rest.remove(file)
    free = (place for place in range(len(files)) if place not in places)
    places.update(dict(zip(list(free), rest, strict=True)))
    return [places[place] for place in range(len(files))]


def _number(file: RingFile) -> int:
    return file.number if file.header is None else file.header.file_number


def _believe_second_number(file: RingFile, damage: list[Damage]) -> None:
    """Version 1 has the number twice in the header: where the second one agrees with the name, the first is wrong."""
    header = file.header
    if header is None or header.version != 1 or header.file_number == file.number:
        return
    if header.logical_number != file.number:
        return
    kind, told = DamageKind.FILE_NUMBERS_DIFFER, header.file_number
    damage.append(Damage(file.path, FILE_NUMBER_OFFSETS[1], None, kind, told=told, number=file.number))
    file.header = replace(header, file_number=file.number)


def tell_zeros(placed: Sequence[RingFile], damage: list[Damage], *, has_creation_headers: bool) -> None:
    """Report files that look as if never written, though one that comes after them was; and those that are all zeros.

    Args:
        placed: the files of the ring by number.
        damage: takes what is wrong.
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
