package client

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strconv"
)

// Namespace is what must not meet under one key: two programs whose bytes differ in one of these never share an object.
type Namespace struct {
	Model    string
	Revision string // of the weights
	Dtype    string // of the cache, as "fp8_e4m3"
	Layout   string // how layers, heads and tokens lie in an object
	PageSize uint64 // tokens of a page
	TPSize   uint64 // parallel sizes, not ranks: ranks are parts of keys
	PPSize   uint64
	CPSize   uint64
	Extra    string // anything else that tells bytes apart
}

// keyBytes is how much of a hash is kept: 128 bits, at which no two prompts meet by chance.
const keyBytes = 16

// Fingerprint is the namespace's name, the same in every process and language (docs/engine.md has the rule, testdata/keys.json vectors).
func (n Namespace) Fingerprint() string {
	h := sha256.New()
	for _, s := range []string{"spanpool.namespace.1", n.Model, n.Revision, n.Dtype, n.Layout, decimal(n.PageSize), decimal(n.TPSize),
		decimal(n.PPSize), decimal(n.CPSize), n.Extra} {
		writeText(h, s)
	}
	return "sp1-" + hex.EncodeToString(h.Sum(nil)[:keyBytes])
}

// PromptKeys names the full pages of a prompt: a key stands for its page and all before it. A last page that is not full has none, and a page
// size of 0 has no pages.
func PromptKeys(namespace string, tokens []uint32, pageSize int) []string {
	if pageSize <= 0 {
		return nil
	}
	h := sha256.New()
	writeText(h, "spanpool.key.1")
	writeText(h, namespace)
	sum := h.Sum(nil)
	keys := make([]string, 0, len(tokens)/pageSize)
	page := make([]byte, 0, 4*pageSize)
	for ; len(tokens) >= pageSize; tokens = tokens[pageSize:] {
		page = page[:0]
		for _, t := range tokens[:pageSize] {
			page = binary.LittleEndian.AppendUint32(page, t)
		}
		h.Reset()
		h.Write(sum)
		h.Write(page)
		sum = h.Sum(sum[:0])
		keys = append(keys, hex.EncodeToString(sum[:keyBytes]))
	}
	return keys
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// writeText writes s so that no two lists of texts have the same bytes.
func writeText(h hash.Hash, s string) {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(s)))
	h.Write(n[:])
	h.Write([]byte(s))
}
