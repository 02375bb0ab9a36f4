"""A fake host: memory pools and a linker that drives spanpool.umbp in the order and the shapes of SGLang's."""
import ctypes
import mmap
import os
import queue
import random
import threading
from collections import defaultdict

import numpy as np

from tests.content import GUARD, POISON, content

RANGES_PER_CALL = 8192


class Buffer:
    """An allocation: memory that is shared, or of the heap."""

    def __init__(self, nbytes, shared):
        if shared:
            self.fd = os.memfd_create("pool", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, nbytes)
            self.mapping = mmap.mmap(self.fd, nbytes)
            self.bytes = np.frombuffer(self.mapping, dtype=np.uint8)
        else:
            self.bytes = np.zeros(nbytes, dtype=np.uint8)
            self.fd = -1
        self.address, self.nbytes = self.bytes.ctypes.data, nbytes

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Pool:
    """Pages of some layers. Each layer has a buffer for each component, with a guard after every page. One object of a page (and component,
    unless packed) holds all layers: packed, K0 V0 K1 V1 ... lie over an object laid K0..Kn V0..Vn.

    widths are the bytes of a page and layer of each component; layers those of the model that the pool has.
    """

    def __init__(self, name, layers, widths, rows, packed=False, shared=True, one_allocation=False, share_lists=False):
        self.name, self.layers, self.widths, self.rows, self.packed, self.share_lists = name, list(layers), list(widths), rows, packed, share_lists
        n = len(self.layers)
        self.strides = [w + GUARD for w in widths]
        self.buffers = []  # allocations
        self.at = {}  # (component, place of the layer): its buffer, and where in it
        if one_allocation:
            total = sum((s * rows + 2 * GUARD) * n for s in self.strides)
            whole = Buffer(total, shared)
            self.buffers.append(whole)
        off = 0
        for c, stride in enumerate(self.strides):
            for place in range(n):
                if one_allocation:
                    self.at[c, place] = (whole, off + GUARD)
                    off += stride * rows + 2 * GUARD
                else:
                    b = Buffer(stride * rows + 2 * GUARD, shared)
                    self.buffers.append(b)
                    self.at[c, place] = (b, GUARD)

    def object_sizes(self):
        sizes = [w * len(self.layers) for w in self.widths]
        return [sum(sizes)] if self.packed else sizes

    def keys(self, page_keys):
        return [f"{k}:{self.name}:{i}" for k in page_keys for i in range(len(self.object_sizes()))]

    def ranges(self, rows, layers):
        """(ptrs, sizes, offsets) of each object of pages at rows, or None when the pool has none of the layers. Keys share the lists of
        sizes and offsets where share_lists says so."""
        have = [i for i, layer in enumerate(self.layers) if layer in layers]
        if not have:
            return None
        ptrs, sizes, offsets = [], [], []
        groups = [list(range(len(self.widths)))] if self.packed else [[c] for c in range(len(self.widths))]
        shapes = []
        for group in groups:
            order = [(c, i) for i in have for c in group]
            shapes.append((order, [self.widths[c] for c, _ in order], [self._offset(c, i) for c, i in order]))
        for row in rows:
            for order, size, offset in shapes:
                ptrs.append([self._address(c, i, row) for c, i in order])
                sizes.append(size if self.share_lists else list(size))
                offsets.append(offset if self.share_lists else list(offset))
        return ptrs, sizes, offsets

    def _offset(self, c, i):
        before = sum(w * len(self.layers) for w in self.widths[:c]) if self.packed else 0
        return before + i * self.widths[c]

    def _address(self, c, i, row):
        b, off = self.at[c, i]
        return b.address + off + row * self.strides[c]

    def poison(self):
        for b in self.buffers:
            b.bytes[:] = POISON

    def page(self, c, i, row):
        b, off = self.at[c, i]
        lo = off + row * self.strides[c]
        return b.bytes[lo:lo + self.widths[c]]

    def objects(self, page_key):
        """The contents that a page is to have, by object."""
        return [content(k, n) for k, n in zip(self.keys([page_key]), self.object_sizes())]

    def fill(self, page_key, row):
        for c, i, part in self._parts(page_key):
            self.page(c, i, row)[:] = part

    def _parts(self, page_key):
        objects = self.objects(page_key)
        for c, w in enumerate(self.widths):
            for i in range(len(self.layers)):
                off = self._offset(c, i)
                yield c, i, objects[0 if self.packed else c][off:off + w]

    def check(self, pages, layers=None):
        """Every byte of the pools: pages (key by row) have their content in the layers, and all else is poison."""
        want = {id(b): np.full(b.nbytes, POISON, dtype=np.uint8) for b in self.buffers}
        for row, key in pages.items():
            for c, i, part in self._parts(key):
                if layers is None or self.layers[i] in layers:
                    b, off = self.at[c, i]
                    lo = off + row * self.strides[c]
                    want[id(b)][lo:lo + self.widths[c]] = part
        for b in self.buffers:
            np.testing.assert_array_equal(want[id(b)], b.bytes, self.name)


class Failed(Exception):
    """A False in a load or an offload."""


class Linker:
    """A rank: registers its pools, looks pages up on the caller's thread, and loads and offloads on threads of its own."""

    def __init__(self, client, pools, layers, group=8):
        self.client, self.pools, self.num_layers, self.group = client, pools, layers, group
        assert client.get_deployment_mode() == type(client.get_deployment_mode()).StandaloneProcess
        assert client.supports_ranged_io()
        self.registered = []
        for pool in pools:
            for b in pool.buffers:
                if (b.address, b.nbytes) not in self.registered:
                    self.registered.append((b.address, b.nbytes))
                    assert client.register_memory(b.address, b.nbytes), "register"
        self.loads, self.offloads = queue.Queue(), queue.Queue()
        self.threads = [threading.Thread(target=self._run, args=(q, f), daemon=True) for q, f in ((self.loads, self._load), (self.offloads, self._offload))]
        for t in self.threads:
            t.start()

    def lookup(self, page_keys):
        """How many pages from the first on every pool has."""
        leading = len(page_keys)
        for pool in self.pools:
            keys = pool.keys(page_keys)
            found = list(self.client.batch_exists(keys))
            assert len(found) == len(keys) and all(type(f) is bool for f in found)
            per = len(pool.object_sizes())
            pages = [all(found[i:i + per]) for i in range(0, len(found), per)]
            leading = min(leading, pages.index(False) if False in pages else len(pages))
        return leading

    def load(self, page_keys, rows, ready=None):
        return self._queue(self.loads, (page_keys, rows, ready))

    def offload(self, page_keys, rows):
        return self._queue(self.offloads, (page_keys, rows, None))

    @staticmethod
    def _queue(q, task):
        done = queue.Queue()
        q.put((task, done))
        return done

    @staticmethod
    def _run(q, do):
        while True:
            task = q.get()
            if task is None:
                return
            (keys, rows, ready), done = task
            try:
                do(keys, rows, ready)
                done.put(None)
            except BaseException as e:
                done.put(e)

    def _load(self, page_keys, rows, ready):
        """Layer group by layer group, each pool's keys cut so that a call has at most so many ranges: differently in a last, smaller group."""
        for lo in range(0, self.num_layers, self.group):
            layers = set(range(lo, min(lo + self.group, self.num_layers)))
            for pool in self.pools:
                meta = pool.ranges(rows, layers)
                if meta is None:
                    continue
                keys = pool.keys(page_keys)
                ptrs, sizes, offsets = meta
                step = max(1, RANGES_PER_CALL // max(map(len, sizes)))
                for at in range(0, len(keys), step):
                    some = slice(at, at + step)
                    self._all(self.client.batch_get_ranges_into_ptr(keys[some], ptrs[some], sizes[some], offsets[some]), keys[some])
            if ready is not None:
                ready(layers)

    def _offload(self, page_keys, rows, _):
        for pool in self.pools:
            keys = pool.keys(page_keys)
            ptrs, sizes, offsets = pool.ranges(rows, set(range(self.num_layers)))
            objects = pool.object_sizes() * len(page_keys)
            step = max(1, RANGES_PER_CALL // max(map(len, sizes)))
            for at in range(0, len(keys), step):
                some = slice(at, at + step)
                self._all(self.client.batch_put_ranges_from_ptr(keys[some], objects[some], ptrs[some], sizes[some], offsets[some]), keys[some])

    @staticmethod
    def _all(results, keys):
        results = list(results)
        if len(results) != len(keys) or any(type(r) is not bool for r in results):
            raise AssertionError(f"no list of {len(keys)} bool: {results[:5]}")
        if not all(results):
            raise Failed(f"{sum(results)}/{len(keys)}")

    def close(self):
        """As at SGLang's end: flush, one deregister for all, and no close."""
        self.loads.put(None)
        self.offloads.put(None)
        for t in self.threads:
            t.join(60)
        self.client.flush()
        self.client.deregister_memory(self.registered[0][0])
        self.client.deregister_memory(self.registered[0][0])
        self.client = None
        for pool in self.pools:
            for b in pool.buffers:
                b.close()


def wait(done, seconds=60):
    """The end of a load or an offload; raises what it raised."""
    e = done.get(timeout=seconds)
    if e is not None:
        raise e


def scattered(n, rows, seed=0):
    """n rows in no order."""
    return random.Random(seed).sample(range(rows), n)
