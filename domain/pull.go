package domain

// Bounds of the pull (design.md section 5).
const (
	PullPieceBytes    = 256 << 10
	PullInFlightBytes = 2 << 20 // per link
	PullQueueKeys     = 1_024
	PullPassKeys      = 256
)

// PullAllowance is how many more bytes the pull may put in flight on a link: at most PullInFlightBytes in all; a quarter of
// what is in flight while foreground has bytes there (never less than one piece when nothing of the pull is in flight); and
// nothing while a call waits for its first bytes.
func PullAllowance(pullInFlight, foregroundInFlight uint64, firstBytesAwaited bool) uint64 {
	if firstBytesAwaited {
		return 0
	}
	limit := uint64(PullInFlightBytes)
	if foregroundInFlight > 0 {
		limit = min(limit, foregroundInFlight/3) // a third of the foreground is a quarter of both
	}
	if pullInFlight == 0 {
		limit = max(limit, PullPieceBytes)
	}
	return lessOrZero(limit, pullInFlight)
}

// PullCredit is the bytes that the pull may still put on a link beside foreground. In flight alone is no share of a link: one
// that serves its calls in turns gives the pull as much as each of them, however little it has in flight. So it earns with what
// foreground landed, an eighth of both: within the quarter that it may have, and less, since the next call asks for these
// bytes anyway, while the one that waits does not. It holds one piece at most, so that an idle time earns no burst.
type PullCredit uint64

const pullEarnsOf = 7 // a seventh of the foreground is an eighth of both

// Earn takes in bytes that landed for calls. It reports whether there is enough for a piece.
func (c *PullCredit) Earn(foreground uint64) bool {
	*c = PullCredit(min(uint64(*c)+foreground/pullEarnsOf, PullPieceBytes))
	return *c == PullPieceBytes
}

// Spend takes n bytes out, or nothing.
func (c *PullCredit) Spend(n uint64) bool {
	if uint64(*c) < n {
		return false
	}
	*c -= PullCredit(n)
	return true
}

// NextPiece is the lowest missing run of [0, size), cut to PullPieceBytes. What is claimed is not missing; claimed may be nil.
func NextPiece(size uint64, held, claimed *Extents) (Run, bool) {
	r, ok := held.FirstMissing(size, claimed)
	r.Len = min(r.Len, PullPieceBytes)
	return r, ok
}
