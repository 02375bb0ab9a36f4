// Package ports is what the app needs from the outside, and the values they exchange.
//
// A port is an interface of one to five methods of its own (it may embed others; Pool is as wide as the service) that at
// least two things implement, fakes included, with a contract suite in ports/porttest that all of them pass. Nothing here does
// I/O. Files that are mocked hold plain interfaces only.
//
// Memory is named by Regions: ops carry (Region, offset, length), never a slice of a Region, which would box and allocate.
// Columns (slices passed in requests and batches) are the caller's. A port borrows them for as long as the method says and
// keeps none of them longer.
package ports

import "errors"

// Error classes. Callers act on these, never on text. Adapters wrap them in an error that says operation and peer.
var (
	ErrNotFound  = errors.New("not found")                    // ask another holder
	ErrStale     = errors.New("stale")                        // resolve again
	ErrNoSpace   = errors.New("no space")                     // take the next route
	ErrBusy      = errors.New("busy")                         // back off
	ErrClosed    = errors.New("closed")                       // the thing is gone; its memory is quiet
	ErrReset     = errors.New("link was reset")               // this op was not at fault; a read may be submitted once on a new link
	ErrRevoked   = errors.New("grant was revoked")            // the reservation has ended
	ErrTimeout   = errors.New("deadline passed")              // memory is quiet now
	ErrCancelled = errors.New("cancelled")                    // its bytes were thrown away; memory is quiet
	ErrRestarted = errors.New("peer is another start")        // say hello again; leases, views and reservations are void
	ErrRefused   = errors.New("refused by limit or quota")    // the caller asks for less
	ErrPeer      = errors.New("peer unavailable")             // ask another holder
	ErrBounds    = errors.New("out of the registered bounds") // a bug or a lie; never retried
	ErrCorrupt   = errors.New("bytes do not match their sum") // ask another holder of the version, and complain to this one
)
