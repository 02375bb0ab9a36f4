package bench

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressEvery is how often the line is drawn anew.
const progressEvery = 200 * time.Millisecond

// Progress draws one line that says how far long work has come, for a person who watches. A nil Progress draws nothing. Safe
// for parallel use.
type Progress struct {
	mu struct { // guards what is on the line; two draws never mix
		sync.Mutex
		w     io.Writer
		last  time.Time
		width int
	}
}

// NewProgress draws on w, which should be a terminal.
func NewProgress(w io.Writer) *Progress {
	p := &Progress{}
	p.mu.w = w
	return p
}

// Step says that done of total are done. Most calls draw nothing. A total of 0 is not known.
func (p *Progress) Step(what string, done, total uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.mu.last) < progressEvery {
		return
	}
	p.mu.last = time.Now()
	line := fmt.Sprintf("%s: %d", what, done)
	if total > 0 {
		line = fmt.Sprintf("%s: %d of %d (%d %%)", what, done, total, 100*done/total)
	}
	fmt.Fprintf(p.mu.w, "\r%-*s", p.mu.width, line)
	p.mu.width = len(line)
}

// Clear takes the line away, so that output begins at the left margin.
func (p *Progress) Clear() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.width > 0 {
		fmt.Fprintf(p.mu.w, "\r%*s\r", p.mu.width, "")
	}
	p.mu.width = 0
}
