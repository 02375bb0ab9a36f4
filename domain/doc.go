// Package domain holds the rules of spanpool: values in, values out. It does no I/O, reads no clock, starts no
// goroutine and takes no lock; whoever calls it carries its plans out and serialises access to its tables.
//
// The words of the field, one per idea, in code, docs, flags and metrics alike:
//
//   - object: an immutable value under a key, written once, whole or not at all.
//   - version: 128 random bits drawn by the writer of a put. Same key, same version: same bytes.
//   - range: what a caller names: object offset, length, and where the bytes go or come from.
//   - run: a half-open interval [Off, Off+Len) of an object.
//   - span: a maximal run of ranges that are adjacent in the object: what is fetched.
//   - page, layout: an object lies on fixed-size pages of a medium's buffers; its layout is (pages, page size, size).
//   - fragment: the part of a span that lies on one page.
//   - slot: the pages reserved for one object: pending (a writer), filling (readers), committed, doomed.
//   - extent: a run of bytes that a filling slot already holds.
//   - pin: a count that keeps a slot's pages from being reused while this process touches them.
//   - lease: the time for which a peer promises another node not to reuse an object's pages.
//   - generation: one use of a slot's pages: (incarnation, counter that is never reused).
//   - unit: (key, run of spans) that fits the arena at once.
//   - route: which destination a fetch takes: slot, direct, or arena.
//   - install: making a fetched object local; a free install costs no extra wire bytes.
//   - pull: the background fetch of what is missing to make an object local.
//
// All sizes are uint64. Sums of values from outside are checked for overflow at the gateway.
package domain
