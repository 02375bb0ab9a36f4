"""Names of namespaces and keys that every process and language makes alike. docs/engine.md has the rule, testdata/keys.json vectors."""
from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Sequence

import numpy as np

KEY_BYTES = 16  # of a hash: 128 bits, at which no two prompts meet by chance


@dataclass(frozen=True)
class Namespace:
    """What must not meet under one key: two programs whose bytes differ in one of these never share an object. page_size is in tokens;
    parallel sizes are no ranks, which are parts of keys; extra is anything else that tells bytes apart."""

    model: str = ""
    revision: str = ""
    dtype: str = ""
    layout: str = ""
    page_size: int = 0
    tp_size: int = 0
    pp_size: int = 0
    cp_size: int = 0
    extra: str = ""

    def fingerprint(self) -> str:
        """The namespace's name."""
        h = hashlib.sha256(_text("spanpool.namespace.1"))
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and not 0 <= int(value) < 1 << 64:
                raise ValueError(f"{f.name} is {value}, want 0 to 2^64 - 1")
            h.update(_text(str(value)))
        return "sp1-" + h.hexdigest()[:2 * KEY_BYTES]


def page_keys(namespace: str, tokens: Sequence[int], page_size: int) -> list[str]:
    """The names of the full pages of a prompt: a key stands for its page and all before it. A last page that is not full has none, and
    a page size of 0 has no pages. Tokens are below 2^32."""
    if page_size <= 0:
        return []
    column = np.asarray(tokens, dtype=np.int64)
    if column.size and not 0 <= int(column.min()) <= int(column.max()) < 1 << 32:
        raise ValueError("a token is not in 0 to 2^32 - 1")
    data = column.astype("<u4").tobytes()
    digest = hashlib.sha256(_text("spanpool.key.1") + _text(namespace)).digest()
    keys = []
    step = 4 * page_size
    for lo in range(0, len(data) // step * step, step):
        digest = hashlib.sha256(digest + data[lo:lo + step]).digest()
        keys.append(digest[:KEY_BYTES].hex())
    return keys


def _text(s: str) -> bytes:
    """s so that no two lists of texts have the same bytes."""
    b = s.encode("utf-8")
    return len(b).to_bytes(4, "little") + b
