//go:build !linux

package dram

import (
	"errors"
	"fmt"
	"runtime"
)

func mapBuffers(Config, []uint64) ([]mapped, error) {
	return nil, fmt.Errorf("mapped memory on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// Limit is not known here.
func Limit() (bytes uint64, what string) { return 0, "" }
