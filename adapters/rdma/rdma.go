// Package rdma is the Transport over libibverbs: InfiniBand and RoCE. It is there behind the build tag rdma (make sets it where the
// library's header is); elsewhere Open says that it is not.
//
// A link is a few reliable queue pairs to one start of a peer: one for control, some that carry reads and some that carry writes.
// The peers' hello carries an offer (GIDs, queue pair numbers) and its answer (the same, and where the exposed buffers lie, with the
// keys to read them). After that reads need nobody at the owner: a batch is cut into work requests that are contiguous at the owner
// and have up to MaxSGE pieces here, chained, and given to the device by one call a chain.
//
// The control pair carries small messages: the asker asks, one request at a time, and the owner answers (message.go).
//
//	ping      is it this start, and does the way work: when a link is made, and every Config.Keepalive
//	open      a grant's token, for the pages that it is good for and the keys to write them
//	revive    another queue pair in place of one that failed
//	fenced    from the owner, unasked: it revoked a grant, and with it the queue pairs for writes
//
// Who may write. Memory is registered twice: for reads by everyone with a link, and for writes with keys that only the holder of a live
// grant is told. Such a key checks no pages, so what fences is the queue pair: Revoke destroys the responder's pairs for writes of
// every link over which the grant was opened, and returns when they are gone. The writer then asks for new ones, and opens each grant
// again before a byte goes over them, since the pages may be another key's by now. A grant is opened for each batch: none is
// remembered. The asker checks that a write stays on granted pages; an owner has to trust it in that, as it does in any other thing
// over such a key.
//
// Quiet memory. A work request is given up only when its completion was seen, or its queue pair is destroyed: an op past its deadline,
// and the end of a link, move the pair to the state of error and wait for what is flushed, for a bounded time. What was flushed and
// was not at fault is done again on the pair's successor: reads once, writes after their grant was opened again. Cancel can only take
// back what is not posted.
//
// Locks. Transport.mu, inbound.mu and Link.mu are each taken with none of the others held; Completions comes after Link.mu. Link.mu and
// inbound.mu are held across calls of verbs, none of which waits for a peer or calls back: what is posted must be in the order of the
// rings, and a queue pair is not to be posted to while it is destroyed.
package rdma

import "github.com/spanpool/spanpool/ports"

// Kind is the name of this transport.
const Kind ports.TransportKind = "rdma"
