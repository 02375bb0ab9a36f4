package grpcpeer

import (
	"net"
	"sync"
	"sync/atomic"
)

// listener knows its connections, those included whose handshake gRPC still waits for. It closes at once what comes when there are
// as many as it may have.
type listener struct {
	net.Listener
	most    int
	crowded *atomic.Uint64
	mu      struct { // guards the set; nothing is called under it
		sync.Mutex
		open      map[*counted]struct{} // nil: cut
		strangers int                   // of them
	}
}

// counted is a connection in the set.
type counted struct {
	net.Conn
	l        *listener
	stranger bool // guarded by the listener's mu
}

// strangersShare is the part of a listener's connections, one in so many, that may be of those who have not proven the secret although
// there is one: they ask for health and nothing else, and must not keep the peers out.
const strangersShare = 4

// stayAsStranger reports false when there are as many as may be.
func (c *counted) stayAsStranger() bool {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.l.mu.strangers >= max(c.l.most/strangersShare, 1) {
		c.l.crowded.Add(1)
		return false
	}
	c.l.mu.strangers++
	c.stranger = true
	return true
}

func newListener(inner net.Listener, most int, crowded *atomic.Uint64) *listener {
	l := &listener{Listener: inner, most: most, crowded: crowded}
	l.mu.open = make(map[*counted]struct{})
	return l
}

// Accept returns the next connection that there is room for.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &counted{Conn: conn, l: l}
		if l.admit(c) {
			return c, nil
		}
		_ = conn.Close()
	}
}

func (l *listener) admit(c *counted) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.open == nil {
		return false
	}
	if len(l.mu.open) >= l.most {
		l.crowded.Add(1)
		return false
	}
	l.mu.open[c] = struct{}{}
	return true
}

// Close of a connection makes room. Twice is allowed.
func (c *counted) Close() error {
	c.l.mu.Lock()
	delete(c.l.mu.open, c)
	if c.stranger {
		c.stranger = false
		c.l.mu.strangers--
	}
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// cut closes every connection, and those that come.
func (l *listener) cut() {
	l.mu.Lock()
	open := l.mu.open
	l.mu.open = nil
	l.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
}
