import json
import os
import re
import subprocess
import sys
import unittest

from spanpool.keys import Namespace, page_keys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class KeysTest(unittest.TestCase):
    def test_keys_are_those_of_the_vectors(self):
        with open(os.path.join(ROOT, "testdata", "keys.json"), encoding="utf-8") as f:
            vectors = json.load(f)
        self.assertGreater(len(vectors["namespaces"]), 5)
        for n in vectors["namespaces"]:
            want = n.pop("fingerprint")
            self.assertEqual(want, Namespace(**n).fingerprint(), n)
        self.assertGreater(len(vectors["prompts"]), 5)
        for p in vectors["prompts"]:
            self.assertEqual(p["keys"], page_keys(p["namespace"], p["tokens"], p["page_size"]))

    def test_every_field_of_a_namespace_tells_it_apart(self):
        seen = {Namespace().fingerprint()}
        for field in ("model", "revision", "dtype", "layout", "extra"):
            seen.add(Namespace(**{field: "x"}).fingerprint())
        for field in ("page_size", "tp_size", "pp_size", "cp_size"):
            seen.add(Namespace(**{field: 1}).fingerprint())
        self.assertEqual(10, len(seen))

    def test_what_is_no_token_is_refused(self):
        for tokens in ([-1], [1 << 32]):
            with self.assertRaises(ValueError):
                page_keys("n", tokens, 1)
        with self.assertRaises(ValueError):
            Namespace(page_size=-1).fingerprint()
        self.assertEqual([], page_keys("n", [1], 0))

    def command(self, *args):
        return subprocess.run([sys.executable, "-m", "spanpool.keys", *args], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})

    def test_the_command_prints_the_fingerprint(self):
        out = self.command("--model", "m", "--tp-size", "8", "--dtype", "d", "--page-size", "64")
        self.assertEqual(Namespace(model="m", tp_size=8, dtype="d", page_size=64).fingerprint(), out.stdout.strip())
        self.assertEqual((0, ""), (out.returncode, out.stderr), "whoever captures the one sees the other")

    def test_the_command_wants_what_engines_keys_do_not_hold(self):
        out = self.command("--model", "m", "--tp-size", "8")
        self.assertEqual((2, ""), (out.returncode, out.stdout))
        self.assertIn("--dtype, --page-size", out.stderr)
        out = self.command("--model", "m", "--tp-size", "8", "--dtype", "d", "--page-size", "-1")
        self.assertEqual((2, ""), (out.returncode, out.stdout))
        self.assertIn("page_size is -1", out.stderr)
        for line in ("--extra", "--cp-size"):
            self.assertIn(line, self.command("--help").stdout)

    def test_every_package_is_installed(self):
        """pip installs what pyproject.toml lists, and nothing that stands beside it."""
        with open(os.path.join(ROOT, "python", "pyproject.toml"), encoding="utf-8") as f:
            listed = re.search(r"^packages = \[(.*)\]", f.read(), re.M).group(1)
        there = [os.path.relpath(folder, os.path.join(ROOT, "python")).replace(os.sep, ".")
                 for folder, _, files in os.walk(os.path.join(ROOT, "python", "spanpool")) if "__init__.py" in files]
        self.assertEqual(sorted(there), sorted(re.findall(r'"([^"]+)"', listed)))


if __name__ == "__main__":
    unittest.main()
