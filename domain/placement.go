package domain

// RendezvousWeight orders peers for a key: the highest weight first. The same on every node: FNV-1a over key and peer, then a
// finalizer.
func RendezvousWeight(name, peer string) uint64 {
	h := uint64(fnvOffset)
	h = fnv1a(h, name)
	h = fnv1a(h, "\x00") // ("ab", "c") is not ("a", "bc")
	h = fnv1a(h, peer)
	// FNV-1a hardly moves the high bits with the last bytes, where the names of peers differ: the finalizer of MurmurHash3.
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}

const (
	fnvOffset = 0xcbf29ce484222325
	fnvPrime  = 0x100000001b3
)

func fnv1a(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}
