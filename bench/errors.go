package bench

import (
	"errors"
	"fmt"
	"slices"
)

// ErrFailed is the class of runs that cannot be trusted or are not whole: a wrong or failed read or put, a counter that has
// to be zero and is not, a row that did not fit into memory.
var ErrFailed = errors.New("run failed")

// OptionError is an option that cannot be used: nothing was started.
type OptionError struct {
	Flag  string // with its dashes: "--pools"
	Value string
	Want  string // what is allowed, or what is available
}

func (e *OptionError) Error() string { return fmt.Sprintf("%s %q: %s", e.Flag, e.Value, e.Want) }

func badOption(flag string, value any, want string, args ...any) error {
	return &OptionError{Flag: flag, Value: fmt.Sprint(value), Want: fmt.Sprintf(want, args...)}
}

// checkBetween refuses a number outside of [lo, hi].
func checkBetween(flag string, value, lo, hi int) error {
	if value < lo || value > hi {
		return badOption(flag, value, "want %d to %d", lo, hi)
	}
	return nil
}

// CheckAvailable refuses a value that names something unknown, and one whose machinery is not there yet.
func CheckAvailable(flag, value string, available []string, later ...string) error {
	if slices.Contains(available, value) {
		return nil
	}
	if slices.Contains(later, value) {
		return badOption(flag, value, "not available yet; available: %s", join(available))
	}
	return badOption(flag, value, "unknown; available: %s", join(available))
}
