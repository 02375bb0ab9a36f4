"""One version per load: the sessions in which an engine's gets read, when the engine does not say where a load begins.

A load walks the layers of its keys upwards, group by group, on one thread. So a key's load begins at the first get of it on a thread, and
again where a get begins before that key's last one did. From there on all gets of the key are reads of one session, which holds them to
one version: a key that was put again meanwhile fails. What cannot be seen is a load that waits longer than IDLE between two groups, or
reads its groups downwards: it is several.

Nor can be seen whether a get that begins where the key's last one did, at its load's begin, is of the same load (in which a key may come
twice) or of another one that has the same single group. While the version is there it does not matter. When it is gone the get begins
anew, and has the new version; but then a get of the key higher up fails, for the first one may have given its load the old version.
"""
from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import Counter
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from spanpool.client import Client, ReadSession
from spanpool.errors import GoneError, SpanpoolError

IDLE = 10.0  # seconds without a get after which a session is closed; arbitrary, above what a forward pass waits for a group of layers
SETTLE = 0.003  # seconds from a load's begin to what is done for the next one: its first group of layers comes first
AGE = 5.0  # seconds after which a session takes no more keys
KEYS = 1 << 17  # nor above so many; the node remembers 2^20 for a session
GENERATIONS = 3  # of names, that a load may have begun in; arbitrary: there are so many at a time
OPEN = 64  # sessions at a time, of all threads; the least recently used gives way


class Session:
    """A session of reads, of one thread. keys are those whose load it is; users, used and keys are under the lock of its Loads."""

    def __init__(self, number: int, read: ReadSession):
        self.number, self.read = number, read
        self.opened = self.used = time.monotonic()
        self.keys = self.users = 0


class Gone(NamedTuple):
    """A key of a thread's whose version is gone, found by a get from byte low on. A get below low begins anew, always. One at low does
    so too, for good when nothing was read of the load before (BEGIN), or for itself alone when something was (AGAIN); then a get above low
    fails, and so do all at or above that one (OVER)."""

    low: int
    state: int
    since: float


BEGIN, AGAIN, OVER = range(3)


class Reads(NamedTuple):
    """Keys of a get that are read in one session: all, or those at the places where chosen is true. begun: none was read in it before."""

    session: Session
    chosen: Optional[np.ndarray]
    begun: bool


class _Walk(threading.local):
    """What a thread reads: of each place of a generation of names the number of its session, where its last get began, and where its load
    did. gone is by names, and nearly always empty."""

    def __init__(self) -> None:
        self.generation: Any = None
        self.session = self.low = self.first = np.zeros(0, dtype=np.int64)
        self.current: Optional[Session] = None
        self.before: list[tuple[float, Any, tuple[np.ndarray, ...]]] = []  # the same of generations before, the last one first, until an instant
        self.gone: dict[str, Gone] = {}

    def of(self, generation: Any, places: np.ndarray, names: Sequence[str]) -> None:
        """Makes the columns those of a generation. Keys that were named anew take over what was known of them."""
        if self.generation is not generation:
            if self.generation is not None:
                self.before = [(time.monotonic() + IDLE, self.generation, (self.session, self.low, self.first)), *self.before[:GENERATIONS - 1]]
            self.generation = generation
            self.session = self.low = self.first = np.zeros(0, dtype=np.int64)
        n = len(generation.rows)
        if n > len(self.session):
            self.session, self.low, self.first = _grown(self.session, n), _grown(self.low, n), _grown(self.first, n)
        if self.before:
            self._adopt(places, names)

    def _adopt(self, places: np.ndarray, names: Sequence[str]) -> None:
        for i in np.flatnonzero(self.session[places] == 0).tolist():
            for _, generation, (session, low, first) in self.before:
                old = generation.places.get(names[i], len(session))
                if old < len(session) and session[old] != 0:
                    self.session[places[i]], self.low[places[i]], self.first[places[i]] = session[old], low[old], first[old]
                    break
        now = time.monotonic()
        self.before = [b for b in self.before if b[0] > now]

    def again(self, names: Sequence[str], low: int) -> np.ndarray:
        """Which keys begin anew because their version is gone. Precondition: those that are lost are not among them."""
        found = {n: self.gone[n] for n in names if n in self.gone}
        anew = np.fromiter((n in found and low <= found[n].low for n in names), dtype=bool, count=len(names))
        for n, g in found.items():
            if low < g.low or low == g.low and g.state == BEGIN:
                del self.gone[n]
            elif low == g.low:
                self.gone[n] = g._replace(since=time.monotonic())
        return anew


def _grown(column: np.ndarray, n: int) -> np.ndarray:
    out = np.zeros(n, dtype=np.int64)
    out[:len(column)] = column
    return out


class Loads:
    """The sessions of a client's loads. Threads share it; a load is of one of them. A thread of its own opens a session ahead of the next
    load and closes those that are over, so that no load waits for it; it ends when there is nothing to do, or nobody has the Loads."""

    def __init__(self, client: Client):
        self._client = client
        self._lock = threading.Lock()  # what follows, and the counts of sessions; nothing is called under it
        self._open: dict[int, Session] = {}
        self._over: list[Session] = []  # to be closed
        self._spare: Optional[Session] = None  # open, and in no use
        self._wanted = 0.0  # when a session was last begun
        self._wake = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._numbers = itertools.count(1)
        self._walk = _Walk()

    def enter(self, named: Any, names: Sequence[str], low: int, timeout: float) -> list[Reads]:
        """The sessions in which keys are read from byte low on. Each is the caller's to leave."""
        walk, places = self._walk, named.places
        walk.of(named.generation, places, names)
        of, at = walk.session[places], walk.low[places]
        same, back = bool((of == of[0]).all()), at > low
        if walk.gone:
            back |= walk.again(names, low)
        with self._lock:
            session = self._open.get(int(of[0])) if same else None
            if session is not None and not back.any():
                walk.low[places] = low
                session.users += 1
                return [Reads(session, None, False)]
            alive = np.full(len(of), session is not None) if same else np.isin(of, list(self._open))
        fresh = back | ~alive
        out: list[Reads] = []
        try:
            if fresh.any():
                out.append(self._begin(walk, places, of, fresh, low, timeout))
            for number in np.unique(of[~fresh]).tolist():
                with self._lock:
                    session = self._open.get(number)
                    if session is None:
                        raise GoneError("a session was closed while its load went on")
                    session.users += 1
                    out.append(Reads(session, (of == number) & ~fresh, False))
        except BaseException:
            for reads in out:
                self.leave(reads.session)
            raise
        walk.low[places] = low
        return out

    def lost(self, names: Sequence[str], low: int) -> list[int]:
        """Places of keys of which nothing may be read from byte low on: their load may have begun with a version that is gone."""
        gone = self._walk.gone
        if not gone:
            return []
        now, out = time.monotonic(), []
        for i, n in enumerate(names):
            g = gone.get(n) if isinstance(n, (str, bytes)) else None  # else it is no key, and may have no hash
            if g is not None and g.state != BEGIN and (low > g.low or low == g.low and g.state == OVER):
                gone[n] = Gone(low, OVER, now)
                out.append(i)
        return out

    def late(self, names: Sequence[str], low: int, begun: bool) -> bool:
        """Keys that were read from byte low on, and whose version is gone. begun: in a session in which nothing was read of them before.
        Returns whether all may begin anew by the same gets, which then are all that the call has of a key."""
        walk, now, every = self._walk, time.monotonic(), True
        walk.gone = {n: g for n, g in walk.gone.items() if now - g.since < IDLE}
        for n in names:
            g, place = walk.gone.get(n), walk.generation.places.get(n, len(walk.first))
            if g is not None and g.state == BEGIN:
                continue  # by this call: the next one that reads the key takes it away
            if begun or place < len(walk.first) and walk.first[place] == low:
                walk.gone[n] = Gone(low, BEGIN if begun else AGAIN, now)
            else:
                every = False
        return every

    def _begin(self, walk: _Walk, places: np.ndarray, of: np.ndarray, fresh: np.ndarray, low: int, timeout: float) -> Reads:
        """Loads of keys begin: in the thread's session, unless one of them was read in it."""
        every = bool(fresh.all())
        moved = places if every else places[fresh]
        if not (np.diff(moved) > 0).all():  # nearly always they ascend
            moved = np.unique(moved)
        session, now = walk.current, time.monotonic()
        with self._lock:
            if session is not None and session.number in self._open and not (of[fresh] == session.number).any() and \
                    session.keys + len(moved) <= KEYS and now - session.opened < AGE:
                session.users += 1
            else:
                session = None
        if session is None:
            session = walk.current = self._opened(timeout)
        with self._lock:
            for number, n in Counter(walk.session[moved].tolist()).items():
                old = self._open.get(number)
                if old is not None:
                    old.keys -= n
                    if old.keys <= 0 and old.users == 0:
                        self._over.append(self._open.pop(number))
            session.keys += len(moved)
        walk.session[moved], walk.first[moved] = session.number, low
        return Reads(session, None if every else fresh, True)

    def _opened(self, timeout: float) -> Session:
        """A session that nothing was read in, in use."""
        with self._lock:
            session, self._spare = self._spare, None
        if session is None:
            session = Session(next(self._numbers), self._client.open_read(timeout))
        with self._lock:
            self._wanted = session.opened = session.used = time.monotonic()
            session.users = 1
            idle = [s for s in self._open.values() if s.users == 0]
            if len(self._open) >= OPEN and idle:
                self._over.append(self._open.pop(min(idle, key=lambda s: s.used).number))
            self._open[session.number] = session
            if self._thread is None:
                self._thread = threading.Thread(target=_work, args=(weakref.ref(self), self._wake), name="spanpool loads", daemon=True)
                self._thread.start()
        self._wake.set()
        return session

    def leave(self, session: Session) -> None:
        with self._lock:
            session.users -= 1
            session.used = time.monotonic()

    def forget(self, session: Session) -> None:
        """The node does not know the session any more: its keys' loads begin anew."""
        with self._lock:
            self._open.pop(session.number, None)

    def close(self) -> None:
        """Forgets all sessions, which end with the client, and ends the thread."""
        with self._lock:
            self._open, self._over, self._spare, self._wanted = {}, [], None, 0.0
        self._wake.set()

    def work(self) -> bool:
        """Closes what is over or idle, and opens a spare session while loads begin. False when there will be nothing to do until one does."""
        now = time.monotonic()
        with self._lock:
            begun = now - self._wanted < IDLE
            if not begun and self._spare is not None:
                self._over.append(self._spare)
                self._spare = None
            for session in [s for s in self._open.values() if s.users == 0 and now - s.used >= IDLE]:
                self._over.append(self._open.pop(session.number))
            over, self._over = self._over, []
            lacks = begun and self._spare is None
        if lacks:
            self._prepare()
        for session in over:
            _close(session)
        with self._lock:
            if begun or self._open or self._over:
                return True
            self._thread = None
            return False

    def _prepare(self) -> None:
        try:
            session = Session(next(self._numbers), self._client.open_read())
        except SpanpoolError:
            return  # the next load opens its own, or says why not
        with self._lock:
            self._spare = session


def _work(of: "weakref.ref[Loads]", wake: threading.Event) -> None:
    pause = threading.Event()
    while True:
        if wake.wait(IDLE / 4):
            pause.wait(SETTLE)
        wake.clear()
        loads = of()
        if loads is None or not loads.work():
            return
        del loads


def _close(session: Session) -> None:
    try:
        session.read.close()
    except SpanpoolError:
        pass  # it ends with the client
