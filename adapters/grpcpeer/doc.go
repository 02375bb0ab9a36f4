// Package grpcpeer is the control plane between nodes over gRPC: Client is the PeerResolver and the PeerWriter of a node, Server
// serves its PeerServer to the others, Static is the Directory of a list of peers that is given. The messages, and the rules they
// follow on the wire, are in proto/spanpool/peer/v1.
//
// One call of a port is one call of gRPC, however long: columns are cut into parts of about 1 MiB and joined again, so the message
// limit of gRPC is never met, and the PeerServer sees the call whole. What a peer sends is checked before it becomes columns of
// ports: nothing that comes in on a socket reaches a panic.
//
// Each call names both ends. A server refuses what names another start than its own (ErrRestarted) before its PeerServer sees it.
// A call that was under way on a connection that broke is sent once more, on a new one; every call is idempotent.
//
// # The shared secret
//
// With a secret, both ends of every connection prove that they know it, by a challenge, before the first call; it is never sent.
// The proof covers both nonces, both ids and both incarnations, and what was proven belongs to that connection: a recorded proof is
// of no use on another one, and a call that names another asker than the one that was proven is refused.
//
// This is authentication and nothing more. What follows on the connection is neither encrypted nor signed: who can read the
// network's packets reads the keys, and who can change them can take a proven connection over. Who records a proof can try
// secrets against it at leisure, so a secret is drawn at random, of 16 bytes or more, and not thought up. Against an attacker on the
// path there has to be TLS, or a network that is trusted.
//
// # Goroutines and locks
//
// Those of gRPC, and one per call that it serves. Client.Close and Server.Stop end them. The one lock, listener.mu, is held across
// nothing.
package grpcpeer
