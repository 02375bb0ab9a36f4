package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

const (
	protocol      = 1
	defaultWithin = 15 * time.Second
	settleWithin  = 5 * time.Second // of a call that got no reply
	settleAgain   = 20 * time.Millisecond
	maxAttempts   = 3 // of a call whose node was started anew
)

// Options are of a Client. The zero value is good.
type Options struct {
	Namespace string        // Namespace.Fingerprint, or any bytes
	Name      string        // for people
	Within    time.Duration // a call without a deadline ends by itself within it; default 15 s
}

// Client is a program that shares memory with the node. When the node is started anew, the client says hello again, registers its memory
// and names its keys again, and repeats what may be repeated; only sessions end, with ErrRestarted. Safe for parallel use.
//
// A call that returns has let go of its memory, also when its context ended: then it asks the node (Quiesce), which may take up to 5 s
// when the node hangs, and says ErrNotQuiet when it could not find out.
type Client struct {
	*Node
	o Options

	mu struct {
		sync.Mutex
		closed   bool
		now      *start // nil: none yet
		renewing chan struct{}
		failed   error // of the last renewal
		lastCall uint64
		regions  map[*Region]struct{}
	}
}

// start is what one start of the node knows of us. What it holds is guarded by its own mu, under which nothing is asked: calls with regions
// and handles that are known go on while others are made known.
type start struct {
	hello       *enginev1.HelloReply
	link        *link         // for descriptors
	naming      chan struct{} // of capacity 1: full while a caller names a handle, which two would name twice
	registering sync.Mutex    // likewise of regions

	mu struct {
		sync.Mutex
		regions map[*Region]uint32
		handles map[*Handle]named
	}
}

// named is how far a handle's keys are known.
type named struct {
	id   uint64
	keys int
}

// Dial says hello to the node at a Unix socket. It waits up to 5 s for one that is just starting; ErrUnavailable: none answered.
func Dial(ctx context.Context, socket string, o Options) (*Client, error) {
	n, err := OpenNode(socket)
	if err != nil {
		return nil, err
	}
	if o.Within <= 0 {
		o.Within = defaultWithin
	}
	c := &Client{Node: n, o: o}
	c.mu.regions = make(map[*Region]struct{})
	if _, err := c.start(ctx, nil); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return c, nil
}

// Close lets go of everything at the node, and unmaps the memory that the client mapped. Calls in progress fail.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return nil
	}
	c.mu.closed = true
	s, regions := c.mu.now, c.mu.regions
	c.mu.regions = nil
	c.mu.Unlock()
	var err error
	if s != nil {
		ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
		defer cancel()
		_, qerr := c.rpc.Quiesce(ctx, &enginev1.QuiesceRequest{Caller: c.caller(s)})
		if status.Code(qerr) != codes.Unavailable && status.Code(qerr) != codes.FailedPrecondition {
			err = qerr
		}
		err = errors.Join(err, s.link.Close())
	}
	for r := range regions {
		err = errors.Join(err, r.drop())
	}
	return errors.Join(err, c.Node.Close())
}

// Hello is what the node said of itself: its name, abilities and limits.
func (c *Client) Hello() *enginev1.HelloReply {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.now.hello
}

// caller numbers a call.
func (c *Client) caller(s *start) *enginev1.Caller {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lastCall++
	return &enginev1.Caller{Boot: s.hello.GetBoot(), Client: s.hello.GetClient(), Call: c.mu.lastCall}
}

// start returns the start in use; when that is old, or there is none, one caller says hello again and the others wait for it.
func (c *Client) start(ctx context.Context, old *start) (*start, error) {
	for {
		c.mu.Lock()
		switch wait := c.mu.renewing; {
		case c.mu.closed:
			c.mu.Unlock()
			return nil, fmt.Errorf("client of %q is closed: %w", c.socket, ErrUnavailable)
		case c.mu.now != nil && c.mu.now != old:
			defer c.mu.Unlock()
			return c.mu.now, nil
		case wait != nil:
			c.mu.Unlock()
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			c.mu.Lock()
			failed := c.mu.failed
			c.mu.Unlock()
			if failed != nil {
				return nil, failed
			}
		default:
			done := make(chan struct{})
			c.mu.renewing = done
			c.mu.Unlock()
			s, err := c.renew(ctx)
			c.mu.Lock()
			c.mu.renewing, c.mu.failed = nil, err
			before := c.mu.now
			if err == nil {
				c.mu.now = s
			}
			c.mu.Unlock()
			close(done)
			if err != nil {
				return nil, err
			}
			if before != nil {
				_ = before.link.Close()
			}
			return s, nil
		}
	}
}

// renew says hello, attaches and registers every region again. A region that this start refuses (its file was cut, say) is not known to
// it, and keys in it are NotRegistered. Handles are named again when they are used.
func (c *Client) renew(ctx context.Context) (*start, error) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	hello, err := c.rpc.Hello(ctx, &enginev1.HelloRequest{Protocol: protocol, Namespace: []byte(c.o.Namespace), Name: c.o.Name}, grpc.WaitForReady(true))
	if err != nil {
		failed := &callError{call: "hello", socket: c.socket, status: status.Convert(err)}
		if failed.status.Code() == codes.DeadlineExceeded {
			failed.class = ErrUnavailable // it was waited for, as one that starts would be
		}
		return nil, failed
	}
	if hello.GetProtocol() != protocol {
		return nil, fmt.Errorf("node %q speaks protocol %d, want %d: %w", hello.GetNode(), hello.GetProtocol(), protocol, ErrUnsupported)
	}
	l, err := attach(filepath.Join(filepath.Dir(c.socket), hello.GetDescriptorSocket()), hello)
	if err != nil {
		return nil, err
	}
	s := &start{hello: hello, link: l, naming: make(chan struct{}, 1)}
	s.mu.regions = make(map[*Region]uint32)
	s.mu.handles = make(map[*Handle]named)
	c.mu.Lock()
	regions := make([]*Region, 0, len(c.mu.regions))
	for r := range c.mu.regions {
		regions = append(regions, r)
	}
	c.mu.Unlock()
	for _, r := range regions {
		err := s.register(r)
		if err != nil && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrUnsupported) {
			return nil, errors.Join(err, l.Close())
		}
	}
	return s, nil
}

// register makes a region known to a start.
func (s *start) register(r *Region) error {
	s.registering.Lock()
	defer s.registering.Unlock()
	if s.region(r) != 0 {
		return nil
	}
	if r.device != nil {
		return s.lend(r)
	}
	reply, _, err := s.link.ask(&enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_RegisterFile{
		RegisterFile: &enginev1.RegisterFile{Off: r.off, Len: r.n}}}, r.file)
	if err != nil {
		return fmt.Errorf("register %d bytes: %w", r.n, err)
	}
	s.know(r, reply.GetRegion())
	return nil
}

// know notes a region's number.
func (s *start) know(r *Region, as *enginev1.Region) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.regions[r] = as.GetRegion()
}

// lend is register of a GPU's memory, which needs no descriptor.
func (s *start) lend(r *Region) error {
	c := r.c
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Within)
	defer cancel()
	reply, err := c.rpc.RegisterDevice(ctx, &enginev1.RegisterDeviceRequest{Caller: c.caller(s), IpcHandle: r.device.handle, Device: r.device.pci,
		Off: r.off, Len: r.n})
	if err != nil {
		return fmt.Errorf("%d bytes of device %q: %w", r.n, r.device.pci, &callError{call: "register device", socket: c.socket, status: status.Convert(err)})
	}
	s.know(r, reply.GetRegion())
	return nil
}

// region is a region's number; 0, which no region has, when it is not known.
func (s *start) region(r *Region) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.regions[r]
}

// again says what a call does after an error of its attempt.
type again bool

const (
	once    again = false // sessions: they are of one start
	anytime again = true  // what may be repeated
)

// do runs a call: with a start's numbers, again after a restart of the node, and never returning while the node touches its memory.
func do[Reply any](ctx context.Context, c *Client, name string, at *start, rpc func(ctx context.Context, s *start, caller *enginev1.Caller) (*Reply, error)) (*Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Within)
	defer cancel()
	repeat := again(at == nil)
	var err error
	s := at
	for range maxAttempts {
		if s == nil || err != nil {
			if s, err = c.start(ctx, s); err != nil {
				return nil, err
			}
		}
		caller := c.caller(s)
		var reply *Reply
		if reply, err = rpc(ctx, s, caller); err == nil {
			return reply, nil
		}
		var local *callError
		if errors.As(err, &local) {
			return nil, err // of a call inside of this one
		}
		err = c.settled(name, s, caller.GetCall(), err)
		if !errors.Is(err, ErrRestarted) || repeat == once {
			return nil, err
		}
	}
	return nil, err
}

// settled returns the error of a call once the node has let go of its memory.
func (c *Client) settled(name string, s *start, call uint64, err error) error {
	failed := &callError{call: name, socket: c.socket, status: status.Convert(err)}
	switch failed.status.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Unknown, codes.Internal:
	default:
		return failed // the node's own answer
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	for {
		_, qerr := c.rpc.Quiesce(ctx, &enginev1.QuiesceRequest{Caller: c.caller(s), Calls: []uint64{call}})
		switch status.Code(qerr) {
		case codes.OK, codes.FailedPrecondition:
			return failed
		}
		if s.link.ended() {
			return failed // it closes when nothing of us is left
		}
		select {
		case <-ctx.Done():
			failed.class = ErrNotQuiet
			return failed
		case <-time.After(settleAgain):
		}
	}
}

// Quiesce ends all calls of this client that are in progress, and returns when none touches its memory.
func (c *Client) Quiesce(ctx context.Context) (ended int, err error) {
	reply, err := do(ctx, c, "quiesce", nil, func(ctx context.Context, _ *start, caller *enginev1.Caller) (*enginev1.QuiesceReply, error) {
		return c.rpc.Quiesce(ctx, &enginev1.QuiesceRequest{Caller: caller})
	})
	return int(reply.GetEnded()), err
}

// Stats is what the node counts, and gauges of this client.
func (c *Client) Stats(ctx context.Context) (counts, client map[string]uint64, err error) {
	reply, err := do(ctx, c, "stats", nil, func(ctx context.Context, _ *start, caller *enginev1.Caller) (*enginev1.StatsReply, error) {
		return c.rpc.Stats(ctx, &enginev1.StatsRequest{Caller: caller})
	})
	return reply.GetCounts(), reply.GetClient(), err
}

// Region is registered memory: a part of a file that lives in memory, or of a GPU's. It is registered again by itself after a restart
// of the node.
type Region struct {
	c      *Client
	file   *os.File
	off, n uint64
	b      []byte // mapped here; nil for a file that the caller maps
	device *lent  // nil: a file
}

// lent is memory of a GPU by its IPC handle.
type lent struct {
	pci    string
	handle []byte
}

// Len is the region's length in bytes.
func (r *Region) Len() uint64 { return r.n }

// Bytes is the memory of a region that the client mapped (NewMemory, Allocate), until Close; nil for one that the caller maps.
func (r *Region) Bytes() []byte { return r.b }

// File is the file behind the region; it is the client's for a region that it made, and nil for a GPU's.
func (r *Region) File() *os.File { return r.file }

// Close ends the registration, when no call uses the region any more, and unmaps what the client mapped. Twice is allowed.
func (r *Region) Close() error {
	c := r.c
	c.mu.Lock()
	_, ours := c.mu.regions[r]
	delete(c.mu.regions, r)
	s := c.mu.now
	c.mu.Unlock()
	if !ours {
		return nil
	}
	var err error
	if id := s.region(r); id != 0 {
		ctx, cancel := context.WithTimeout(context.Background(), c.o.Within)
		defer cancel()
		_, err = c.rpc.Deregister(ctx, &enginev1.DeregisterRequest{Caller: c.caller(s), Regions: []uint32{id}})
		switch status.Code(err) {
		case codes.FailedPrecondition, codes.NotFound, codes.Unavailable:
			err = nil // that start has let go, or will with its connection
		}
		s.mu.Lock()
		delete(s.mu.regions, r)
		s.mu.Unlock()
	}
	return errors.Join(err, r.drop())
}
