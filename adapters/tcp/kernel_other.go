//go:build !linux

package tcp

import "time"

func kernelCounts(int) KernelCounts { return KernelCounts{} }

func tune(int, time.Duration) error { return nil }
