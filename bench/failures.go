package bench

import (
	"fmt"
	"io"
	"sync"
)

// maxPrinted bounds the lines of one row: what goes wrong often goes wrong everywhere.
const maxPrinted = 20

// failures collects what went wrong in a row. Safe for parallel use.
type failures struct {
	progress *Progress
	mu       struct { // guards the counts and keeps lines whole
		sync.Mutex
		w     io.Writer
		reads uint64
		puts  uint64
		lines int
	}
}

func newFailures(w io.Writer, p *Progress) *failures {
	f := &failures{progress: p}
	f.mu.w = w
	return f
}

// read counts a read that failed or was wrong.
func (f *failures) read(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.reads++
	f.printLocked(format, args...)
}

// put counts a put, or a removal, that failed.
func (f *failures) put(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.puts++
	f.printLocked(format, args...)
}

func (f *failures) printLocked(format string, args ...any) {
	f.mu.lines++
	if f.mu.lines > maxPrinted {
		return
	}
	f.progress.Clear()
	fmt.Fprintf(f.mu.w, format+"\n", args...)
	if f.mu.lines == maxPrinted {
		fmt.Fprintln(f.mu.w, "further failures are counted and not printed")
	}
}

func (f *failures) counts() (reads, puts uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.reads, f.mu.puts
}

// err is nil when nothing went wrong.
func (f *failures) err() error {
	reads, puts := f.counts()
	if reads == 0 && puts == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d failed or wrong reads, %d failed puts", ErrFailed, reads, puts)
}
