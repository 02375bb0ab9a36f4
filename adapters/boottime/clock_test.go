package boottime

import (
	"testing"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports/porttest"
)

func TestClockKeepsThePortsContract(t *testing.T) { porttest.RunClock(t, New()) }

func BenchmarkNow(b *testing.B) {
	c := New()
	var last domain.Instant
	b.ReportAllocs()
	for b.Loop() {
		last = c.Now()
	}
	_ = last
}
