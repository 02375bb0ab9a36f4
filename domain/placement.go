package domain

// RendezvousWeight orders peers for a key: the highest weight first. The same on every node: FNV-1a over key and peer, then a
// finalizer.
func RendezvousWeight(name, peer string) uint64 { panic("todo") }
