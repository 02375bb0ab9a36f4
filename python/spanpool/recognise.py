"""What the lists of an engine's call have in common: the classes of keys with equal ranges, and the pattern of their addresses.

An engine names 8,192 ranges as lists of lists. Nearly always the keys fall into few classes of equal (sizes, offsets), and the
addresses of a class are base[r] + row[i] * stride[r]: a page's row in each layer's buffer. That is a short request, where lists are long.
"""
from __future__ import annotations

from itertools import chain
from operator import index
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

PERIODS = (1, 2, 3, 4)  # objects of a page alternate: K, V, and what a model has besides
# Addresses and the bytes of a key are below these, as those of all memory are: then no sum of them is above what 64 bits with a sign hold.
ADDRESSES, KEY_SUM = 1 << 62, 1 << 61


class Class(NamedTuple):
    """Keys of a call with equal ranges. members are their places in the call, ascending; addresses has a row for each."""

    members: Sequence[int]  # a range where they are regular
    sizes: np.ndarray  # (ranges,) int64
    offsets: np.ndarray  # (ranges,) int64
    addresses: np.ndarray  # (keys, ranges) int64
    each: int  # bytes of a key
    low: int  # the first byte of an object


def pick(column: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    """column[i] of each place i; the column itself when that is all of it, in order."""
    if isinstance(places, range) and isinstance(column, list):
        return column if places == range(len(column)) else column[places.start:places.stop:places.step]
    return [column[i] for i in places]


class Affine(NamedTuple):
    """addresses[i, r] = base[r] + row[i] * stride[r], all at least 0."""

    base: np.ndarray
    stride: np.ndarray
    row: np.ndarray


def classes(ptrs: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]], offsets: Sequence[Sequence[int]]) -> tuple[list[Class], list[int]]:
    """The classes of a call, and the places of keys whose lists are no lists of ranges: of unequal lengths, empty, or not of numbers that
    fit. The three are as long as the call's keys."""
    grouped, bad = _grouped(sizes, offsets), []
    out = []
    for members, s, o in grouped:
        try:
            out.append(_class(members, s, o, ptrs))
        except (TypeError, ValueError, OverflowError):  # one by one: a key alone is at fault
            for i in members:
                try:
                    out.append(_class([i], s, o, ptrs))
                except (TypeError, ValueError, OverflowError):
                    bad.append(i)
    return out, bad


def _class(members: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], ptrs: Sequence[Sequence[int]]) -> Class:
    n = len(sizes)
    s, o = np.array(sizes, dtype=np.int64), np.array(offsets, dtype=np.int64)
    if n == 0 or s.shape != (n,) or o.shape != (n,):
        raise ValueError("no ranges")
    of, low = s.tolist(), min(o.tolist())  # so short that Python is faster than numpy
    each = sum(of)
    if min(of) <= 0 or low < 0 or each > KEY_SUM:
        raise ValueError("ranges of no bytes, or of more than there can be")
    rows = pick(ptrs, members)
    if set(map(len, rows)) != {n}:
        raise ValueError("not as many addresses as sizes")
    for number in chain(sizes, offsets, rows[0]):  # numpy would cut a float; that the other rows are of another kind is not looked for
        index(number)
    addresses = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=n * len(rows)).reshape(len(rows), n)
    if addresses.view(np.uint64).max() >= ADDRESSES:  # those below 0 too
        raise ValueError("no address")
    return Class(members, s, o, addresses, each, low)


def _grouped(sizes: Sequence[Sequence[int]], offsets: Sequence[Sequence[int]]) -> list[tuple[Sequence[int], Sequence[int], Sequence[int]]]:
    """(places, sizes, offsets) of each class. list.count compares in C, and by identity first, as packed pools share their lists."""
    total = len(sizes)
    for period in PERIODS if total else ():
        if (period == 1 or 2 * period <= total) and all(_same(sizes[j::period]) and _same(offsets[j::period]) for j in range(period)):
            return [(range(j, total, period), sizes[j], offsets[j]) for j in range(period)]
    found: dict[object, tuple[list[int], Sequence[int], Sequence[int]]] = {}
    for i, (s, o) in enumerate(zip(sizes, offsets)):
        try:
            key: object = (tuple(s), tuple(o))
            members = found.setdefault(key, ([], s, o))[0]
        except TypeError:
            members = found.setdefault(i, ([], (), ()))[0]  # a class without ranges is refused later
        members.append(i)
    return list(found.values())


def _same(column: Sequence[Sequence[int]]) -> bool:
    try:
        return isinstance(column, list) and column.count(column[0]) == len(column)
    except (ValueError, RuntimeError):  # arrays of numpy's and tensors have no one truth
        return False


def affine(addresses: np.ndarray, origin: int, rows: Optional[np.ndarray] = None) -> Optional[Affine]:
    """The pattern of a class's addresses, if they have one. rows, when given, are tried first: then the result has those, or another
    caller's would do. Rows found here count from origin, an address at or below all of the first range's, so that calls that cut the same
    keys differently find the same rows."""
    if rows is not None:
        fitted = _fit(addresses, rows)
        if fitted is not None:
            return fitted
    first = addresses[:, 0] - origin
    apart = first - first[0]
    unit = int(np.gcd.reduce(apart))
    if unit == 0:
        if not (addresses == addresses[0]).all():
            return None
        return Affine(addresses[0], np.zeros(addresses.shape[1], dtype=np.int64), np.zeros(len(addresses), dtype=np.int64))
    return _fit(addresses, first // unit)


def _fit(addresses: np.ndarray, rows: np.ndarray) -> Optional[Affine]:
    low, high = int(rows.argmin()), int(rows.argmax())
    apart = int(rows[high] - rows[low])
    if apart == 0:
        stride = np.zeros(addresses.shape[1], dtype=np.int64)
    else:
        stride, left = np.divmod(addresses[high] - addresses[low], apart)
        if left.any() or stride.min() < 0:
            return None
    base = addresses[low] - rows[low] * stride
    if base.min() < 0 or not (base + rows[:, None] * stride == addresses).all():
        return None
    return Affine(base, stride, rows)


def runs(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """first and count of the runs of consecutive numbers that make up the places, in order."""
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    begin = np.concatenate(([0], cuts))
    return places[begin], np.diff(np.concatenate((begin, [len(places)])))
