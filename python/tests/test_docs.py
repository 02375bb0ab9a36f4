import os
import re
import subprocess
import sys
import unittest

from tests.sidecar import Sidecar

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class DocsTest(unittest.TestCase):
    def test_the_first_example_works(self):
        with open(os.path.join(ROOT, "docs", "python.md"), encoding="utf-8") as f:
            code = re.search(r"```python\n(.*?)```", f.read(), re.S).group(1)
        node = Sidecar(64)
        self.addCleanup(node.close)
        self.assertIn("/tmp/engine.sock", code)
        out = subprocess.run([sys.executable, "-c", code.replace("/tmp/engine.sock", node.socket)], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
        self.assertEqual((0, ""), (out.returncode, out.stderr))
        self.assertIn("4 pages are there", out.stdout)
        self.assertIn("all bytes are back: True", out.stdout)


class BenchTest(unittest.TestCase):
    def test_the_benchmark_runs_and_verifies(self):
        node = Sidecar(256)
        self.addCleanup(node.close)
        out = subprocess.run([sys.executable, "-m", "spanpool.bench", "--socket", node.socket, "--runs", "1"], capture_output=True, text=True, timeout=120,
                             env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
        self.assertEqual((0, ""), (out.returncode, out.stderr), out.stdout)
        self.assertEqual(4, len(out.stdout.splitlines()), out.stdout)


if __name__ == "__main__":
    unittest.main()
