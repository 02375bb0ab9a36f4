//go:build race

package porttest

// raced says that the race detector watches.
const raced = true
