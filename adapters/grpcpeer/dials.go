package grpcpeer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// errDial marks the end of a wait for a connection that could not be made.
var errDial = errors.New("dial")

// dials makes the connections to one peer, and tells who waits for one that it could not be made.
type dials struct {
	timeout time.Duration
	mu      struct { // guards both; a watcher is called without it
		sync.Mutex
		last     error  // of the last dial; nil when it was good
		begun    uint64 // dials, one after the other
		watchers map[*watcher]struct{}
	}
}

type watcher struct {
	cancel context.CancelCauseFunc
	after  uint64 // what had begun before says nothing: the peer may have come up since
}

// dial resolves the address, tries what it finds, and returns the first connection.
func (d *dials) dial(ctx context.Context, addr string) (net.Conn, error) {
	d.mu.Lock()
	d.mu.begun++
	d.mu.Unlock()
	dialer := net.Dialer{Timeout: d.timeout}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		d.ended(err)
	}
	return conn, err
}

// begun is the number of dials so far.
func (d *dials) begun() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.begun
}

// watch cancels a wait when a dial fails that begins from now on, or none has an end in time. The function that it returns ends the watch.
func (d *dials) watch(cancel context.CancelCauseFunc) func() {
	d.mu.Lock()
	w := &watcher{cancel: cancel, after: d.mu.begun}
	if d.mu.watchers == nil {
		d.mu.watchers = map[*watcher]struct{}{}
	}
	d.mu.watchers[w] = struct{}{}
	d.mu.Unlock()
	timer := time.AfterFunc(d.timeout, func() { cancel(fmt.Errorf("%w: no connection in %v", errDial, d.timeout)) })
	return func() {
		timer.Stop()
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.mu.watchers, w)
	}
}

// ended records how a dial or its handshake ended.
func (d *dials) ended(err error) {
	var told []*watcher
	d.mu.Lock()
	d.mu.last = err
	for w := range d.mu.watchers {
		if err != nil && w.after < d.mu.begun {
			told = append(told, w)
		}
	}
	d.mu.Unlock()
	for _, w := range told {
		w.cancel(fmt.Errorf("%w: %w", errDial, err))
	}
}

// refusal is the error of the last dial, if it was about the secret.
func (d *dials) refusal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(d.mu.last, ErrSecret) {
		return d.mu.last
	}
	return nil
}

// fresh is a connection that has failed like a dial if it ends before the peer has said anything.
type fresh struct {
	net.Conn
	dials *dials
	heard bool // of the one goroutine that reads
}

func (f *fresh) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if !f.heard {
		f.heard = true
		if n == 0 && err != nil {
			f.dials.ended(err)
		}
	}
	return n, err
}
