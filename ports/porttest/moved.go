package porttest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// Moved is the counts of a package, by whether some test moved them: its tests note what they see, and when all of them have run, a count
// that was never more than zero fails the package. The zero value knows none. Safe for parallel use.
type Moved struct {
	mu   sync.Mutex
	seen map[string]bool
}

// Note takes in a count that a test saw. One that is zero is known from then on, and has to be moved by some test.
func (c *Moved) Note(name string, value uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]bool{}
	}
	c.seen[name] = c.seen[name] || value > 0
}

// Dead is the counts that nothing moved and that are not excused, and the excused ones that are unknown or moved. excused is why, by name.
func (c *Moved) Dead(excused map[string]string) (dead []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, moves := range c.seen {
		if _, ok := excused[name]; ok == moves {
			dead = append(dead, fmt.Sprintf("%s: moved %v, excused %v", name, moves, ok))
		}
	}
	for name := range excused {
		if _, ok := c.seen[name]; !ok {
			dead = append(dead, name+": excused, and there is no such count")
		}
	}
	slices.Sort(dead)
	return dead
}

// VerifyTestMain runs a package's tests and exits with their result. It fails when a goroutine is left, and, if no flag left tests out,
// when a count is dead.
func (c *Moved) VerifyTestMain(m *testing.M, excused map[string]string) {
	goleak.VerifyTestMain(movedTests{m, c, excused})
}

// movedTests is a package's tests, and what they must have moved.
type movedTests struct {
	m       *testing.M
	counts  *Moved
	excused map[string]string
}

// Run fails tests that passed and left a count dead.
func (r movedTests) Run() int {
	code := r.m.Run()
	if dead := r.counts.Dead(r.excused); code == 0 && ranAll() && len(dead) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: counts that no test moved, or that are said not to move and do:\n\t%s\n", strings.Join(dead, "\n\t"))
		return 1
	}
	return code
}

// ranAll reports whether no flag left tests out; -list runs none.
func ranAll() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return !testing.Short()
}
