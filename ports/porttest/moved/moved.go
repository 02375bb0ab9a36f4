// Package moved sees to it that a package has no count that nothing moves: its tests note what they see, and when all of them have run,
// a count that was never more than zero fails the package.
package moved

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

// Counts is the counts of a package, by whether some test moved them. The zero value knows none. Safe for parallel use.
type Counts struct {
	mu   sync.Mutex
	seen map[string]bool
}

// Note takes in a count that a test saw. One that is zero is known from then on, and has to be moved by some test.
func (c *Counts) Note(name string, value uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]bool{}
	}
	c.seen[name] = c.seen[name] || value > 0
}

// Dead is the counts that nothing moved and that are not excused, and the excused ones that are unknown or moved. excused is why, by name.
func (c *Counts) Dead(excused map[string]string) (dead []string) {
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
func (c *Counts) VerifyTestMain(m *testing.M, excused map[string]string) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dead := c.Dead(excused); code == 0 && ranAll() && len(dead) > 0 {
			fmt.Fprintf(os.Stderr, "FAIL: counts that no test moved, or that are said not to move and do:\n\t%s\n", strings.Join(dead, "\n\t"))
			code = 1
		}
		os.Exit(code)
	}))
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
