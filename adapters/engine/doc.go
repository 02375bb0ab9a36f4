// Package engine serves a ports.Pool to programs of this host, over gRPC (spanpool.engine.v1) on a Unix socket: inference engines, and
// the command line.
//
// The socket is for the user who runs the daemon, and root: its mode says so, and so does a check of who connects, since a mode can be
// changed and a directory be moved. What callers may have in flight is bounded over all of them: bytes of objects, streams, and the
// length of a message; a caller that answers no ping is let go.
package engine
