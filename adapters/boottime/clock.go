// Package boottime is the Clock of a node: CLOCK_BOOTTIME, which goes on while the machine sleeps, so that a lease cannot
// outlive the promise behind it. Where a system has no such clock it is monotonic time, which may stand still in sleep: good
// for development there, and no promise between hosts.
package boottime

import "github.com/spanpool/spanpool/ports"

var _ ports.Clock = Clock{}
