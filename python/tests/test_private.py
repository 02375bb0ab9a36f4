import random
import unittest

import numpy as np

from spanpool import private
from spanpool.private import Column, DeviceBytes, HostBytes
from tests.content import POISON, content

try:
    import torch
except ImportError:
    torch = None


def on_host(array):
    return HostBytes(array.ctypes.data, array.nbytes)


def as_device(array):
    """Memory of the host as a tensor of torch's, as a GPU's would be."""
    return DeviceBytes(array.ctypes.data, array.nbytes, torch.from_numpy(array), 0)


class PrivateTest(unittest.TestCase):
    def check(self, kinds):
        random.seed(3)
        for case in range(60):
            m, lengths = random.randint(1, 9), [random.choice([1, 8, 40, 64, 1728]) for _ in range(random.randint(1, 5))]
            each = sum(lengths) + random.choice([0, 0, 24])
            rows = [random.randrange(20) for _ in range(m)] if case % 5 == 0 else random.sample(range(20), m)
            pools = [np.full(20 * (n + 16) + 32, POISON, dtype=np.uint8) for n in lengths]
            at = np.cumsum(lengths) - lengths
            columns = []
            for r, n in enumerate(lengths):
                addresses = np.array([pools[r].ctypes.data + 16 + row * (n + 16) for row in rows], dtype=np.int64)
                if case % 7 == 0 and m > 2 and kinds == [on_host]:
                    addresses[1] += 8  # no row of any pattern with the others, or of a fine one
                columns.append(Column(kinds[r % len(kinds)](pools[r]), addresses, n, int(at[r])))
            objects = [content(str(i), each) for i in range(m)]
            buffer = np.concatenate(objects + [np.full(each, POISON, dtype=np.uint8)])
            chosen = np.array(sorted(random.sample(range(m), random.randint(0, m))), dtype=np.int64)
            private.scatter([c._replace(addresses=c.addresses[chosen]) for c in columns], buffer, each, chosen)
            for c, pool in zip(columns, pools):
                want = np.full_like(pool, POISON)
                for i in chosen.tolist():
                    lo = int(c.addresses[i]) - pool.ctypes.data
                    want[lo:lo + c.length] = objects[i][c.at:c.at + c.length]
                if len(set(c.addresses[chosen].tolist())) == len(chosen):  # else the last one wins, or any
                    np.testing.assert_array_equal(want, pool)
            for pool in pools:
                pool[:] = content("pool", pool.nbytes)
            buffer[:] = POISON
            private.gather(columns, buffer, each)
            for i in range(m):
                for c, pool in zip(columns, pools):
                    lo = int(c.addresses[i]) - pool.ctypes.data
                    np.testing.assert_array_equal(pool[lo:lo + c.length], buffer[i * each + c.at:i * each + c.at + c.length])
                self.assertTrue((buffer[i * each + sum(lengths):(i + 1) * each] == POISON).all())
            self.assertTrue((buffer[m * each:] == POISON).all())

    def test_bytes_of_the_heap_come_and_go(self):
        self.check([on_host])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_bytes_of_tensors_come_and_go(self):
        self.check([as_device])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_bytes_of_both_come_and_go(self):
        self.check([on_host, as_device])


if __name__ == "__main__":
    unittest.main()
