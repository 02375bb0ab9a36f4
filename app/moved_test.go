package app_test

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// moved is every series of ports.Stats that some node of some test was seen to move.
var moved register

type register struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (r *register) note(s ports.Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = make(map[string]bool)
	}
	walkSeries("", reflect.ValueOf(s), func(name string, v reflect.Value) {
		if !v.IsZero() {
			r.seen[name] = true
		}
	})
}

// walkSeries names every number of a Stats. Places of arrays have the names of what they count.
func walkSeries(name string, v reflect.Value, emit func(string, reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			walkSeries(strings.TrimPrefix(name+"."+v.Type().Field(i).Name, "."), v.Field(i), emit)
		}
	case reflect.Array:
		for i := range v.Len() {
			walkSeries(fmt.Sprintf("%s[%s]", name, placeName(name, i)), v.Index(i), emit)
		}
	default:
		emit(name, v)
	}
}

func placeName(array string, i int) string {
	if name, depth := strings.CutPrefix(array, "Outcomes"); depth {
		return [3]func(int) string{
			func(i int) string { return ports.BatchKind(i).String() },
			func(i int) string { return ports.Source(i).String() },
			func(i int) string { return ports.Outcome(i).String() },
		}[strings.Count(name, "[")](i)
	}
	switch array {
	case "GetKeys", "PutKeys":
		return ports.Status(i).String()
	case "GetSources":
		return ports.Source(i).String()
	case "InstallFailures":
		return ports.InstallFailure(i).String()
	case "Downgrades":
		return ports.Downgrade(i).String()
	case "UnverifiedBytes":
		return ports.Unverified(i).String()
	case "Complaints":
		return ports.Complaint(i).String()
	case "Table.Slots", "Table.Pages":
		return domain.SlotState(i).String()
	}
	return fmt.Sprint(i)
}

// notApplicable are places of arrays that no operation can move, by what they mean.
var notApplicable = withOutcomes(map[string]string{
	"GetKeys[none]":       "no finished call returns it",
	"GetKeys[stored]":     "of puts",
	"GetKeys[exists]":     "of puts",
	"GetKeys[conflict]":   "of puts",
	"PutKeys[none]":       "no finished call returns it",
	"PutKeys[hit]":        "of gets",
	"PutKeys[not_found]":  "of gets",
	"PutKeys[too_large]":  "of gets: a put goes in rounds",
	"PutKeys[late]":       "of gets: a put has a reservation, no lease",
	"PutKeys[corrupt]":    "of gets",
	"GetSources[nowhere]": "no hit comes from nowhere",
	"InstalledObjects[0]": "LocalNot is no way of becoming local",
	"InstalledBytes[0]":   "LocalNot is no way of becoming local",
	"Table.Slots[free]":   "a free slot is not counted",
	"Table.Pages[free]":   "pages of free slots are PagesFree",
})

// withOutcomes adds the places of Outcomes that no key can end in.
func withOutcomes(all map[string]string) map[string]string {
	for k := range ports.NumBatchKinds {
		for route := range ports.NumSources {
			for o := range ports.NumOutcomes {
				name := fmt.Sprintf("Outcomes[%s][%s][%s]", k, route, o)
				if !ports.CanEnd(k, route, o) {
					all[name] = "no key can end so"
				}
			}
		}
	}
	return all
}

// elsewhere are series whose machinery is not here, and the test that moves each.
var elsewhere = map[string]string{
	"Downgrades[huge_pages]":  "the medium's own count: cmd/spanpool/daemon's TestPagesThatAreNotHugeAreADowngrade",
	"UnverifiedBytes[device]": "no medium here is of a device: cmd/spanpool/daemon's TestNodesInDeviceMemoryServeEachOther",
}

// TestMain runs the tests, requires that no goroutine is left, and, after a run of all of them, that every series was moved.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if code == 0 && ranAll() {
			code = reportDead(moved.dead())
		}
		os.Exit(code)
	}))
}

// ranAll reports whether no flag left tests out; -list runs none.
func ranAll() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return !testing.Short()
}

// dead is the series that nothing moved, and those that are said not to move and did.
func (r *register) dead() (dead []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	walkSeries("", reflect.ValueOf(ports.Stats{}), func(name string, _ reflect.Value) {
		_, never := notApplicable[name]
		_, later := elsewhere[name]
		switch excused := never || later; {
		case excused && r.seen[name]:
			dead = append(dead, name+" moves: take it off the list of those that do not")
		case !excused && !r.seen[name]:
			dead = append(dead, name)
		}
	})
	slices.Sort(dead)
	return dead
}

func reportDead(dead []string) int {
	if len(dead) == 0 {
		return 0
	}
	fmt.Fprintf(os.Stderr, "FAIL: %d series that no test moved:\n\t%s\n", len(dead), strings.Join(dead, "\n\t"))
	return 1
}
