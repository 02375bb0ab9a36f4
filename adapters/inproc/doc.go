// Package inproc joins nodes of one process: Transport, PeerResolver, PeerWriter and Directory for embedding, tests and
// benchmarks. A transfer is a copy from host memory to host memory, in chunks of at most TurnBytes, each made by the goroutine
// (or thread) of the node pair; a write's chunk is applied under its grant's lock, so that Revoke is exact. With Options.Link
// copies and control calls are paced as on a link of that rate and delay (schedule.go); no network can be had on the processors
// of one machine without paying for it in processor time, and the modelled link shows what a structure is worth.
//
// An Endpoint is a node's place in a Network, and goes through starts: what Transport, Resolver and Writer return belongs to one
// start, which begins to answer with Start and ends with Stop. Peers see another incarnation as a restart; what belongs to an
// ended start is refused.
//
// Lock order: Network.mu, then pair.mu, then Transport.mu, then Completions or the book of grants. A grant's lock is taken
// with none of the others held, and none is taken under it.
package inproc
