package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"time"
)

// redisProgram is what has to be installed for the bar that stands against it.
const redisProgram = "redis-server"

// redisAbsent says why there is no redis to stand against; empty: there is.
func redisAbsent() string {
	if _, err := exec.LookPath(redisProgram); err != nil {
		return redisProgram + " is not installed"
	}
	return ""
}

// redisServer is a redis of our own on loopback, which keeps nothing.
type redisServer struct {
	cmd    *exec.Cmd
	addr   string
	exited chan error // capacity 1: it may exit before anyone asks
}

// redisStart bounds how long it may take until it answers; arbitrary, and far longer than it takes.
const redisStart = 10 * time.Second

func startRedis(ctx context.Context) (*redisServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	r := &redisServer{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), exited: make(chan error, 1)}
	r.cmd = exec.Command(redisProgram, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--appendonly", "no")
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { r.exited <- r.cmd.Wait() }() // close waits for it
	answers, err := waitUntil(ctx, redisStart, func() bool {
		c, err := net.DialTimeout("tcp", r.addr, time.Second)
		if err != nil {
			return false
		}
		_ = c.Close() // it said nothing
		return true
	})
	if err == nil && !answers {
		err = fmt.Errorf("%s on %s does not answer after %v", redisProgram, r.addr, redisStart)
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// freePort is one that nobody has now. Another program may take it before redis does, which then is an error.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// close ends the process. Connections to it must not be in use.
func (r *redisServer) close() error {
	err := r.cmd.Process.Kill()
	<-r.exited
	return err
}

// redisLoop reads the moves of a scattered from a redis that holds the same objects: GETRANGE for each fragment, all of a call in one
// go, over some connections. Requests are encoded beforehand, and replies are read into place through a buffer.
type redisLoop struct {
	m     *moves
	conns []*redisConn
}

type redisConn struct {
	c    net.Conn
	r    *bufio.Reader
	asks [][]byte // by call
}

func (s *scattered) openRedisLoop(server *redisServer, conns int) (*redisLoop, error) {
	l := &redisLoop{m: s.m}
	for i := range conns {
		nc, err := net.DialTimeout("tcp", server.addr, bareBound)
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		c := &redisConn{c: nc, r: bufio.NewReaderSize(nc, bareBuffer)}
		l.conns = append(l.conns, c)
		for call := range s.m.calls {
			var ask []byte
			for _, p := range s.m.share(call, i, conns) {
				off := p.from % s.object()
				ask = appendRedis(ask, "GETRANGE", scatteredName(int(p.from/s.object())), strconv.FormatUint(off, 10),
					strconv.FormatUint(off+s.m.fragment-1, 10))
			}
			c.asks = append(c.asks, ask)
		}
	}
	return l, nil
}

// appendRedis appends a command.
func appendRedis(b []byte, words ...string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

func (l *redisLoop) close() error {
	var errs []error
	for _, c := range l.conns {
		errs = append(errs, c.c.Close())
	}
	return errors.Join(errs...)
}

func (l *redisLoop) call(call int) error {
	return inParallel(len(l.conns), func(i int) error {
		return l.conns[i].ask(call, l.m, l.m.share(call, i, len(l.conns)))
	})
}

func (c *redisConn) ask(call int, m *moves, share []piece) error {
	if err := c.c.SetDeadline(time.Now().Add(bareBound)); err != nil {
		return err
	}
	if _, err := c.c.Write(c.asks[call]); err != nil {
		return err
	}
	head := "$" + strconv.FormatUint(m.fragment, 10) + "\r\n"
	for _, p := range share {
		if err := c.expect(head); err != nil {
			return err
		}
		if _, err := io.ReadFull(c.r, m.lands(p)); err != nil {
			return err
		}
		if err := c.expect("\r\n"); err != nil {
			return err
		}
	}
	return nil
}

// expect reads a line that must be this one.
func (c *redisConn) expect(line string) error {
	got, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if string(got) != line {
		return fmt.Errorf("%w: %s answers %q, want %q", ErrFailed, redisProgram, got, line)
	}
	return nil
}

// store puts the objects into a redis.
func (s *scattered) store(server *redisServer) (err error) {
	nc, err := net.DialTimeout("tcp", server.addr, bareBound)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nc.Close()) }()
	c := &redisConn{c: nc, r: bufio.NewReader(nc)}
	for i := range s.keys * s.sets {
		if err := nc.SetDeadline(time.Now().Add(bareBound)); err != nil {
			return err
		}
		if _, err := nc.Write(appendRedis(nil, "SET", scatteredName(i), string(s.src.b[uint64(i)*s.object():][:s.object()]))); err != nil {
			return err
		}
		if err := c.expect("+OK\r\n"); err != nil {
			return err
		}
	}
	return nil
}
