package tcp

import (
	"errors"
	"sync/atomic"
)

// Reason is why a connection ended that should not have.
type Reason uint8

// The reasons.
const (
	Truncated   Reason = iota // it ended in mid frame
	Oversized                 // a frame past the limits
	Garbage                   // a frame that makes no sense
	Stalled                   // it stood still in mid frame
	UnknownLink               // its hello named no link of this start
	WrongProof                // it did not know the link's key
	TooMany                   // too many were in the middle of their hello
	NumReasons
)

func (r Reason) String() string {
	return [NumReasons]string{"truncated", "oversized", "garbage", "stalled", "unknown link", "wrong proof", "too many"}[r]
}

var (
	errUnknownLink = errors.New("a hello for no link of this start")
	errProof       = errors.New("a proof that is wrong")
	errTooMany     = errors.New("too many connections in mid hello")
)

// Stats of a transport. Bytes of links by purpose are with the links.
type Stats struct {
	Ended        [NumReasons]uint64 // connections, both those that we took and those that we made
	ServedBytes  uint64             // read from our memory by peers
	AppliedBytes uint64             // written to our memory by peers
	Inbound      int                // connections of peers' links, now
}

// counters is the live form.
type counters struct {
	ended           [NumReasons]atomic.Uint64
	served, applied atomic.Uint64
}

// note counts why a connection ended; a peer that hung up is no fault.
func (c *counters) note(err error) {
	for r, e := range [NumReasons]error{errTruncated, errOversized, errGarbage, errStalled, errUnknownLink, errProof, errTooMany} {
		if errors.Is(err, e) {
			c.ended[r].Add(1)
			return
		}
	}
}
