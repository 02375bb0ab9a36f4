package domain

import "time"

// LeaseEnd is the instant before which bytes must have been seen complete: the time before the request, plus 0.9 of what was
// granted. The last tenth pays for clocks that run at different rates.
func LeaseEnd(beforeRequest Instant, granted time.Duration) Instant {
	return beforeRequest.Add(granted/10*9 + granted%10*9/10) // rounded down, and no product that overflows
}

// RenewAt is when half of the lease is left.
func RenewAt(beforeRequest Instant, granted time.Duration) Instant {
	return beforeRequest.Add(granted / 2)
}
