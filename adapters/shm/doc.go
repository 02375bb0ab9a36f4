// Package shm is the Transport between processes of one host: the reader maps the owner's buffers and copies out of them. Reads only;
// no byte goes through the kernel, and the owner does nothing for one.
//
// An owner listens on a Unix socket with an abstract name, which has no file that could be left behind. Its answer to a peer of the
// same host and network namespace names the socket and carries a key; who proves the key on the socket is sent the descriptors of the
// buffers' files (SCM_RIGHTS), and maps them to read. The connection stays open: it carries nothing more, and its end is the end of
// the link on both sides. A reader whose connection ends unmaps as soon as no copy runs, which is when the last piece of a copy (at
// most pieceBytes) is done, and hangs up after that; so an owner knows, and a dead owner's memory is the host's again.
//
// A reader is safe from its peer: the files must be sealed against shrinking, and a fault under a copy fails its op. An owner is safe
// from its readers: Expose seals against writing by any mapping but those there are. What is read is right when the copy ended
// before the lease did: an op completes at an instant that is read after its last byte, and the caller compares. Nothing else fences.
//
// Lock order: Transport.mu is a leaf. It is never held while bytes are copied, and never across a system call.
package shm
