// Package bench is the benchmark's workloads. They talk to nodes through ports.Pool only; cluster.go is the one file that
// knows how nodes are composed.
//
// Layerwise restores objects layer group by layer group, as an engine does, and Replay plays a published trace. Every run is a
// verified run: each 8-byte word of an object is a hash of its key and its index, destinations are poisoned before each request
// and lie between guard bytes, and a read that failed or was wrong is never a sample and fails the run. What is generated,
// poisoned and checked lies outside of the latency samples and of the throughput window. Bytes are what the nodes counted,
// never what a formula predicts; the one computed column says so in its name (wire_whole_mib).
//
// Options are checked by Check, whose errors are OptionErrors and name flag, value and what is allowed. A run that came to
// wrong or failed reads, or that had to leave out a row, returns an error that wraps ErrFailed.
package bench
