//go:build race && rdma

package rdma

const raceEnabled = true
