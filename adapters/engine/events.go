package engine

// Journal is what came to the node and went.
type Journal struct{}
