package domain

import "time"

// LeaseEnd is the instant before which bytes must have been seen complete: the time before the request, plus 0.9 of what was
// granted. The last tenth pays for clocks that run at different rates.
func LeaseEnd(beforeRequest Instant, granted time.Duration) Instant { panic("todo") }

// RenewAt is when half of the lease is left.
func RenewAt(beforeRequest Instant, granted time.Duration) Instant { panic("todo") }
