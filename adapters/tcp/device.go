package tcp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spanpool/spanpool/ports"
)

// reachesDevices says whether there is a copier for device memory.
func (t *Transport) reachesDevices() bool { return t.cfg.Copier != nil }

// copier is the one for an op of that purpose: a pull may wait.
func (t *Transport) copier(p ports.Purpose) ports.Copier {
	if p == ports.PurposePull && t.cfg.Background != nil {
		return t.cfg.Background
	}
	return t.cfg.Copier
}

// reaches refuses memory that nothing here can touch.
func (t *Transport) reaches(r ports.Region) error {
	switch r.(type) {
	case ports.HostRegion:
		return nil
	case ports.DeviceRegion:
		if t.reachesDevices() {
			return nil
		}
	}
	return fmt.Errorf("region of type %T, want host memory: %w", r, errors.ErrUnsupported)
}

// anyDevice reports whether some of the local memory is a device's, which is reached by way of other memory: a sum of that says nothing
// of what was stored.
func (t *Transport) anyDevice(segs []ports.Segment) bool {
	return t.reachesDevices() && slices.ContainsFunc(segs, func(s ports.Segment) bool { return isDevice(s.Local) })
}

// shared says that two regions share memory.
func shared(a, b ports.Region) bool {
	if a, ok := a.(ports.DeviceRegion); ok {
		b, ok := b.(ports.DeviceRegion)
		return ok && a.Overlaps(b)
	}
	h, ok := b.(ports.HostRegion)
	return ok && overlap(a.(ports.HostRegion).Bytes(), h.Bytes())
}

// staging is host memory by which payload goes to or from device memory, and the copies that are to be made between the two. A socket
// has no way there. It belongs to one goroutine, and is made at the first use.
type staging struct {
	b      []byte
	region ports.Region // b
	used   int
	ops    []ports.CopyOp
	errs   []error
}

// free is how much can be taken.
func (s *staging) free() int { return maxRequestBytes - s.used }

// take returns the next n bytes. Precondition: they are free.
func (s *staging) take(n int) []byte {
	if s.b == nil {
		s.b = make([]byte, maxRequestBytes)
		s.region = ports.HostRegionOf(s.b)
	}
	s.used += n
	return s.b[s.used-n : s.used]
}

// fill takes n bytes into which run copies what lies at off of r.
func (s *staging) fill(r ports.Region, off uint64, n int) []byte {
	b := s.take(n)
	s.ops = append(s.ops, ports.CopyOp{Dst: s.region, DstOff: uint64(s.used - n), Src: r, SrcOff: off, Len: uint64(n)})
	return b
}

// drain takes n bytes that run copies to off of r.
func (s *staging) drain(r ports.Region, off uint64, n int) []byte {
	b := s.take(n)
	s.ops = append(s.ops, ports.CopyOp{Dst: r, DstOff: off, Src: s.region, SrcOff: uint64(s.used - n), Len: uint64(n)})
	return b
}

// run makes the copies. They are finished whoever leaves: the copier has a bound of its own.
func (s *staging) run(c ports.Copier) error {
	if len(s.ops) == 0 {
		return nil
	}
	for len(s.errs) < len(s.ops) {
		s.errs = append(s.errs, nil)
	}
	errs := s.errs[:len(s.ops)]
	c.Copy(context.Background(), s.ops, errs)
	s.forget()
	return errors.Join(errs...)
}

// forget drops the copies that were not made. What was taken stays taken.
func (s *staging) forget() {
	clear(s.ops)
	s.ops = s.ops[:0]
}

// reset frees all that was taken.
func (s *staging) reset() {
	s.forget()
	s.used = 0
}

// deliver copies a read's payload on to device memory, unless its op has ended meanwhile. An error is that of the op.
func (c *lane) deliver(f *flight) {
	if len(c.landing.ops) == 0 {
		return
	}
	c.in.Lock()
	defer c.in.Unlock()
	if f.op == nil || f.err != nil {
		c.landing.forget()
		return
	}
	f.err = c.landing.run(c.l.t.copier(f.why))
}

// fetch gets the payload of the write that is about to be sent from device memory. When that fails, zeros are sent, since the frame is,
// and the op fails.
func (c *lane) fetch() {
	if len(c.leaving.ops) == 0 {
		return
	}
	c.out.Lock()
	defer c.out.Unlock()
	f := c.out.last
	if f.op == nil {
		c.leaving.forget()
		return
	}
	if f.err = c.leaving.run(c.l.t.copier(f.why)); f.err != nil {
		clear(c.leaving.b[:c.leaving.used])
	}
}

// stage gets what a read names of device memory into outgoing, and returns where there it begins. What is queued goes first when there is
// no room; a request fits an empty one. failed is a device's error, err the connection's.
func (s *served) stage(segs []byte) (at int, failed, err error) {
	if n := s.deviceBytes(segs); n > s.outgoing.free() {
		if err := s.flush(); err != nil {
			return 0, nil, err
		}
	}
	at = s.outgoing.used
	for ; len(segs) > 0; segs = segs[segmentBytes:] {
		g := decodeSegment(segs)
		if r := s.region(g); isDevice(r) {
			s.outgoing.fill(r, g.off, int(g.len))
		}
	}
	return at, s.outgoing.run(s.t.copier(ports.PurposeGet)), nil
}

// deviceBytes is how much of a request's segments is device memory. Precondition: they were looked up.
func (s *served) deviceBytes(segs []byte) (n int) {
	for ; len(segs) > 0; segs = segs[segmentBytes:] {
		if g := decodeSegment(segs); isDevice(s.region(g)) {
			n += int(g.len)
		}
	}
	return n
}

// deliver copies a write's payload on to device memory, under its grant: the lock is held while the device is at work, which the copier
// bounds, so that a revocation waits for it.
func (s *served) deliver() status {
	if len(s.incoming.ops) == 0 {
		return statusOK
	}
	defer s.incoming.forget()
	if s.under == nil {
		return statusRevoked
	}
	s.under.Lock()
	defer s.under.Unlock()
	if !s.under.Stands() {
		return statusRevoked
	}
	if s.incoming.run(s.t.copier(ports.PurposePut)) != nil {
		return statusFailed
	}
	return statusOK
}

func isDevice(r ports.Region) bool {
	_, ok := r.(ports.DeviceRegion)
	return ok
}
