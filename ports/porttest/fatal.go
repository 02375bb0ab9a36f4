package porttest

import (
	"runtime"
	"testing"
)

// noFail is a testing.TB for goroutines other than the test's, which must not call FailNow: there it ends the goroutine, as
// the test's own would, and leaves the test failed.
type noFail struct{ testing.TB }

func (n noFail) FailNow() {
	n.TB.Fail()
	runtime.Goexit()
}
