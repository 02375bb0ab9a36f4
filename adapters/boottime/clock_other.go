//go:build !linux

package boottime

import (
	"time"

	"github.com/spanpool/spanpool/domain"
)

// Clock is monotonic time since it was made.
type Clock struct{ base time.Time }

// New makes a Clock. Instants of two of them are not comparable here: a node uses one.
func New() Clock { return Clock{base: time.Now()} }

// Now is the time since New.
func (c Clock) Now() domain.Instant { return domain.Instant(time.Since(c.base)) }
