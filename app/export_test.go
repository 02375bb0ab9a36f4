package app

// LimitSessionKeysForTesting lowers a limit that a test could not reach in reasonable time. Call it before the first session.
func (n *Node) LimitSessionKeysForTesting(keys int) { n.sessionKeys = keys }

// TurnOffForTesting turns features off, for a test that shows what they are worth. Call it before the first call.
func (n *Node) TurnOffForTesting(singleFlight, dedupQueued, dedupRun bool) {
	n.off = features{singleFlight, dedupQueued, dedupRun}
}
