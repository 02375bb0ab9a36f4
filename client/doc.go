// Package client speaks spanpool.engine.v1 to the node of this host: calls over its Unix socket, and memory that both map, so that bytes
// of objects cross no socket. docs/engine.md describes the protocol; this is its Go half.
package client
