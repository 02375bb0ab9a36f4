//go:build !linux

package hip

import "errors"

// mapBounce is not reached: there is no library to open on this system.
func mapBounce(uint64) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapBounce([]byte) error { return nil }
