//go:build !race && rdma

package rdma

const raceEnabled = false
