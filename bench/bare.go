package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// piece is where a fragment lies in the source, and where it is to land.
type piece struct{ from, to uint64 }

// moves is what bare loops move: calls of fragments of one size. Source and destination are more than caches hold, so that whoever
// goes round over the calls finds both cold.
type moves struct {
	fragment uint64
	calls    [][]piece
	src, dst []byte
}

// share is the i-th of n parts of a call.
func (m *moves) share(call, i, n int) []piece {
	all := m.calls[call]
	return all[len(all)*i/n : len(all)*(i+1)/n]
}

func (m *moves) bytes(call int) uint64 { return uint64(len(m.calls[call])) * m.fragment }

func (m *moves) at(p piece) []byte    { return m.src[p.from:][:m.fragment] }
func (m *moves) lands(p piece) []byte { return m.dst[p.to:][:m.fragment] }

// rate goes round over the calls, for some time and at least once, and returns bytes a second.
func (m *moves) rate(least time.Duration, call func(i int) error) (float64, error) {
	var moved uint64
	begin := time.Now()
	for moved == 0 || time.Since(begin) < least {
		for i := range m.calls {
			if err := call(i); err != nil {
				return 0, err
			}
			moved += m.bytes(i)
		}
	}
	return float64(moved) / time.Since(begin).Seconds(), nil
}

// copyCall copies a call by as many goroutines.
func (m *moves) copyCall(call, goroutines int) {
	_ = inParallel(goroutines, func(i int) error {
		for _, p := range m.share(call, i, goroutines) {
			copy(m.lands(p), m.at(p))
		}
		return nil
	})
}

// reading is how a bare loop reads what comes into place.
type reading uint8

const (
	readEach     reading = iota // a read a fragment
	readBuffered                // through a bounded buffer
	readVector                  // several fragments a read
	readArena                   // all into flat memory, and from there by copies
	numReadings
)

func (r reading) String() string {
	return [numReadings]string{"read a fragment", "buffer of 256 KiB", "readv", "flat, then copied"}[r]
}

// placing is the readings that come to the same: fragments in place, copied by nobody but the kernel and perhaps once more.
func placing() []reading {
	if canReadVectors {
		return []reading{readEach, readBuffered, readVector}
	}
	return []reading{readEach, readBuffered}
}

// bareConns are the numbers of connections of which the best counts.
var bareConns = []int{1, 4}

const (
	bareBuffer = 256 << 10 // bounded; what a read of a socket may give at once
	bareBound  = 20 * time.Second
	maxVector  = 1024 // IOV_MAX
)

// bareSockets moves fragments over connections of loopback and does nothing else: the asker names a call in four bytes, and the owner
// sends the connection's share of it, gathered. A call is made by one goroutine at a time.
type bareSockets struct {
	m     *moves
	how   reading
	conns []*bareConn
	wg    sync.WaitGroup // the owners; each ends when its connection does
}

type bareConn struct {
	asker, owner *net.TCPConn
	buffered     *bufio.Reader
	flat         *buffer // readArena only
	pieces       [][]byte
}

func openBareSockets(m *moves, conns int, how reading) (*bareSockets, error) {
	b := &bareSockets{m: m, how: how}
	for range conns {
		c, err := b.connect()
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		b.conns = append(b.conns, c)
	}
	for i, c := range b.conns {
		b.wg.Go(func() { b.serve(c.owner, i) })
	}
	return b, nil
}

// connect makes both ends.
func (b *bareSockets) connect() (c *bareConn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	asker, err := net.DialTimeout("tcp", l.Addr().String(), bareBound)
	if err != nil {
		return nil, err
	}
	owner, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, asker.Close())
	}
	c = &bareConn{asker: asker.(*net.TCPConn), owner: owner.(*net.TCPConn)}
	switch b.how {
	case readBuffered:
		c.buffered = bufio.NewReaderSize(asker, bareBuffer)
	case readArena:
		var most uint64
		for i := range b.m.calls {
			most = max(most, b.m.bytes(i))
		}
		if c.flat, err = openBuffer(most); err == nil {
			clear(c.flat.b)
		}
	}
	if err != nil {
		return nil, errors.Join(err, asker.Close(), owner.Close())
	}
	return c, nil
}

// close ends the connections, and returns when their owners have ended.
func (b *bareSockets) close() error {
	var errs []error
	for _, c := range b.conns {
		errs = append(errs, c.asker.Close())
		if c.flat != nil {
			errs = append(errs, c.flat.close())
		}
	}
	b.wg.Wait()
	return errors.Join(errs...)
}

// serve is the owner of the i-th connection, until that ends: whoever asks sees it.
func (b *bareSockets) serve(c *net.TCPConn, i int) {
	defer c.Close()
	var pieces net.Buffers
	var ask [4]byte
	for {
		if _, err := io.ReadFull(c, ask[:]); err != nil {
			return
		}
		pieces = pieces[:0]
		for _, p := range b.m.share(int(binary.LittleEndian.Uint32(ask[:])), i, len(b.conns)) {
			pieces = append(pieces, b.m.at(p))
		}
		rest := pieces // is consumed
		if _, err := rest.WriteTo(c); err != nil {
			return
		}
	}
}

// call moves one call over all connections.
func (b *bareSockets) call(call int) error {
	if len(b.conns) == 1 {
		return b.ask(call, 0)
	}
	return inParallel(len(b.conns), func(i int) error { return b.ask(call, i) })
}

func (b *bareSockets) ask(call, i int) error {
	c := b.conns[i]
	if err := c.asker.SetDeadline(time.Now().Add(bareBound)); err != nil {
		return err
	}
	var ask [4]byte
	binary.LittleEndian.PutUint32(ask[:], uint32(call))
	if _, err := c.asker.Write(ask[:]); err != nil {
		return err
	}
	if err := b.read(c, b.m.share(call, i, len(b.conns))); err != nil {
		return fmt.Errorf("bare loop, %s: %w", b.how, err)
	}
	return nil
}

func (b *bareSockets) read(c *bareConn, share []piece) error {
	switch b.how {
	case readVector:
		return b.readVectors(c, share)
	case readArena:
		return b.readFlat(c, share)
	}
	r := io.Reader(c.asker)
	if c.buffered != nil {
		r = c.buffered
	}
	for _, p := range share {
		if _, err := io.ReadFull(r, b.m.lands(p)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bareSockets) readFlat(c *bareConn, share []piece) error {
	flat := c.flat.b[:uint64(len(share))*b.m.fragment]
	if _, err := io.ReadFull(c.asker, flat); err != nil {
		return err
	}
	for i, p := range share {
		copy(b.m.lands(p), flat[uint64(i)*b.m.fragment:])
	}
	return nil
}

// readVectors reads as many fragments at once as a socket may hold.
func (b *bareSockets) readVectors(c *bareConn, share []piece) error {
	atOnce := min(maxVector, int(bareBuffer/b.m.fragment)+2)
	next := 0
	for next < len(share) || len(c.pieces) > 0 {
		for ; next < len(share) && len(c.pieces) < atOnce; next++ {
			c.pieces = append(c.pieces, b.m.lands(share[next]))
		}
		n, err := readVectorInto(c.asker, c.pieces)
		if err != nil {
			c.pieces = c.pieces[:0]
			return err
		}
		done := 0
		for ; done < len(c.pieces) && n >= len(c.pieces[done]); done++ {
			n -= len(c.pieces[done])
		}
		c.pieces = c.pieces[:copy(c.pieces, c.pieces[done:])]
		if n > 0 {
			c.pieces[0] = c.pieces[0][n:]
		}
	}
	return nil
}

// bareBest is the best rate that loops over sockets reach with these moves, and by which of them. The loops are opened and closed.
func (m *moves) bareBest(least time.Duration, conns []int, how []reading) (best float64, by reading, err error) {
	for _, n := range conns {
		for _, h := range how {
			b, err := openBareSockets(m, n, h)
			if err != nil {
				return 0, 0, err
			}
			r, err := m.rate(least, b.call)
			if err := errors.Join(err, b.close()); err != nil {
				return 0, 0, err
			}
			if r > best {
				best, by = r, h
			}
		}
	}
	return best, by, nil
}
