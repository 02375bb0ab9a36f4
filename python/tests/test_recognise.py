import random
import unittest

import numpy as np

from spanpool import recognise


def expand(classes):
    """What the classes say, by place."""
    out = {}
    for c in classes:
        for i, row in zip(c.members, c.addresses.tolist()):
            out[i] = (row, c.sizes.tolist(), c.offsets.tolist())
    return out


class ClassesTest(unittest.TestCase):
    def test_classes_say_what_the_lists_said(self):
        shared_s, shared_o = [5, 5], [0, 5]
        for name, sizes, offsets, want in [
            ("shared lists", [shared_s] * 6, [shared_o] * 6, 1),
            ("equal lists", [[5, 5] for _ in range(6)], [[0, 5] for _ in range(6)], 1),
            ("alternating", [[5], [7]] * 3, [[0], [3]] * 3, 2),
            ("cut between the two", [[7]] + [[5], [7]] * 2 + [[5]], [[3]] + [[0], [3]] * 2 + [[0]], 2),
            ("equal sizes at other offsets", [[5]] * 6, [[0], [5]] * 3, 2),
            ("three", [[1], [2], [3]] * 2, [[0]] * 6, 3),
            ("in no order", [[1], [2], [2], [1], [1], [2]], [[0]] * 6, 2),
            ("all different", [[i + 1] for i in range(6)], [[0]] * 6, 6),
        ]:
            with self.subTest(name):
                ptrs = [[1000 * i + 10 * r for r in range(len(sizes[i]))] for i in range(6)]
                classes, bad = recognise.classes(ptrs, sizes, offsets)
                self.assertEqual([], bad)
                self.assertEqual(want, len(classes))
                self.assertEqual({i: (ptrs[i], sizes[i], offsets[i]) for i in range(6)}, expand(classes))

    def test_a_key_with_malformed_lists_fails_alone(self):
        good = ([1, 2], [4, 4], [0, 4])
        for name, bad_key in [("too few addresses", ([1], [4, 4], [0, 4])), ("no ranges", ([], [], [])), ("too few offsets", ([1, 2], [4, 4], [0])),
                              ("a size of 0", ([1, 2], [4, 0], [0, 4])), ("negative offset", ([1, 2], [4, 4], [-1, 4])), ("None", (None, [4, 4], [0, 4])),
                              ("no list", ([1, 2], None, [0, 4])), ("too large a number", ([1 << 70, 2], [4, 4], [0, 4])),
                              ("negative address", ([-1, 2], [4, 4], [0, 4]))]:
            for place in (0, 1, 2):
                with self.subTest(name, place=place):
                    keys = [good, good, good]
                    keys[place] = bad_key
                    classes, bad = recognise.classes(*[list(c) for c in zip(*keys)])
                    self.assertEqual([place], bad)
                    self.assertEqual({0, 1, 2} - {place}, set(expand(classes)))


class AffineTest(unittest.TestCase):
    def test_the_pattern_gives_the_addresses_back(self):
        random.seed(1)
        for _ in range(300):
            n, m = random.randint(1, 6), random.randint(1, 8)
            origin = random.randint(0, 1 << 46)
            stride = [random.randint(1, 5) * 64 for _ in range(n)] if random.random() < 0.5 else [1728] * n
            base = [origin + 100 * r for r in range(n)]
            rows = [random.randint(0, 1000) for _ in range(m)]
            addresses = np.array([[base[r] + row * stride[r] for r in range(n)] for row in rows], dtype=np.int64)
            hint = np.array(rows if random.random() < 0.3 else [random.randint(0, 9) for _ in range(m)]) if random.random() < 0.5 else None
            p = recognise.affine(addresses, origin, hint)
            self.assertIsNotNone(p)
            self.assertTrue((p.base + p.row[:, None] * p.stride == addresses).all())
            self.assertGreaterEqual(min(p.base.min(), p.stride.min(), p.row.min()), 0)

    def test_addresses_without_a_pattern_have_none(self):
        self.assertIsNone(recognise.affine(np.array([[0, 100], [10, 111], [20, 120]]), 0))
        self.assertIsNone(recognise.affine(np.array([[0, 100], [0, 110]]), 0))
        self.assertIsNone(recognise.affine(np.array([[0, 120], [10, 110]]), 0), "a stride below 0")

    def test_calls_that_cut_keys_differently_find_the_same_rows(self):
        rows = [7, 3, 9, 4, 100, 51, 10]
        addresses = np.array([[4096 + 192 * r] for r in rows])
        whole = recognise.affine(addresses, 4096).row.tolist()
        cut = recognise.affine(addresses[:4], 4096).row.tolist() + recognise.affine(addresses[4:], 4096).row.tolist()
        self.assertEqual(rows, whole)
        self.assertEqual(whole, cut)

    def test_runs_stand_for_the_places(self):
        for places in ([0], [5, 6, 7], [3, 1, 2, 2, 3], [9, 8, 7]):
            first, count = recognise.runs(np.array(places))
            self.assertEqual(places, [f + i for f, c in zip(first.tolist(), count.tolist()) for i in range(c)])
        self.assertEqual(1, len(recognise.runs(np.arange(100))[0]))


if __name__ == "__main__":
    unittest.main()
