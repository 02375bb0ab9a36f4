package tcp

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// socket is a connection on which memory is read and written by vectors.
type socket struct {
	conn *net.TCPConn
	raw  syscall.RawConn

	mu struct { // guards the kernel's last count
		sync.Mutex
		closed bool
		last   KernelCounts
	}
}

func newSocket(c *net.TCPConn) (*socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &socket{conn: c, raw: raw}, nil
}

// tuned bounds the waits that the kernel does for us.
func tuned(s *socket, stall time.Duration) error {
	var err error
	if cerr := s.raw.Control(func(fd uintptr) { err = tune(int(fd), stall) }); cerr != nil {
		return cerr
	}
	return err
}

// KernelCounts is what the kernel says about connections of ours (TCP_INFO), framing included.
type KernelCounts struct {
	Received uint64 // bytes that arrived in order, read by us or not
	Acked    uint64 // bytes of ours that the peer's kernel has
}

// counts asks the kernel, or repeats what it said before the close.
func (s *socket) counts() KernelCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.closed {
		_ = s.raw.Control(func(fd uintptr) { s.mu.last = kernelCounts(int(fd)) }) // of a broken one: as before
	}
	return s.mu.last
}

// close resets the connection: what we have not sent is not sent, what we have not read is lost. Twice is allowed.
func (s *socket) close() {
	s.counts()
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	_ = s.conn.SetLinger(0)
	_ = s.conn.Close()
}

// pump repeats a step that does not wait until it moved something or failed, and waits for the socket in between. It allocates
// nothing: what it needs is made once.
type pump struct {
	wait func(func(uintptr) bool) error
	step func(fd int) (int, error)
	try  func(uintptr) bool
	n    int
	err  error
}

// init is called once, before the first run: with the Read or Write method of the socket's raw connection.
func (p *pump) init(wait func(func(uintptr) bool) error, step func(fd int) (int, error)) {
	p.wait, p.step = wait, step
	p.try = func(fd uintptr) bool {
		p.n, p.err = p.step(int(fd))
		for p.err == syscall.EINTR {
			p.n, p.err = p.step(int(fd))
		}
		return p.err != syscall.EAGAIN
	}
}

func (p *pump) run() (int, error) {
	if err := p.wait(p.try); err != nil {
		return 0, err
	}
	return p.n, p.err
}

// keepAlive finds a host that has gone while nothing is under way.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5}
