"""What a load through spanpool.umbp sees of keys that are put again meanwhile: one version, or a failure."""
import logging
import threading
from unittest import mock

import numpy as np

from spanpool import loads, umbp
from spanpool.client import Client, Pattern, Placed, ReadSession
from spanpool.engine.v1 import engine_pb2 as pb
from tests.host import Pool
from tests.sidecar import eventually
from tests.test_umbp import Case

LAYERS = 8
BYTES = 256  # of a layer


class LoadsTest(Case):
    def setUp(self):
        self.client = self.umbp()
        self.writer = Client(self.node.socket, self.id())
        self.addCleanup(self.writer.close)
        self.memory = self.writer.allocate(1 << 20)
        patch = mock.patch.object(umbp, "RETRY_FOR", 1.0)  # what stays late is told so soon, and what does not has time on a busy machine
        patch.start()
        self.addCleanup(patch.stop)

    def pool(self, shared=True, rows=32):
        pool = Pool("p", range(LAYERS), [BYTES], rows, shared=shared)
        for b in pool.buffers:
            self.assertIs(True, self.client.register_memory(b.address, b.nbytes))
            self.addCleanup(b.close)
        pool.poison()
        return pool

    def store(self, keys, value):
        """Another client puts all keys anew; every byte is value."""
        self.writer.remove(keys)
        self.memory.buffer[:] = value
        whole = Pattern([0], [LAYERS * BYTES], [self.memory], [0], [0], [0] * len(keys))
        self.assertEqual({"STORED"}, set(self.writer.put([Placed(keys, whole, [LAYERS * BYTES])]).names()))

    def get(self, pool, pages, rows, layers):
        ptrs, sizes, offsets = pool.ranges(rows, set(layers))
        return self.client.batch_get_ranges_into_ptr(pool.keys(pages), ptrs, sizes, offsets)

    def seen(self, pool, row):
        """The value of each layer of a row."""
        out = []
        for layer in range(LAYERS):
            page = pool.page(0, layer, row)
            self.assertTrue((page == page[0]).all(), "one value a layer")
            out.append(int(page[0]))
        return out

    def test_a_key_that_is_put_again_between_two_groups_is_never_a_mix(self):
        for shared in (True, False):
            with self.subTest(shared=shared):
                pool = self.pool(shared)
                keys = pool.keys(["a", "b", "c"])
                self.store(keys, 1)
                self.assertEqual([True] * 3, self.get(pool, ["a", "b", "c"], [3, 1, 2], range(4)))
                self.store(keys[1:], 2)
                before = self.seen(pool, 1)
                self.assertEqual([True, False, False], self.get(pool, ["a", "b", "c"], [3, 1, 2], range(4, 8)), "only a has its version still")
                self.assertEqual([1] * 8, self.seen(pool, 3))
                self.assertEqual(before, self.seen(pool, 1), "and nothing of the other came")
                # The next load begins anew, and has all of the new version.
                for group in (range(4), range(4, 8)):
                    self.assertEqual([True] * 3, self.get(pool, ["a", "b", "c"], [5, 6, 7], group))
                self.assertEqual([[1] * 8, [2] * 8, [2] * 8], [self.seen(pool, row) for row in (5, 6, 7)])

    def test_keys_of_a_load_are_cut_as_they_may_be(self):
        pool = self.pool()
        pages = [f"{i}" for i in range(12)]
        self.store(pool.keys(pages), 1)
        for at in range(0, 12, 5):
            self.assertTrue(all(self.get(pool, pages[at:at + 5], range(at, min(at + 5, 12)), range(3))))
        self.store(pool.keys(pages[4:6]), 2)
        got = []
        for at in range(0, 12, 4):
            got += self.get(pool, pages[at:at + 4], range(at, at + 4), range(3, 6))
        self.assertEqual([i not in (4, 5) for i in range(12)], got)

    def test_a_key_twice_in_a_load_is_one_version(self):
        pool = self.pool()
        keys = pool.keys(["a"])
        self.store(keys, 1)
        self.assertEqual([True], self.get(pool, ["a"], [0], range(4)))
        self.store(keys, 2)
        self.assertEqual([True], self.get(pool, ["a"], [1], range(4)), "again in the same group, to another row, or another load")
        self.assertEqual([1] * 4, self.seen(pool, 0)[:4])
        self.assertEqual([2] * 4, self.seen(pool, 1)[:4])
        for group in (range(4, 6), range(6, 8)):
            for row in (0, 1):
                self.assertEqual([False], self.get(pool, ["a"], [row], group), "nobody can tell which of the two it is of")
        for group in (range(4), range(4, 8)):
            self.assertEqual([True], self.get(pool, ["a"], [2], group), "a load that begins lower is another one")
        self.assertEqual([2] * 8, self.seen(pool, 2))

    def test_gets_of_one_group_have_each_the_version_that_is_there(self):
        for shared in (True, False):
            pool = self.pool(shared)
            for pages, group in [("ab", range(8)), ("cd", range(4, 8))]:
                for value in range(1, 6):
                    self.store(pool.keys(pages)[(value + 1) % 2:], value)
                    for row in (3, 4):
                        self.assertEqual([True] * 2, self.get(pool, pages, [row, row + 5], group))
                        self.assertEqual(value, self.seen(pool, row + 5)[7])
        self.assertNotIn("get: LATE", self.client.counts)

    def test_a_load_that_ended_early_does_not_hold_up_the_next_one(self):
        pool = self.pool()
        keys = pool.keys(["a"])
        for value in range(1, 4):
            self.store(keys, value)
            self.assertEqual([True], self.get(pool, ["a"], [0], range(4)), "and its engine gives up")
        answers = [self.get(pool, ["a"], [1], group)[0] for _ in range(3) for group in (range(4), range(4, 8))]
        self.assertEqual([True, False, True, True, True, True], answers, "one load may fail")
        self.assertEqual([3] * 8, self.seen(pool, 1))

    def test_a_first_get_that_is_late_begins_again_in_another_session(self):
        pool = self.pool()
        keys = pool.keys(["a"])
        self.store(keys, 1)
        real, used = ReadSession.get, []

        def get(session, parts, timeout):
            used.append(session.number)
            reply = real(session, parts, timeout)
            return reply._replace(status=[pb.KEY_STATUS_LATE]) if len(used) in (1, 3) else reply

        with mock.patch.object(ReadSession, "get", get):
            for group in (range(4), range(4, 8)):
                self.assertEqual([True], self.get(pool, ["a"], [0], group))
        self.assertEqual([True, False, False, False], [n == used[0] for n in used])
        self.assertEqual(used[1:2] * 3, used[1:], "what is late later is asked for again in its own")

    def test_a_key_twice_in_a_call_with_other_ranges_is_one_version(self):
        pool = self.pool()
        keys = pool.keys(["a"])
        self.store(keys, 1)
        high, low = pool.ranges([0], {4, 5}), pool.ranges([1], {0, 1})
        both = [a + b for a, b in zip(high, low)]
        begun = []
        real = loads.Loads._begin
        with mock.patch.object(loads.Loads, "_begin", lambda self, *a: begun.append(1) or real(self, *a)):
            self.assertEqual([True, True], self.client.batch_get_ranges_into_ptr(keys * 2, *both))
        self.assertEqual([1], begun, "one load begins, though the call names its higher layers first")

    def test_threads_load_the_same_key_each_for_itself(self):
        pool = self.pool()
        keys = pool.keys(["a"])
        self.store(keys, 1)
        self.assertEqual([True], self.get(pool, ["a"], [0], range(4)))
        self.store(keys, 2)
        got = []
        thread = threading.Thread(target=lambda: got.extend(self.get(pool, ["a"], [1], range(4)) + self.get(pool, ["a"], [1], range(4, 8))))
        thread.start()
        thread.join(60)
        self.assertEqual([True, True], got)
        self.assertEqual([2] * 8, self.seen(pool, 1))
        self.assertEqual([False], self.get(pool, ["a"], [0], range(4, 8)), "this thread's load is of the old one")

    def test_a_load_goes_on_when_its_keys_are_named_anew(self):
        pool = self.pool()
        pages = [f"{i}" for i in range(8)]
        self.store(pool.keys(pages), 1)
        small = pb.HelloReply()
        small.CopyFrom(self.client.client.connect())
        small.limits.handle_keys = 4 * 8
        with mock.patch.object(self.client.client, "connect", lambda *_: small), mock.patch.object(loads, "AGE", 0):
            self.assertTrue(all(self.get(pool, pages[:4], range(4), range(4))))
            self.assertTrue(all(self.get(pool, pages[4:5], [4], range(2, 4))))
            others = [list("uvxyz"), list("UVXYZ")]
            for n, them in enumerate(others):
                self.store(pool.keys(them + [str(n)]), 2)
                # More than there is room for beside those that are named, so that all are named anew.
                self.assertTrue(all(self.get(pool, them, range(8, 13), range(4))))
                self.assertEqual(len(them), len(self.client._names._now.places))
            self.assertEqual([False, False, True], self.get(pool, pages[:3], range(3), range(4, 8)))
            self.store(pool.keys(pages[4:5]), 2)
            self.assertEqual([True], self.get(pool, pages[4:5], [4], range(2, 4)), "it began there")

    def test_a_key_that_comes_twice_counts_once(self):
        pool = self.pool()
        pages = ["a", "b", "a", "c", "b"]
        self.store(pool.keys("abc"), 1)
        for n in range(4):
            for group in (range(4), range(4, 8)):
                self.assertTrue(all(self.get(pool, pages, range(5), group)))
            self.assertEqual([3], [s.keys for s in self.client._loads._open.values()], "and the session before is closed")

    def test_sessions_end_by_new_loads_and_by_idleness(self):
        pool = self.pool()
        pages = ["a", "b", "c"]
        self.store(pool.keys(pages), 1)
        with mock.patch.object(loads, "IDLE", 0.4):
            for _ in range(200):
                for group in (range(4), range(4, 8)):
                    self.assertTrue(all(self.get(pool, pages, [0, 1, 2], group)))
            self.assertLessEqual(self.client.client.stats()[1]["read_sessions"], 2 * loads.OPEN + 2)
            eventually("idle sessions are closed", lambda: self.client.client.stats()[1]["read_sessions"] == 0)
            self.assertTrue(all(self.get(pool, pages, [0, 1, 2], range(4, 8))), "and what comes later is another load")

    def test_a_node_that_is_started_anew_ends_a_load_and_not_the_next_one(self):
        pool = self.pool()
        keys = pool.keys(["a"])
        self.store(keys, 1)
        self.assertEqual([True], self.get(pool, ["a"], [0], range(4)))
        self.node.kill()
        self.node.start()
        self.store(keys, 2)
        self.assertEqual([False], self.get(pool, ["a"], [0], range(4, 8)))
        for group in (range(4), range(4, 8)):
            self.assertEqual([True], self.get(pool, ["a"], [0], group))
        self.assertEqual([2] * 8, self.seen(pool, 0))

    def test_the_first_get_after_a_restart_begins_again(self):
        pool = self.pool()
        keys = pool.keys(["a", "b"])
        self.store(keys, 1)
        self.assertEqual([True], self.get(pool, ["a"], [0], range(4)))  # b will begin in this session
        self.node.kill()
        self.node.start()
        self.store(keys, 2)
        self.assertEqual([True], self.get(pool, ["b"], [1], range(4)))
        np.testing.assert_array_equal(2, pool.page(0, 0, 1))


del Case
logging.getLogger("spanpool.umbp").setLevel(logging.CRITICAL)
