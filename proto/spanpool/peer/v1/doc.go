// Package peerv1 is the messages of spanpool.peer.v1, which nodes speak to each other, generated from peer.proto: what they mean is
// said there.
package peerv1
