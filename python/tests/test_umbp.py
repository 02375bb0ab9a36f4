import ctypes
import gc
import logging
import mmap
import os
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import numpy as np

from spanpool import Reply, umbp
from spanpool.client import ReadSession
from spanpool.engine.v1 import engine_pb2 as pb
from spanpool.memory import bytes_at
from spanpool.private import DeviceBytes
from tests.content import GUARD, POISON, content
from tests.host import Buffer, Failed, Linker, Pool, scattered, wait
from tests.sidecar import Sidecar, eventually

try:
    import torch
except ImportError:
    torch = None

LAYERS = 13  # a group of 8, and one of 5


def pools(rows, shared=True):
    """One of each kind: packed K and V, K and V apart, every second layer only, several buffers a layer of unequal widths, and all layers
    in one allocation."""
    return [
        Pool("packed", range(LAYERS), [1728, 1728], rows, packed=True, shared=shared, share_lists=True),
        Pool("apart", range(LAYERS), [1024, 512], rows, shared=shared),
        Pool("second", range(0, LAYERS, 2), [4100], rows, shared=shared),
        Pool("few", [12], [96], rows, shared=shared),
        Pool("mixed", range(LAYERS), [640, 64, 128], rows, packed=True, shared=shared),
        Pool("one", range(LAYERS), [256], rows, shared=shared, one_allocation=True),
    ]


class Case(unittest.TestCase):
    MIB = 256

    @classmethod
    def setUpClass(cls):
        logging.getLogger("spanpool.umbp").setLevel(logging.CRITICAL)
        cls.node = Sidecar(cls.MIB)

    @classmethod
    def tearDownClass(cls):
        cls.node.close()

    def umbp(self, namespace=None, **settings):
        config = umbp.UMBPConfig.from_environment()
        config.role = umbp.UMBPRole.Standalone
        config.dram.capacity_bytes, config.ssd.enabled, config.eviction.policy = 1, False, "lru"
        config.standalone_process = umbp.UMBPStandaloneProcessConfig()
        config.standalone_process.address = "unix://" + self.node.socket
        config.standalone_process.startup_timeout_ms = 20000
        config.namespace = namespace or self.id()
        client = umbp.UMBPClient(config)
        for k, v in settings.items():
            setattr(client, k, v)
        self.addCleanup(client.close)
        return client

    def linker(self, pools_, client=None, **kw):
        linker = Linker(client or self.umbp(**kw), pools_, LAYERS)
        self.addCleanup(linker.close)
        return linker


class LinkerTest(Case):
    def test_layer_groups_come_back_as_they_were_offloaded(self):
        for shared in (True, False):
            for source_shared in (True, False):
                with self.subTest(shared=shared, source_shared=source_shared):
                    pages = [f"page{i}" for i in range(24)]
                    source = self.linker(pools(40, source_shared), namespace=f"{self.id()} {shared} {source_shared}")
                    self.assertEqual(0, source.lookup(pages))
                    at = scattered(24, 40)
                    for pool in source.pools:
                        pool.poison()
                        for key, row in zip(pages, at):
                            pool.fill(key, row)
                    wait(source.offload(pages, at))
                    self.assertEqual(24, source.lookup(pages + ["none"]))
                    target = self.linker(pools(40, shared), namespace=f"{self.id()} {shared} {source_shared}")
                    for pool in target.pools:
                        pool.poison()
                    rows = scattered(24, 40, 7)
                    groups = []

                    def ready(layers):
                        groups.append(layers)
                        for pool in target.pools:
                            pool.check(dict(zip(rows, pages)), set().union(*groups))

                    wait(target.load(pages, rows, ready))
                    self.assertEqual(2, len(groups))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_layer_groups_come_back_through_tensors(self):
        """Memory of a GPU, with tensors of this host in its place."""
        def tensor(address, length, device):
            return DeviceBytes(address, length, torch.from_numpy(bytes_at(address, length)), 0)

        pages = [f"page{i}" for i in range(24)]
        client = self.umbp()
        with mock.patch.object(umbp, "is_host", lambda *_: False), mock.patch.object(umbp, "device_bytes", tensor):
            linker = self.linker(pools(40), client)
        rows = scattered(24, 40)
        for pool in linker.pools:
            for key, row in zip(pages, rows):
                pool.fill(key, row)
        wait(linker.offload(pages, rows))
        for pool in linker.pools:
            pool.poison()
        wait(linker.load(pages, rows[::-1]))
        for pool in linker.pools:
            pool.check(dict(zip(rows[::-1], pages)))
        self.assertEqual(1, client.client.stats()[1]["regions"], "one buffer")

    def test_a_load_of_some_pages_writes_nothing_else(self):
        pages = [f"page{i}" for i in range(6)]
        client = self.umbp()
        linker = self.linker(pools(8), client)
        for pool in linker.pools:
            for row, key in enumerate(pages):
                pool.fill(key, row)
        wait(linker.offload(pages, range(6)))
        for pool in linker.pools:
            pool.poison()
        # A key twice, to two rows.
        wait(linker.load([pages[4], pages[2], pages[4]], [7, 0, 3]))
        for pool in linker.pools:
            pool.check({7: pages[4], 0: pages[2], 3: pages[4]})

    def test_a_miss_fails_its_key_alone(self):
        client = self.umbp()
        pool = Pool("p", range(LAYERS), [1024], 4)
        linker = self.linker([pool], client)
        pool.fill("a", 0)
        wait(linker.offload(["a"], [0]))
        pool.poison()
        ptrs, sizes, offsets = pool.ranges([1, 2], {0, 1})
        self.assertEqual([True, False], client.batch_get_ranges_into_ptr(pool.keys(["a", "none"]), ptrs, sizes, offsets))
        self.assertEqual(1, client.counts["get: NOT_FOUND"])
        for row in range(4):
            if row in (0, 3):
                self.assertTrue((pool.page(0, 0, row) == POISON).all())
        np.testing.assert_array_equal(content("a:p:0", 13 * 1024)[1024:2048], pool.page(0, 1, 1))

    def test_eviction_between_exists_and_load(self):
        """A page that is held is there; one whose hold is over may be gone, and is False and never another's bytes."""
        client = self.umbp()
        pool = Pool("big", range(2), [1 << 20], 8)
        linker = Linker(client, [pool], 2)
        self.addCleanup(linker.close)
        pool.fill("kept", 0)
        wait(linker.offload(["kept"], [0]))
        self.assertEqual(1, linker.lookup(["kept"]))
        began, n = time.monotonic(), 0

        def press():
            nonlocal n
            for row in range(1, 8):
                pool.fill(f"other{n}.{row}", row)
            wait(linker.offload([f"other{n}.{row}" for row in range(1, 8)], range(1, 8)))
            n += 1

        while n * 14 < 2 * self.MIB:  # twice the medium
            press()
            if time.monotonic() - began < 1.0:
                self.assertEqual(1, linker.lookup(["kept"]))  # and holds it again
                began = time.monotonic()
        page = pool.page(0, 0, 0)
        page[:] = POISON
        eventually("it is evicted once its hold is over", lambda: press() or not client.client.exists(["kept:big:0"]).found[0], 60)
        with self.assertRaises(Failed):
            wait(linker.load(["kept"], [0]))
        self.assertTrue((page == POISON).all() or (page == content("kept:big:0", 2 << 20)[:1 << 20]).all())
        self.assertGreaterEqual(client.counts["get: NOT_FOUND"], 1)

    def test_eight_ranks_load_and_offload_the_same_keys(self):
        pages = [f"page{i}" for i in range(12)]
        barrier = threading.Barrier(8, timeout=60)
        failures = []

        def rank(n):
            try:
                linker = Linker(self.umbp(namespace=self.id()), [Pool("apart", range(LAYERS), [1024, 512], 16), Pool("packed", range(LAYERS), [96, 96], 16, packed=True)], LAYERS)
                for round in range(3):
                    keys = [f"{round}{p}" for p in pages]
                    rows = scattered(12, 16, n * 10 + round)
                    for pool in linker.pools:
                        pool.poison()
                        for key, row in zip(keys, rows):
                            pool.fill(key, row)
                    barrier.wait()
                    wait(linker.offload(keys, rows))  # all ranks put the same keys at once, and none is False
                    self.assertEqual(12, linker.lookup(keys))
                    for pool in linker.pools:
                        pool.poison()
                    rows = scattered(12, 16, n * 10 + round + 5)
                    barrier.wait()
                    wait(linker.load(keys, rows))
                    for pool in linker.pools:
                        pool.check(dict(zip(rows, keys)))
                linker.close()
            except BaseException as e:
                failures.append(e)
                barrier.abort()

        threads = [threading.Thread(target=rank, args=(n,)) for n in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        self.assertEqual([], failures)

    def test_three_threads_of_a_rank_at_once(self):
        client = self.umbp()
        source, target = Pool("p", range(LAYERS), [1024], 64), Pool("p", range(LAYERS), [1024], 64)
        linker = self.linker([source], client)
        loader = Linker(client, [target], LAYERS)
        self.addCleanup(loader.close)
        rounds = [[f"{n}.{i}" for i in range(16)] for n in range(6)]
        for n, keys in enumerate(rounds):
            rows = scattered(16, 64, n)
            for key, row in zip(keys, rows):
                source.fill(key, row)
            offload = linker.offload(keys, rows)
            load = None
            if n:
                target.poison()
                at = scattered(16, 64, n + 50)
                load = loader.load(rounds[n - 1], at)
                self.assertEqual(16, linker.lookup(rounds[n - 1]))
            wait(offload)
            if load is not None:
                wait(load)
                target.check(dict(zip(at, rounds[n - 1])))


class CallsTest(Case):
    def pool(self, client, pages=64, widths=(64,), layers=range(8), **kw):
        pool = Pool("p", layers, list(widths), pages, **kw)
        for b in pool.buffers:
            self.assertIs(True, client.register_memory(b.address, b.nbytes, "cpu", -1))
            self.addCleanup(b.close)
        return pool

    def put(self, client, pool, pages):
        for row, key in enumerate(pages):
            pool.fill(key, row)
        ptrs, sizes, offsets = pool.ranges(range(len(pages)), set(pool.layers))
        keys = pool.keys(pages)
        objects = pool.object_sizes() * len(pages)
        return client.batch_put_ranges_from_ptr(keys, objects, ptrs, sizes, offsets)

    def test_a_restore_sends_each_key_once_and_then_a_handle_and_patterns(self):
        client = self.umbp()
        pool = self.pool(client, widths=(64, 64), layers=range(16))
        pages = [f"page-with-a-long-name-{i}" for i in range(64)]
        self.assertEqual([True] * 128, self.put(client, pool, pages))
        sent = []
        real = client.client._attempt

        def attempt(link, name, build, *rest):
            def built(*a):
                request = build(*a)
                sent.append((name, request.SerializeToString()))
                return request
            return real(link, name, built, *rest)

        named = []
        with mock.patch.object(client.client, "_attempt", attempt):
            link = client.client._state.link
            call = link.call
            with mock.patch.object(link, "call", lambda name, request, *a: named.append((name, len(request.keys) if name == "NameKeys" else 0)) or call(name, request, *a)):
                pool.poison()
                rows = scattered(64, 64)
                for group in (set(range(0, 8)), set(range(8, 13)), set(range(13, 16))):
                    ptrs, sizes, offsets = pool.ranges(rows, group)
                    keys = pool.keys(pages)
                    step = 128 if len(group) == 8 else 50 if len(group) == 5 else 33
                    for at in range(0, 128, step):
                        some = slice(at, at + step)
                        self.assertTrue(all(client.batch_get_ranges_into_ptr(keys[some], ptrs[some], sizes[some], offsets[some])))
        pool.check(dict(zip(rows, pages)))
        self.assertEqual(128, sum(n for name, n in named if name == "NameKeys"))
        self.assertLessEqual({name for name, _ in sent}, {"OpenRead", "ReadRanges"})
        reads = [data for name, data in sent if name == "ReadRanges"]
        self.assertEqual(1, len({pb.ReadRangesRequest.FromString(data).session for data in reads}), "the load is one session")
        for data in reads:
            request = pb.ReadRangesRequest.FromString(data)
            for part in request.parts:
                self.assertTrue(part.HasField("pattern"))
                self.assertFalse(part.keys.names)
                self.assertTrue(part.pattern.rows_of_handle, "rows were named with the keys")
            self.assertLess(len(data), 1500)

    def test_addresses_without_a_pattern_go_as_lists(self):
        client = self.umbp()
        pool = self.pool(client, widths=(64,), layers=range(2))
        self.assertTrue(all(self.put(client, pool, ["a", "b", "c"])))
        pool.poison()
        ptrs, sizes, offsets = pool.ranges([5, 9, 20], {0, 1})
        ptrs[1][1], ptrs[2][1] = ptrs[2][1], ptrs[1][1]
        self.assertEqual([True] * 3, client.batch_get_ranges_into_ptr(pool.keys("abc"), ptrs, sizes, offsets))
        self.assertEqual(3, client.counts["get: addresses without a pattern"])
        for layer, rows in ((0, (5, 9, 20)), (1, (5, 20, 9))):
            for key, row in zip(pool.keys("abc"), rows):
                np.testing.assert_array_equal(content(key, 128)[64 * layer:64 * layer + 64], pool.page(0, layer, row))

    def test_what_is_no_key_fails_alone(self):
        client = self.umbp()
        pool = self.pool(client)
        self.assertEqual([True], self.put(client, pool, ["a"]))
        pool.poison()
        good = pool.keys("a")[0]
        ptrs, sizes, offsets = pool.ranges([3, 4], set(pool.layers))
        for n, bad in enumerate((5, None, 1.5, ["b"], "", "x" * 513, b"")):
            self.assertEqual([True, False], client.batch_get_ranges_into_ptr([good, bad], ptrs, sizes, offsets), bad)
            self.assertEqual([False, True], client.batch_put_ranges_from_ptr([bad, f"new{n}"], pool.object_sizes() * 2, ptrs, sizes, offsets), bad)
            self.assertEqual([False, True, False], client.batch_exists([bad, good, bad]), bad)
        self.assertEqual(7, client.counts["get: INVALID"])
        for none in (None, 7):
            self.assertEqual([], client.batch_exists(none))
            self.assertEqual([], client.batch_get_ranges_into_ptr(none, none, none, none))
        self.assertEqual([True], client.batch_exists(k for k in [good]))
        self.assertEqual([False], client.batch_get_ranges_into_ptr([good], [[p + 0.5 for p in ptrs[0]]], sizes[:1], offsets[:1]), "an address is a whole number")
        arrays = [[np.array(row) for row in column] for column in (ptrs, sizes, offsets)]
        self.assertEqual([True, True], client.batch_get_ranges_into_ptr([good, good], *arrays))

    def test_more_keys_than_a_call_of_exists_takes(self):
        client = self.umbp()
        pool = self.pool(client)
        self.put(client, pool, ["a", "b", "c", "d", "e"])
        small = pb.HelloReply()
        small.CopyFrom(client.client.connect())
        small.limits.keys = 2
        keys = pool.keys(["a", "b", "c", "none", "d", "e"])
        with mock.patch.object(client.client, "connect", lambda *_: small):
            self.assertEqual([True] * 3 + [False] + [True] * 2, client.batch_exists(keys))
            self.assertEqual(3, client.batch_exists_consecutive(keys))
            self.assertEqual(2, client.batch_exists_consecutive(keys[:2]))

    def test_close_ends_its_thread(self):
        client = self.umbp()
        pool = self.pool(client)
        self.put(client, pool, ["a"])
        ptrs, sizes, offsets = pool.ranges([3], {0})
        self.assertEqual([True], client.batch_get_ranges_into_ptr(pool.keys("a"), ptrs, sizes, offsets))
        thread = client._loads._thread
        client.close()
        thread.join(30)
        self.assertFalse(thread.is_alive())

    def test_memory_that_is_not_registered_fails_its_keys_alone(self):
        client = self.umbp()
        pool = self.pool(client)
        self.put(client, pool, ["a", "b"])
        ptrs, sizes, offsets = pool.ranges([3, 4], set(pool.layers))
        stranger = np.full(4096, POISON, dtype=np.uint8)
        ptrs[0][2] = stranger.ctypes.data
        self.assertEqual([False, True], client.batch_get_ranges_into_ptr(pool.keys("ab"), ptrs, sizes, offsets))
        self.assertTrue((stranger == POISON).all())
        self.assertEqual(1, client.counts["get: NOT_REGISTERED"])
        # One byte past the end of an allocation, which private memory has no other guard for.
        private = Buffer(4096, False)
        client.register_memory(private.address, 4000)
        private.bytes[:] = POISON
        self.assertEqual([False, True], client.batch_get_ranges_into_ptr(pool.keys("ab"), [[private.address + 4001 - 64], [private.address]], [[64]] * 2, [[0]] * 2))
        self.assertTrue((private.bytes[64:] == POISON).all())
        np.testing.assert_array_equal(content("b:p:0", 512)[:64], private.bytes[:64])
        last = pool.buffers[7]
        ptrs, sizes, offsets = pool.ranges([3], {7})
        ptrs[0][0] = last.address + last.nbytes - sizes[0][0] + 1
        self.assertEqual([False], client.batch_get_ranges_into_ptr(pool.keys("a"), ptrs, sizes, offsets))

    def test_what_is_malformed_is_false_and_never_raises(self):
        client = self.umbp()
        pool = self.pool(client)
        self.put(client, pool, ["a"])
        ptrs, sizes, offsets = pool.ranges([1], {0})
        k = pool.keys("a")
        for name, args in [("lengths", (k, ptrs * 2, sizes, offsets)), ("an empty key", ([""], ptrs, sizes, offsets)), ("a long key", (["x" * 600], ptrs, sizes, offsets)),
                           ("no key", ([None], ptrs, sizes, offsets)), ("no ranges", (k, [[]], [[]], [[]])), ("None", (k, [None], sizes, offsets)),
                           ("past the end", (k, ptrs, sizes, [[1 << 40]])), ("huge", (k, ptrs, [[1 << 62]], offsets)), ("text", (k, [["x"]], sizes, offsets))]:
            with self.subTest(name):
                self.assertEqual([False], client.batch_get_ranges_into_ptr(*args))
                self.assertEqual([False], client.batch_put_ranges_from_ptr(args[0], [64], *args[1:]))
        self.assertEqual([], client.batch_get_ranges_into_ptr([], [], [], []))
        self.assertEqual([], client.batch_exists([]))
        self.assertEqual([False], client.batch_exists([None]))
        self.assertEqual([False, False], client.batch_exists(["x" * 600, "y"]))
        self.assertTrue(client.counts)
        self.assertEqual([True], client.batch_get_ranges_into_ptr(k, ptrs, sizes, offsets), "nothing of it stays")

    def test_a_key_that_is_malformed_fails_alone(self):
        for shared in (True, False):
            client = self.umbp(f"{self.id()} {shared}")
            buffer = Buffer(1 << 16, shared)
            self.addCleanup(buffer.close)
            client.register_memory(buffer.address, buffer.nbytes)
            at = buffer.address
            buffer.bytes[:64] = content("k", 64)
            for n, size in enumerate([-1, 0, 1 << 62, 1 << 64, 1 << 70, None, "64", 64.5, [64]]):
                with self.subTest(size=size, shared=shared):
                    keys = [f"{n}{k}" for k in "abc"]
                    self.assertEqual([True, False, True], client.batch_put_ranges_from_ptr(keys, [64, size, 64], [[at]] * 3, [[64]] * 3, [[0]] * 3))
                    self.assertEqual([True, False, True], client.batch_exists(keys))
                    self.assertEqual([False] * 3, client.batch_put_ranges_from_ptr([k + "'" for k in keys], [size] * 3, [[at]] * 3, [[64]] * 3, [[0]] * 3))
            for name, ptrs, sizes, offsets in [
                    ("no address", [-1], [64], [0]), ("a huge one", [1 << 70], [64], [0]), ("no list", None, [64], [0]), ("a number", 5, [64], [0]),
                    ("text", ["x"], [64], [0]), ("no bytes", [at], [0], [0]), ("fewer", [at], [-64], [0]), ("all there are", [at], [(1 << 63) - 1], [0]),
                    ("up to where addresses are below 0", [at], [(1 << 63) - at], [0]), ("sizes whose sum is 0", [at] * 4, [1 << 62] * 4, [0] * 4),
                    ("the last address", [(1 << 63) - 1], [64], [0]), ("past the end", [at], [64], [1]), ("a huge offset", [at], [64], [1 << 64]),
                    ("one below 0", [at], [64], [-1]), ("more addresses", [at, at], [64], [0]), ("no ranges", [], [], [])]:
                with self.subTest(name, shared=shared):
                    all_ptrs, all_sizes, all_offsets = [[at], ptrs, [at + 128]], [[64], sizes, [64]], [[0], offsets, [0]]
                    keys = [f"{name}{k}" for k in "abc"]
                    self.assertEqual([True, False, True], client.batch_get_ranges_into_ptr(["0a"] * 3, all_ptrs, all_sizes, all_offsets))
                    self.assertEqual([True, False, True], client.batch_put_ranges_from_ptr(keys, [64] * 3, all_ptrs, all_sizes, all_offsets))
                    first = [[bad, good] for good, bad, _ in (all_ptrs, all_sizes, all_offsets)]
                    self.assertEqual([False, True], client.batch_get_ranges_into_ptr(["0a"] * 2, *first))
                    self.assertEqual([False, True], client.batch_put_ranges_from_ptr([k + "'" for k in keys[:2]], [64] * 2, *first))
            for key in [None, 5, [1], {}, bytearray(b"x"), "", "x" * 513, "\u00e9" * 257]:
                with self.subTest(key=key, shared=shared):
                    self.assertEqual([True, False, True], client.batch_get_ranges_into_ptr(["0a", key, "0c"], [[at]] * 3, [[64]] * 3, [[0]] * 3))
                    self.assertEqual([True, False, True], client.batch_put_ranges_from_ptr(["0a", key, "0c"], [64] * 3, [[at]] * 3, [[64]] * 3, [[0]] * 3))
                    self.assertEqual([True, False, True], client.batch_exists(["0a", key, "0c"]))
                    self.assertEqual(1, client.batch_exists_consecutive(["0a", key, "0c"]))
            np.testing.assert_array_equal(content("k", 64), buffer.bytes[:64])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_rows_that_are_tensors(self):
        client = self.umbp()
        buffer = Buffer(1 << 16, True)
        self.addCleanup(buffer.close)
        client.register_memory(buffer.address, buffer.nbytes)
        at = buffer.address
        rows = [[torch.tensor(row) for row in column] for column in ([[at, at + 64]] * 2, [[64, 64]] * 2, [[0, 64]] * 2)]
        self.assertEqual([True] * 2, client.batch_put_ranges_from_ptr(["a", "b"], [128] * 2, *rows))
        self.assertEqual([True] * 2, client.batch_get_ranges_into_ptr(["a", "b"], *rows))

    def test_other_memory_at_the_address_of_what_was_registered_is_registered(self):
        client = self.umbp()
        libc = ctypes.CDLL(None)
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        read_write, nbytes = 3, 1 << 16
        files = [os.memfd_create("pool") for _ in range(2)]
        for fd in files:
            os.ftruncate(fd, nbytes)
            self.addCleanup(os.close, fd)
        at = libc.mmap(None, nbytes, read_write, mmap.MAP_SHARED, files[0], 0)
        self.addCleanup(libc.munmap, ctypes.c_void_p(at), ctypes.c_size_t(nbytes))
        fixed, private = 0x10, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        for n, (flags, fd, length) in enumerate([(mmap.MAP_SHARED, files[0], nbytes), (mmap.MAP_SHARED, files[1], nbytes), (private, -1, nbytes),
                                                 (mmap.MAP_SHARED, files[0], nbytes), (mmap.MAP_SHARED, files[1], nbytes // 2)]):
            self.assertEqual(at, libc.mmap(at, nbytes, read_write, flags | fixed, fd, 0))
            here = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(at))
            self.assertIs(True, client.register_memory(at, length))
            self.assertIs(True, client.register_memory(at, length), "and again")
            here[:] = POISON
            here[:1000] = content(str(n), 1000)
            self.assertIs(True, client.put_from_ptr(str(n), at, 1000))
            here[:1000] = POISON
            self.assertIs(True, client.get_into_ptr(str(n), at + 2000, 1000))
            np.testing.assert_array_equal(content(str(n), 1000), here[2000:3000])
            self.assertTrue((here[:2000] == POISON).all() and (here[3000:] == POISON).all())
            self.assertLessEqual(client.client.stats()[1]["regions"], 2, "a buffer for private memory, and what is here now")

    def test_memory_that_is_shared_without_a_file_is_the_hosts(self):
        client = self.umbp()
        mapping = mmap.mmap(-1, 1 << 16)  # /proc/self/maps says /dev/zero
        here = np.frombuffer(mapping, dtype=np.uint8)
        self.assertIs(True, client.register_memory(here.ctypes.data, here.nbytes))
        here[:1000] = content("a", 1000)
        self.assertIs(True, client.put_from_ptr("a", here.ctypes.data, 1000))
        self.assertIs(True, client.get_into_ptr("a", here.ctypes.data + 2000, 1000))
        np.testing.assert_array_equal(content("a", 1000), here[2000:3000])

    def test_limits_of_a_node_that_has_none(self):
        client = self.umbp()
        pool = self.pool(client, pages=40)
        none = pb.HelloReply()
        none.CopyFrom(client.client.connect())
        none.limits.CopyFrom(pb.Limits())
        calls, real = [], ReadSession.get
        with mock.patch.object(client.client, "connect", lambda *_: none), \
                mock.patch.object(ReadSession, "get", lambda *a: calls.append(1) or real(*a)):
            pages = [str(i) for i in range(40)]
            self.assertTrue(all(self.put(client, pool, pages)))
            pool.poison()
            ptrs, sizes, offsets = pool.ranges(range(40), set(pool.layers))
            self.assertTrue(all(client.batch_get_ranges_into_ptr(pool.keys(pages), ptrs, sizes, offsets)))
        pool.check(dict(enumerate(pages)))
        self.assertEqual([1], calls)

    def test_a_put_that_exists_or_repeats_is_true_and_a_conflict_is_not(self):
        client = self.umbp()
        pool = self.pool(client)
        self.assertEqual([True, True], self.put(client, pool, ["a", "a"]))
        self.assertEqual([True], self.put(client, pool, ["a"]))
        ptrs, sizes, offsets = pool.ranges([0], {0})
        self.assertEqual([False], client.batch_put_ranges_from_ptr(pool.keys("a"), [64], ptrs, sizes, offsets))
        self.assertEqual(1, client.counts["put: CONFLICT"])
        # Ranges that do not tile.
        ptrs, sizes, offsets = pool.ranges([0], {0, 1, 2})
        self.assertEqual([False], client.batch_put_ranges_from_ptr(["gap"], [64 * 4], ptrs, sizes, offsets))
        self.assertEqual([False], client.batch_exists(["gap"]))

    def test_registration_is_idempotent_and_ends_in_both_engines_ways(self):
        client = self.umbp()
        a, b = Buffer(1 << 16, True), Buffer(1 << 16, True)
        for buffer in (a, b, a):
            self.assertIs(True, client.register_memory(buffer.address, buffer.nbytes))
        regions = lambda: client.client.stats()[1]["regions"]
        self.assertEqual(2, regions())
        client.deregister_memory(b.address)  # vLLM's: each by itself
        self.assertEqual(1, regions())
        self.assertIs(True, client.register_memory(b.address, b.nbytes))
        client.deregister_memory(a.address)  # SGLang's: the first for all
        self.assertEqual(0, regions())
        client.deregister_memory(a.address)
        client.deregister_memory(12345)
        self.assertIs(False, client.register_memory(0, 4096))
        self.assertIs(False, client.register_memory(a.address, 0))
        self.assertIs(False, client.register_memory(4096, 4096), "nothing is mapped there")
        a.close()
        b.close()

    def test_a_call_over_the_limits_goes_in_several(self):
        client = self.umbp()
        pool = self.pool(client, pages=300, widths=(2048,), layers=range(2))
        pages = [str(i) for i in range(300)]
        limits = client.client.connect().limits
        small = pb.HelloReply()
        small.CopyFrom(client.client.connect())
        small.limits.bytes_in_flight, small.limits.ranges, small.limits.keys = 4 * 10000, 4 * 64, 4 * 20
        with mock.patch.object(client.client, "connect", lambda *_: small):
            self.assertTrue(all(self.put(client, pool, pages)))
            pool.poison()
            ptrs, sizes, offsets = pool.ranges(range(300), {0, 1})
            self.assertTrue(all(client.batch_get_ranges_into_ptr(pages and pool.keys(pages), ptrs, sizes, offsets)))
        pool.check(dict(enumerate(pages)))
        self.assertGreater(limits.bytes_in_flight, 40000)

    def test_more_keys_than_a_handle_has_room_for(self):
        client = self.umbp()
        pool = self.pool(client, pages=40)
        pages = [str(i) for i in range(40)]
        self.assertTrue(all(self.put(client, pool, pages)))
        small = pb.HelloReply()
        small.CopyFrom(client.client.connect())
        small.limits.handle_keys = 4 * 16
        with mock.patch.object(client.client, "connect", lambda *_: small):
            for n in range(3):
                for step in (40, 7):  # more than a generation, and several generations
                    pool.poison()
                    keys = pool.keys(pages)
                    ptrs, sizes, offsets = pool.ranges(range(40), {n, n + 1})
                    for at in range(0, 40, step):
                        some = slice(at, at + step)
                        self.assertTrue(all(client.batch_get_ranges_into_ptr(keys[some], ptrs[some], sizes[some], offsets[some])))
                    pool.check(dict(enumerate(pages)), {n, n + 1})
        self.assertLessEqual(client.client.stats()[1]["handles"], 3)

    def test_keys_that_are_busy_or_late_are_asked_for_again_and_the_others_are_not(self):
        client = self.umbp()
        pool = self.pool(client)
        self.put(client, pool, ["a", "b", "c"])
        pool.poison()
        ptrs, sizes, offsets = pool.ranges([4, 5, 6, 7], set(pool.layers))
        real, asked = ReadSession.get, []
        said = [[pb.KEY_STATUS_BUSY, pb.KEY_STATUS_HIT, pb.KEY_STATUS_LATE, pb.KEY_STATUS_NOT_FOUND],
                       [pb.KEY_STATUS_HIT], [pb.KEY_STATUS_BUSY]]  # what is late begins again in another session

        def get(session, parts, timeout):
            reply = real(session, parts, timeout)
            asked.append(len(reply.status))
            return reply._replace(status=said.pop(0)) if said else reply

        with mock.patch.object(ReadSession, "get", get):
            self.assertEqual([True, True, True, False], client.batch_get_ranges_into_ptr(pool.keys(["a", "b", "c", "none"]), ptrs, sizes, offsets))
        self.assertEqual([4, 1, 1, 1], asked)

    def test_a_key_that_stays_busy_is_false_within_the_bound(self):
        client = self.umbp()
        pool = self.pool(client)
        ptrs, sizes, offsets = pool.ranges([4], {0})
        with mock.patch.object(umbp, "RETRY_FOR", 0.2), mock.patch.object(ReadSession, "get", lambda _, parts, timeout: Reply([pb.KEY_STATUS_BUSY], {}, 0, 0)):
            self.assertEqual([False], client.batch_get_ranges_into_ptr(["a"], ptrs, sizes, offsets))
        self.assertEqual(1, client.counts["get: BUSY"])

    def test_deregister_returns_when_no_call_uses_the_memory(self):
        for shared in (True, False):
            client = self.umbp(f"{self.id()} {shared}")
            pool = self.pool(client, shared=shared)
            self.put(client, pool, ["a"])
            ptrs, sizes, offsets = pool.ranges([4], {0})
            real, inside, go_on, answers = ReadSession.get, threading.Event(), threading.Event(), []

            def get(session, parts, timeout):
                inside.set()
                go_on.wait(30)
                return real(session, parts, timeout)

            with mock.patch.object(ReadSession, "get", get):
                load = threading.Thread(target=lambda: answers.append(client.batch_get_ranges_into_ptr(pool.keys("a"), ptrs, sizes, offsets)))
                load.start()
                self.assertTrue(inside.wait(30))
                ended = threading.Event()
                deregister = threading.Thread(target=lambda: (client.deregister_memory(pool.buffers[0].address), ended.set()))
                deregister.start()
                self.assertFalse(ended.wait(0.2))
                self.assertEqual([False], client.batch_get_ranges_into_ptr(pool.keys("a"), ptrs, sizes, offsets), "later calls do not find it")
                go_on.set()
                load.join(30)
                deregister.join(30)
            self.assertEqual([[True]], answers)
            self.assertTrue(ended.is_set())

    def test_whole_objects(self):
        client = self.umbp()
        a = Buffer(1 << 16, True)
        self.addCleanup(a.close)
        client.register_memory(a.address, a.nbytes)
        a.bytes[:1000] = content("w", 1000)
        self.assertIs(True, client.put_from_ptr("w", a.address, 1000))
        self.assertEqual([True], client.batch_put_from_ptr_with_depth(["w"], [a.address], [1000], [3]))
        self.assertIs(True, client.get_into_ptr("w", a.address + 2000, 1000))
        np.testing.assert_array_equal(content("w", 1000), a.bytes[2000:3000])
        self.assertIs(True, client.exists("w"))
        self.assertEqual(1, client.batch_exists_consecutive(["w", "x", "w"]))

    def test_private_objects_larger_than_a_buffer(self):
        client = self.umbp()
        pool = self.pool(client, pages=9, widths=(1000,), layers=range(2), shared=False)
        with mock.patch.object(umbp, "STAGE_BYTES", 4096):
            self.assertTrue(all(self.put(client, pool, [str(i) for i in range(9)])))
            with mock.patch.object(umbp, "STAGE_BYTES", 1024):  # an object alone
                pool.poison()
                ptrs, sizes, offsets = pool.ranges(range(9), {0, 1})
                self.assertTrue(all(client.batch_get_ranges_into_ptr(pool.keys([str(i) for i in range(9)]), ptrs, sizes, offsets)))
        pool.check({i: str(i) for i in range(9)})

    def test_a_kind_is_logged_once(self):
        client = self.umbp()
        pool = self.pool(client)
        ptrs, sizes, offsets = pool.ranges([0], {0})
        logging.getLogger("spanpool.umbp").setLevel(logging.WARNING)
        try:
            with self.assertLogs("spanpool.umbp") as logs:
                for _ in range(5):
                    client.batch_get_ranges_into_ptr(["none"], ptrs, sizes, offsets)
        finally:
            logging.getLogger("spanpool.umbp").setLevel(logging.CRITICAL)
        self.assertEqual(1, len(logs.output))
        self.assertEqual(5, client.counts["get: NOT_FOUND"])

    def test_no_namespace_is_refused(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("SPANPOOL_NAMESPACE", None)
            with self.assertRaisesRegex(ValueError, "SPANPOOL_NAMESPACE"):
                umbp.UMBPClient(umbp.UMBPConfig())

    def test_an_address_of_another_host_is_refused_at_once(self):
        config = umbp.UMBPConfig()
        config.namespace, config.standalone_process = "n", umbp.UMBPStandaloneProcessConfig()
        config.standalone_process.address = "localhost:50051"
        with self.assertRaisesRegex(ValueError, "localhost:50051.*unix://"):
            umbp.UMBPClient(config)

    def test_no_node_is_an_error_at_the_start(self):
        config = umbp.UMBPConfig()
        config.namespace = "n"
        config.standalone_process = umbp.UMBPStandaloneProcessConfig()
        config.standalone_process.address, config.standalone_process.startup_timeout_ms = "unix:///nowhere/engine.sock", 200
        with self.assertRaises(RuntimeError):
            umbp.UMBPClient(config)

    def test_the_shim_has_the_references_name(self):
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        program = "import mori.umbp, os; c = mori.umbp.UMBPClient(mori.umbp.UMBPConfig.from_environment()); print(type(c).__module__, c.supports_ranged_io())"
        for name, path, before in [("folder", f"{root}:{root}/shim", ""), ("install", root, "import spanpool.umbp; spanpool.umbp.install(); ")]:
            with self.subTest(name):
                out = subprocess.run([sys.executable, "-c", before + program], capture_output=True, text=True, timeout=60, check=True, env={
                    **os.environ, "PYTHONPATH": path, "UMBP_STANDALONE_ADDRESS": "unix://" + self.node.socket, "SPANPOOL_NAMESPACE": "n"})
                self.assertEqual("spanpool.umbp True", out.stdout.strip())

    def test_the_finalizer_closes(self):
        config = umbp.UMBPConfig()
        config.namespace = "finalizer"
        config.standalone_process = umbp.UMBPStandaloneProcessConfig()
        config.standalone_process.address = self.node.socket
        client, watcher = umbp.UMBPClient(config), self.umbp()
        clients = lambda: watcher.client.stats()[0]["now.engine.clients"]
        pool = self.pool(client)
        self.put(client, pool, ["a"])
        before = clients()
        del client
        self._cleanups.clear()
        gc.collect()
        eventually("one client less", lambda: clients() == before - 1)
        watcher.close()


if __name__ == "__main__":
    unittest.main()
