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

// NextPiece is the lowest missing run of [0, size), cut to PullPieceBytes. What is claimed is not missing; claimed may be nil.
func NextPiece(size uint64, held, claimed *Extents) (Run, bool) {
	r, ok := held.FirstMissing(size, claimed)
	r.Len = min(r.Len, PullPieceBytes)
	return r, ok
}
