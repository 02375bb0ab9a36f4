// Package tcp is the Transport over TCP: the default between hosts.
//
// A link is a few connections to one start of a peer, which here are called lanes. The peers' hello carries an offer (version,
// features, a nonce) and its answer (addresses, and a key that is good for one link of one start); each lane begins with a proof
// of that key, by challenge, from both ends. After that the asker sends requests and the owner answers them in their order:
//
//	request   header, [token,] segments, [payload]      asker to owner; token and payload of writes only
//	response  header, [payload]                         owner to asker; payload of reads that were granted only
//
// An op is cut into requests of at most chunkBytes. Lanes draw them from the link's one queue as they have room, so a slow lane
// takes less. Payload goes from exposed memory to the socket by writev and from the socket into place by readv; only what is
// small, or came with the header before it, passes through a lane's buffer.
//
// Quiet memory. Sockets are non-blocking: a system call that touches memory of a caller is made under a lock of its lane (of its
// grant, where the owner applies a write), and never waits under it. So whoever takes that lock and marks the memory as gone
// knows that nothing touches it any more, whatever the network does: Cancel, deadlines, Close and Revoke are exact and wait for
// no peer. What still arrives is thrown away; a writer that has stopped in mid fragment holds nothing but its own connection.
//
// Bounds of waits: an op's deadline (past it, if bytes of it are under way, the link ends); a connection that stands still in mid
// frame for Config.StallTimeout is closed by the owner; dialling and proofs take at most Config.DialTimeout.
//
// Lock order: Link.mu, then lane.in, then lane.out, then Completions; a socket's and a grant's lock and Transport.mu are taken with none of
// the others held, and of these only a socket's, and the book of grants', are taken under Transport.mu. A socket is closed with no lock
// held: that waits for steps, which want locks.
package tcp
