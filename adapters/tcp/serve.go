package tcp

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/spanpool/spanpool/adapters/internal/grants"
	"github.com/spanpool/spanpool/ports"
)

const (
	// laneBuffer is what a connection reads requests ahead into.
	laneBuffer = 64 << 10
	// heads is how many responses leave in one system call at most, and flushBytes about how many bytes.
	heads      = 64
	flushBytes = 512 << 10
)

// served is a peer's connection into our memory. One goroutine reads its requests and answers them in their order.
type served struct {
	t    *Transport
	in   *inbound // set by join
	sock *socket

	idle    atomic.Bool // between frames, with nothing to send
	moved   atomic.Uint64
	stalled atomic.Bool // the watch closed it
	seen    uint64      // moved at the watch's last look; the watch's own
	still   int         // looks since then

	buf  []byte // what was read ahead is buf[r:w]
	r, w int
	next uint32 // id of the next request
	read pump
	send pump

	out                vec // responses that are not sent: headers out of head, exposed memory, and what was staged of device memory
	outgoing, incoming staging
	head               [heads * responseBytes]byte
	nhead              int

	named  ports.Region // what the last segment named, and its number: segments mostly name the same, and what is exposed stays
	buffer uint32
	size   uint64

	place vec           // where a payload goes
	under *grants.Grant // what it is applied under; nil: it goes nowhere
	left  int           // of the payload
}

func newServed(t *Transport, c *net.TCPConn) (*served, error) {
	sock, err := newSocket(c)
	if err != nil {
		return nil, err
	}
	if err := tuned(sock, t.cfg.StallTimeout); err != nil {
		return nil, err
	}
	s := &served{t: t, sock: sock}
	s.idle.Store(true)
	s.read.init(sock.raw.Read, s.readStep)
	s.send.init(sock.raw.Write, func(fd int) (int, error) { return s.out.writev(fd) })
	return s, nil
}

// standsStill is asked twice in a stall timeout: it must have been in mid frame, without a byte, at three looks.
func (s *served) standsStill() bool {
	moved := s.moved.Load()
	if s.idle.Load() || moved != s.seen {
		s.seen, s.still = moved, 0
		return false
	}
	s.still++
	return s.still > 2
}

// run serves until the connection ends, and says why; nil is a peer that hung up between frames.
func (s *served) run() error {
	s.buf = make([]byte, laneBuffer)
	var err error
	for err == nil {
		err = s.one()
	}
	s.out.reset()
	s.place.reset()
	if s.stalled.Load() {
		return errStalled
	}
	return err
}

// one takes one request.
func (s *served) one() error {
	if err := s.fill(requestBytes); err != nil {
		return err
	}
	req, err := decodeRequest(s.buf[s.r:])
	if err != nil {
		return err
	}
	if req.id != s.next {
		return errGarbage
	}
	s.next++
	if err := s.fill(req.size()); err != nil {
		return err
	}
	frame := s.buf[s.r : s.r+req.size()]
	s.r += req.size()
	segs := frame[req.size()-req.count*segmentBytes:]
	if err := checkSegments(req, segs); err != nil {
		return err
	}
	if req.kind == kindWrite {
		return s.write(req, frame[requestBytes:][:tokenBytes], segs)
	}
	return s.answerRead(req, segs)
}

// region finds what a segment names, or nil.
func (s *served) region(g segment) ports.Region {
	if s.named == nil || s.buffer != g.buffer {
		r, ok := s.t.exposed[g.buffer]
		if !ok {
			return nil
		}
		s.named, s.buffer, s.size = r, g.buffer, r.Len()
	}
	if g.off > s.size || uint64(g.len) > s.size-g.off {
		return nil
	}
	return s.named
}

// answerRead queues the bytes that a read names, as they lie; of device memory, a copy.
func (s *served) answerRead(req request, segs []byte) error {
	if err := s.room(1 + req.count); err != nil {
		return err
	}
	for b := segs; len(b) > 0; b = b[segmentBytes:] {
		if s.region(decodeSegment(b)) == nil {
			return s.respond(req, statusBounds, 0)
		}
	}
	at, failed, err := s.stage(segs)
	if err != nil {
		return err
	}
	if failed != nil {
		return s.respond(req, statusFailed, 0)
	}
	if err := s.respond(req, statusOK, req.bytes); err != nil {
		return err
	}
	for ; len(segs) > 0; segs = segs[segmentBytes:] {
		g := decodeSegment(segs)
		switch r := s.region(g).(type) {
		case ports.HostRegion:
			s.out.add(r.Bytes()[g.off:][:g.len])
		case ports.DeviceRegion:
			s.out.add(s.outgoing.b[at:][:g.len])
			at += int(g.len)
		}
	}
	s.t.counts.served.Add(uint64(req.bytes))
	if s.out.left >= flushBytes {
		return s.flush()
	}
	return nil
}

// respond queues a response's header.
func (s *served) respond(req request, st status, bytes uint32) error {
	if err := s.room(1); err != nil {
		return err
	}
	h := s.head[s.nhead*responseBytes:][:responseBytes]
	s.nhead++
	response{kind: req.kind, status: st, id: req.id, bytes: bytes}.encode(h)
	s.out.add(h)
	return nil
}

// room makes sure that n pieces, with one header among them, can be queued.
func (s *served) room(n int) error {
	if s.nhead < heads && s.out.pieces()+n <= maxVec {
		return nil
	}
	return s.flush()
}

// flush sends what is queued.
func (s *served) flush() error {
	for s.out.left > 0 {
		n, err := s.send.run()
		if errors.Is(err, syscall.ETIMEDOUT) { // the kernel was quicker than the watch
			return errStalled
		}
		if err != nil {
			return gone(err)
		}
		s.moved.Add(uint64(n))
	}
	s.out.reset()
	s.outgoing.reset()
	s.nhead = 0
	return nil
}

// fill reads until n bytes are there, which fit the buffer. What is queued goes first: the peer may wait for it.
func (s *served) fill(n int) error {
	for s.w-s.r < n {
		if err := s.flush(); err != nil {
			return err
		}
		if s.r > 0 {
			s.w = copy(s.buf, s.buf[s.r:s.w])
			s.r = 0
		}
		between := s.w == 0 && n == requestBytes
		s.place.reset()
		s.place.add(s.buf[s.w:])
		s.idle.Store(between)
		k, err := s.read.run()
		s.idle.Store(false)
		if err != nil {
			if between {
				return gone(err)
			}
			return broken(err)
		}
		s.moved.Add(uint64(k))
		s.w += k
	}
	return nil
}

// readStep is one call that does not wait. Payload of a write is applied under its grant.
func (s *served) readStep(fd int) (int, error) {
	if s.under == nil {
		return s.place.readv(fd)
	}
	s.under.Lock()
	defer s.under.Unlock()
	if !s.under.Stands() {
		s.discard()
	}
	return s.place.readv(fd)
}

// discard has the rest of the payload go nowhere. The buffer is free: what was read ahead has been used up.
func (s *served) discard() {
	s.under = nil
	s.place.reset()
	s.place.add(s.buf[:min(s.left, len(s.buf))])
}

// write applies a write's payload, or reads past it, and answers. Nothing of one that is refused at once is applied.
func (s *served) write(req request, token, segs []byte) error {
	st := s.aim(token, segs)
	s.left = int(req.bytes)
	if s.left > s.w-s.r {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if err := s.apply(); err != nil {
		return err
	}
	if st == statusOK && s.under == nil {
		st = statusRevoked
	}
	if st == statusOK {
		st = s.deliver()
	}
	if st == statusOK {
		s.t.counts.applied.Add(uint64(req.bytes))
	}
	s.under = nil
	s.place.reset()
	return s.respond(req, st, 0)
}

// aim checks a write and points place at its memory.
func (s *served) aim(token, segs []byte) status {
	s.under = nil
	s.place.reset()
	s.incoming.reset()
	for b := segs; len(b) > 0; b = b[segmentBytes:] {
		if s.region(decodeSegment(b)) == nil {
			return statusBounds
		}
	}
	if !s.in.write {
		return statusRevoked
	}
	g := s.t.grants.Find((*ports.GrantToken)(token), s.in.from)
	if g == nil {
		return statusRevoked
	}
	for b := segs; len(b) > 0; b = b[segmentBytes:] {
		if seg := decodeSegment(b); !g.Covers(seg.buffer, seg.off, uint64(seg.len)) {
			return statusBounds
		}
	}
	for ; len(segs) > 0; segs = segs[segmentBytes:] {
		g := decodeSegment(segs)
		switch r := s.region(g).(type) {
		case ports.HostRegion:
			s.place.add(r.Bytes()[g.off:][:g.len])
		case ports.DeviceRegion:
			s.place.add(s.incoming.drain(r, g.off, int(g.len)))
		}
	}
	s.under = g
	return statusOK
}

// apply takes the payload: what was read ahead first.
func (s *served) apply() error {
	ahead := min(s.left, s.w-s.r)
	if s.under != nil {
		s.copyAhead(s.buf[s.r : s.r+ahead])
	}
	s.r += ahead
	s.left -= ahead
	for s.left > 0 {
		if s.under == nil {
			s.discard()
		}
		n, err := s.read.run()
		if err != nil {
			return broken(err)
		}
		s.moved.Add(uint64(n))
		s.left -= n
	}
	return nil
}

func (s *served) copyAhead(b []byte) {
	s.under.Lock()
	defer s.under.Unlock()
	if !s.under.Stands() {
		s.under = nil
		return
	}
	s.place.copyIn(b, nil)
}

// gone is an error of a connection between frames, or of a peer that does not take its answers: nobody's fault.
func gone(err error) error { return errors.Join(errGone, err) }

// broken is an error of a connection in mid frame.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return errTruncated
	}
	return gone(err)
}
