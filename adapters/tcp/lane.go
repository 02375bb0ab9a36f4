package tcp

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/ports"
)

const (
	// chunkBytes is the most that one request asks for: small enough for a big op to use every lane, and for a cancelled one to
	// cost little; large enough to make headers and locks cheap (a chunk takes some 50 us on a loopback).
	chunkBytes = 256 << 10
	// window is the most that a lane has asked for and not got. Several times the bandwidth-delay product of 100 Gbit/s and
	// 50 us, for each lane.
	window = 1 << 20
	// maxFlights is the most requests of a lane.
	maxFlights = 64
	// direct is the length of a fragment from which it goes straight into place. Shorter ones are read ahead with their neighbours
	// and copied: the kernel takes longer to go from piece to piece than a copy takes (1,728 B on 4 connections of a loopback:
	// 4.3 GiB/s by readv, 5.1 by a buffer of 256 KiB).
	direct = 16 << 10
	// readAhead is what a lane reads ahead into: small enough to stay in a core's cache until it is copied.
	readAhead = 256 << 10
	// sendBuffer holds the frames that leave in one call.
	sendBuffer = 4 * maxFrame
)

// lane is one connection of a link, with a goroutine that sends requests and one that receives their responses.
type lane struct {
	l    *Link
	sock *socket
	wake chan struct{} // capacity 1: "there may be something to draw, or room"

	// Guarded by Link.mu: the requests that have no response yet, in their order.
	ring   [maxFlights]flight
	first  int
	count  int
	asked  uint64 // bytes of them
	nextID uint32

	// in is held while a response is copied or read into memory of a caller, and when a flight loses its op.
	in struct {
		sync.Mutex
		place vec
	}
	// out is held while memory of a caller is sent, and when a flight loses its op.
	out struct {
		sync.Mutex
		vec     vec
		id      uint32  // of the write that is being sent
		left    int     // of its frame and what precedes it; 0: none is being sent
		frames  int     // what of lane.frames is being sent
		aborted bool    // its op is gone: nothing may be sent any more
		last    *flight // the write that is being sent, or was the last
	}

	// The receiver's own.
	buf     []byte // what was read ahead is buf[r:w]
	r, w    int
	ahead   vec // of buf
	left    int // of the payload that is being received
	now     *flight
	landing staging // of what goes on to device memory
	header  pump
	body    pump // of a payload, into place
	piece   pump // of one by way of the buffer

	// The sender's own.
	frames  []byte
	leaving staging // of what comes from device memory
	send    pump
}

// flight is one request on a lane. op is nil when it was disowned; it changes under Link.mu, lane.in and lane.out together, so that
// each of them is enough to read it.
type flight struct {
	op    *op
	id    uint32
	dir   ports.Direction
	why   ports.Purpose
	at    int // first segment, and the offset in it
	off   uint64
	count int
	bytes int

	behind uint64 // bytes of the op that come after it
	sum    uint32 // of what has landed, when the op asks for its sum; the receiver's
	err    error  // of a copy to or from device memory; the receiver's, and the sender's before all was sent
}

func newLane(l *Link, s *socket) *lane {
	c := &lane{l: l, sock: s, wake: make(chan struct{}, 1), buf: make([]byte, readAhead), frames: make([]byte, sendBuffer)}
	c.header.init(s.raw.Read, c.headerStep)
	c.body.init(s.raw.Read, c.bodyStep)
	c.piece.init(s.raw.Read, c.pieceStep)
	c.send.init(s.raw.Write, c.sendStep)
	return c
}

// free lets go of the buffers: a link that has ended may be remembered for longer than it lived. Precondition: both goroutines have ended.
func (c *lane) free() {
	c.in.Lock()
	c.in.place = vec{}
	c.in.Unlock()
	c.out.Lock()
	c.out.vec = vec{}
	c.out.Unlock()
	c.buf, c.ahead, c.frames, c.landing, c.leaving = nil, vec{}, nil, staging{}, staging{}
}

// flight i of those that have no response yet.
func (c *lane) flight(i int) *flight { return &c.ring[(c.first+i)%maxFlights] }

// disown takes a flight's memory away. Precondition: Link.mu is held. When a write is half sent, nothing can be sent after it.
func (c *lane) disown(f *flight) bool {
	c.in.Lock()
	defer c.in.Unlock()
	c.out.Lock()
	defer c.out.Unlock()
	if c.sendingLocked(f) {
		c.out.aborted = true
	}
	f.op = nil
	return true
}

// disownUnlessSending leaves a write that is half sent alone.
func (c *lane) disownUnlessSending(f *flight) bool {
	c.in.Lock()
	defer c.in.Unlock()
	c.out.Lock()
	defer c.out.Unlock()
	if c.sendingLocked(f) {
		return false
	}
	f.op = nil
	return true
}

// sendingLocked reports whether some of a write is not with the kernel yet. Precondition: out is held.
func (c *lane) sendingLocked(f *flight) bool {
	return f.dir == ports.Write && c.out.left > 0 && c.out.id == f.id
}

// transmit draws requests and sends them, until the link is dead.
func (c *lane) transmit() {
	defer c.letGo()
	for {
		some, err := c.draw()
		if err != nil {
			return
		}
		if !some {
			select {
			case <-c.wake:
				continue
			case <-c.l.over:
				return
			}
		}
		c.fetch()
		if err := c.sendAll(); err != nil {
			c.l.end(ports.ErrReset)
			return
		}
	}
}

// letGo forgets the addresses that were to be sent.
func (c *lane) letGo() {
	c.out.Lock()
	defer c.out.Unlock()
	c.out.vec.reset()
}

// draw takes this lane's share of the queue, encodes it into frames and points out at them. A write ends it: its payload follows
// its frame.
func (c *lane) draw() (some bool, err error) {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.dead != nil {
		return false, l.mu.dead
	}
	share := max(chunkBytes, l.mu.backlog/uint64(len(l.lanes)))
	var taken uint64
	n := 0
	for l.mu.backlog > 0 && taken < share && c.count < maxFlights && c.asked < window && n+maxFrame <= len(c.frames) {
		f, size := c.cut(l.nextLocked(), c.frames[n:])
		n += size
		taken += uint64(f.bytes)
		if f.dir == ports.Write {
			c.aimOut(n, f)
			return true, nil
		}
	}
	c.aimOut(n, nil)
	return n > 0, nil
}

// cut makes the next request of an op and encodes it. Precondition: Link.mu is held.
func (c *lane) cut(o *op, b []byte) (*flight, int) {
	f := c.flight(c.count)
	*f = flight{op: o, id: c.nextID, dir: o.dir, why: o.why, at: o.at, off: o.off}
	r := request{kind: kindRead, id: f.id}
	at := requestBytes
	if o.dir == ports.Write {
		r.kind = kindWrite
		at += copy(b[at:], o.token[:])
	}
	for o.left > 0 && f.count < maxSegments && f.bytes < chunkBytes {
		s := &o.segs[o.at]
		if n := min(s.Len-o.off, uint64(chunkBytes-f.bytes)); n > 0 {
			segment{buffer: s.Remote, len: uint32(n), off: s.RemoteOff + o.off}.encode(b[at:])
			at += segmentBytes
			f.count++
			f.bytes += int(n)
			o.off += n
			o.left -= n
			c.l.mu.backlog -= n
		}
		if o.off == s.Len {
			o.at, o.off = o.at+1, 0
		}
	}
	r.count, r.bytes, f.behind = f.count, uint32(f.bytes), o.left
	r.encode(b)
	if o.left == 0 {
		c.l.dequeueLocked(o)
	}
	o.flying++
	c.nextID++
	c.count++
	c.asked += uint64(f.bytes)
	return f, at
}

// aimOut points out at n bytes of frames and the payload of the write that is last among them. Precondition: Link.mu is held.
func (c *lane) aimOut(n int, last *flight) {
	c.out.Lock()
	defer c.out.Unlock()
	c.out.vec.add(c.frames[:n])
	c.out.frames = n
	if last != nil {
		c.leaving.reset()
		last.addTo(&c.out.vec, &c.leaving)
		c.out.last = last
		c.out.id, c.out.left = last.id, c.out.vec.left
	}
}

// addTo appends the memory of a flight. Precondition: it has its op, which cannot end meanwhile.
// Device memory has no address here: its part of the payload goes by st.
func (f *flight) addTo(v *vec, st *staging) {
	off, left := f.off, uint64(f.bytes)
	for at := f.at; left > 0; at++ {
		s := &f.op.segs[at]
		n := min(s.Len-off, left)
		switch r := s.Local.(type) {
		case ports.HostRegion:
			v.add(r.Bytes()[s.LocalOff+off:][:n])
		case ports.DeviceRegion:
			if f.dir == ports.Read {
				v.add(st.drain(s.Local, s.LocalOff+off, int(n)))
			} else {
				v.add(st.fill(s.Local, s.LocalOff+off, int(n)))
			}
		}
		left -= n
		off = 0
	}
}

// sendAll sends what out points at.
func (c *lane) sendAll() error {
	for {
		if _, err := c.send.run(); err != nil {
			return err
		}
		if c.sent() {
			return nil
		}
	}
}

// sent clears out when all of it has been.
func (c *lane) sent() bool {
	c.out.Lock()
	defer c.out.Unlock()
	if c.out.vec.left > 0 {
		return false
	}
	c.out.vec.reset()
	return true
}

// sendStep is one call that does not wait.
func (c *lane) sendStep(fd int) (int, error) {
	c.out.Lock()
	defer c.out.Unlock()
	if c.out.aborted {
		c.out.vec.reset()
		return 0, errAborted
	}
	n, err := c.out.vec.writev(fd)
	if errors.Is(err, syscall.EFAULT) && c.out.left > 0 {
		c.blankLocked(err)
		return 0, nil
	}
	c.out.left = max(c.out.left-n, 0)
	return n, err
}

// blankLocked has zeros sent in the place of what is left of a write, the memory of which is not there any more, since its frame may be
// with the kernel, and the op fail. Precondition: out is held, and some of a write is not sent.
func (c *lane) blankLocked(fault error) {
	v, f := &c.out.vec, c.out.last
	f.err = fmt.Errorf("memory fault: %w", fault)
	payload := min(v.left, f.bytes)
	frames := v.left - payload
	v.reset()
	v.add(c.frames[c.out.frames-frames : c.out.frames])
	v.add(make([]byte, payload))
}

// receive takes responses until the link is dead. A caller's memory may vanish under it.
func (c *lane) receive() {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var err error
	for err == nil {
		err = c.one()
	}
	c.in.place.reset()
	c.ahead.reset()
	c.l.t.counts.note(err)
	c.l.end(ports.ErrReset)
}

// one takes one response.
func (c *lane) one() error {
	for c.w-c.r < responseBytes {
		if c.r > 0 {
			c.w = copy(c.buf, c.buf[c.r:c.w])
			c.r = 0
		}
		if _, err := c.header.run(); err != nil {
			if c.w == 0 {
				return gone(err)
			}
			return broken(err)
		}
	}
	r, err := decodeResponse(c.buf[c.r:])
	if err != nil {
		return err
	}
	c.r += responseBytes
	c.l.framing.Add(responseBytes)
	ahead, err := c.l.expect(c, r)
	if err != nil {
		return err
	}
	if r.bytes > 0 {
		if err := c.land(ahead); err != nil {
			return err
		}
	}
	c.l.landed(c, r.status)
	return nil
}

// expect finds the flight that a response is for, and how much to read ahead behind its payload.
func (l *Link) expect(c *lane, r response) (ahead int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.count == 0 {
		return 0, errGarbage
	}
	f := c.flight(0)
	want := 0
	if f.dir == ports.Read && r.status == statusOK {
		want = f.bytes
	}
	if r.id != f.id || (r.kind == kindWrite) != (f.dir == ports.Write) || int(r.bytes) != want {
		return 0, errGarbage
	}
	c.now = f
	return c.aheadLocked(1), nil
}

// aheadLocked is how much to read behind what comes before flight i: up to the header of the next response that goes straight into
// place. It is 0 only when nothing is expected.
func (c *lane) aheadLocked(i int) int {
	n := 0
	for ; i < c.count && n < readAhead; i++ {
		n += responseBytes
		f := c.flight(i)
		if f.dir == ports.Write {
			continue
		}
		if !f.small() {
			break
		}
		n += f.bytes
	}
	return min(n, readAhead)
}

// small reports whether a read's payload goes to its fragments by way of the buffer.
func (f *flight) small() bool { return f.bytes < f.count*direct }

// headerStep reads what is expected next, once; and when nothing is, a header's length, which tells that the peer hung up.
func (c *lane) headerStep(fd int) (int, error) {
	c.l.mu.Lock()
	n := c.aheadLocked(0)
	c.l.mu.Unlock()
	return c.readTo(fd, max(n, responseBytes))
}

// readTo reads once, until the buffer holds n bytes at most.
func (c *lane) readTo(fd, n int) (int, error) {
	v := &c.ahead
	v.reset()
	v.add(c.buf[c.w:min(n, len(c.buf))])
	k, err := v.readv(fd)
	if err == nil {
		c.w += k
	}
	return k, err
}

// land receives a read's payload: what was read ahead first, then, unless its fragments are small, straight into place, and with the
// last of it what follows.
func (c *lane) land(ahead int) error {
	f := c.now
	c.left = f.bytes
	c.aim(f, ahead)
	step := &c.body
	if f.small() {
		step = &c.piece
	}
	for c.left > 0 {
		if _, err := step.run(); err != nil {
			c.r, c.w = 0, 0
			return broken(err)
		}
	}
	c.in.place.reset()
	c.deliver(f)
	return nil
}

// aim points place at a flight's memory, and copies what was read ahead.
func (c *lane) aim(f *flight, ahead int) {
	c.in.Lock()
	defer c.in.Unlock()
	v := &c.in.place
	v.reset()
	if f.op != nil {
		c.landing.reset()
		f.addTo(v, &c.landing)
	}
	c.copyAhead(f)
	if c.left > 0 && f.op != nil && !f.small() {
		v.add(c.buf[:ahead])
	}
}

// copyAhead takes what was read ahead of a payload to its place. Precondition: in is held.
func (c *lane) copyAhead(f *flight) {
	k := min(c.left, c.w-c.r)
	if f.op != nil {
		c.store(f, c.buf[c.r:c.r+k])
	}
	c.arrived(f, k)
	c.r += k
	if c.left > 0 { // then all that was read ahead has been used up
		c.r, c.w = 0, 0
	}
}

// pieceStep is one call that does not wait, into the buffer, and the copies of what came.
func (c *lane) pieceStep(fd int) (int, error) {
	c.l.mu.Lock()
	n := c.left + c.aheadLocked(1)
	c.l.mu.Unlock()
	k, err := c.readTo(fd, n)
	if err != nil {
		return 0, err
	}
	c.in.Lock()
	defer c.in.Unlock()
	c.copyAhead(c.now)
	return k, nil
}

// arrived counts k bytes of a payload. Precondition: in is held.
func (c *lane) arrived(f *flight, k int) {
	c.left -= k
	c.l.bytes[f.why].Add(uint64(k))
	if f.op == nil {
		c.l.thrown.Add(uint64(k))
		c.l.lost[f.why].Add(uint64(k))
		return
	}
	f.op.moved.Add(uint64(k))
}

// bodyStep is one call that does not wait, into place.
func (c *lane) bodyStep(fd int) (int, error) {
	c.in.Lock()
	defer c.in.Unlock()
	v, f := &c.in.place, c.now
	if f.op == nil || f.err != nil { // thrown away
		v.reset()
		v.add(c.buf[:min(c.left, len(c.buf))])
	}
	n, err := v.fill(fd)
	if errors.Is(err, syscall.EFAULT) && f.err == nil { // a caller's memory is not there any more: nothing was taken from the socket
		f.err = fmt.Errorf("memory fault: %w", err)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	payload := min(n, c.left)
	c.sum(f, payload)
	v.advance(n)
	c.w = n - payload
	c.arrived(f, payload)
	return n, nil
}

// sum goes on with the sum of a flight by what was just read into its place, which is in this processor's cache now: n bytes of the
// front. So lanes sum while others read. Precondition: in is held.
func (c *lane) sum(f *flight, n int) {
	if f.op == nil || !f.op.sums {
		return
	}
	defer f.faults()
	f.sum = c.in.place.sumFront(f.sum, n)
}

// store takes what was read ahead to its place, and sums it when that is asked for. Precondition: in is held, and the flight has its op.
func (c *lane) store(f *flight, b []byte) {
	v := &c.in.place
	left := v.left - len(b)
	defer func() { v.advance(v.left - left) }() // what a fault has left out
	defer f.faults()
	var sum *uint32
	if f.op.sums {
		sum = &f.sum
	}
	v.copyIn(b, sum)
}

// faults, deferred, makes of a caller's memory that is not there any more an error of the op, and panics again with all else: that is
// a bug.
func (f *flight) faults() {
	r := recover()
	if fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	}); ok {
		f.err = fmt.Errorf("memory fault at %#x", fault.Addr())
	} else if r != nil {
		panic(r)
	}
}

// landed takes a flight off its lane and sees to what becomes of its op.
func (l *Link) landed(c *lane, st status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := c.flight(0)
	if f.dir == ports.Write && l.sentEarly(c, f) {
		l.t.counts.note(errGarbage)
		l.endLocked(ports.ErrReset)
		return
	}
	o := f.op
	if f.dir == ports.Write && st == statusOK {
		l.bytes[f.why].Add(uint64(f.bytes))
		if o != nil {
			o.moved.Add(uint64(f.bytes))
		} else {
			l.lost[f.why].Add(uint64(f.bytes))
		}
	}
	c.asked -= uint64(f.bytes)
	f.op = nil
	c.first, c.count = (c.first+1)%maxFlights, c.count-1
	if o != nil {
		if f.err != nil && o.err == nil {
			o.err = f.err
			l.dequeueLocked(o)
		}
		if o.sums {
			o.sum ^= crc32c.Combine(f.sum, 0, f.behind)
		}
		l.settleLocked(o, st)
	}
	if l.mu.backlog > 0 {
		signal(c.wake)
	}
}

// sentEarly reports whether the peer answered a write that is not all sent: then its memory is not quiet.
func (l *Link) sentEarly(c *lane, f *flight) bool {
	c.out.Lock()
	defer c.out.Unlock()
	return c.sendingLocked(f)
}

// settleLocked counts one request of an op as done.
func (l *Link) settleLocked(o *op, st status) {
	o.flying--
	if err := st.err(); err != nil && o.err == nil {
		o.err = err
		l.dequeueLocked(o)
	}
	if o.flying == 0 && o.left == 0 {
		l.completeLocked(o, l.t.cfg.Clock.Now(), o.err)
	}
}
