package app

// LimitSessionKeysForTesting lowers a limit that a test could not reach in reasonable time. Call it before the first session.
func (n *Node) LimitSessionKeysForTesting(keys int) { n.sessionKeys = keys }
