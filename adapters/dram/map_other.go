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
