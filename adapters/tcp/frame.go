package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// Frames are little-endian. A request is a header, for writes the grant's token, and count segments; then, for writes, the
// payload in the segments' order.
//
//	request   0 version  1 kind  2 count u16  4 id u32  8 bytes u32  12 zero u32
//	segment   0 buffer u32  4 len u32  8 off u64
//	response  0 version  1 kind  2 status  3 zero  4 id u32  8 bytes u32  12 zero u32
//
// bytes of a request is the sum of its segments' lengths; of a response, what follows it. Ids count up from 0 on each lane, and
// responses come in their order: an id that is out of turn is garbage.
const (
	requestBytes  = 16
	responseBytes = 16
	segmentBytes  = 16
	tokenBytes    = len(ports.GrantToken{})

	maxSegments     = 512     // of a request; with its header they fit one system call (IOV_MAX is 1,024)
	maxRequestBytes = 1 << 20 // of payload
	maxFrame        = requestBytes + tokenBytes + maxSegments*segmentBytes
)

type frameKind uint8

const (
	kindRead  frameKind = 1
	kindWrite frameKind = 2
)

// status of a response.
type status uint8

const (
	statusOK status = iota
	statusBounds
	statusRevoked
	statusFailed // the owner's device did not carry it out
	numStatuses
)

// err is the class of a status, nil for statusOK.
func (s status) err() error {
	return [numStatuses]error{nil, ports.ErrBounds, ports.ErrRevoked, errDevice}[s]
}

var (
	errDevice    = fmt.Errorf("the owner's device failed: %w", ports.ErrPeer)
	errGarbage   = errors.New("a frame that makes no sense")
	errOversized = errors.New("a frame past the limits")
	errTruncated = errors.New("the connection ended in mid frame")
	errStalled   = errors.New("the connection stood still in mid frame")
	errGone      = errors.New("the peer hung up")
)

type request struct {
	kind  frameKind
	count int
	id    uint32
	bytes uint32
}

// size is the length of the frame but for a write's payload.
func (r request) size() int {
	n := requestBytes + r.count*segmentBytes
	if r.kind == kindWrite {
		n += tokenBytes
	}
	return n
}

func (r request) encode(b []byte) {
	b[0], b[1] = version, byte(r.kind)
	binary.LittleEndian.PutUint16(b[2:], uint16(r.count))
	binary.LittleEndian.PutUint32(b[4:], r.id)
	binary.LittleEndian.PutUint32(b[8:], r.bytes)
	binary.LittleEndian.PutUint32(b[12:], 0)
}

// decodeRequest reads a header. Precondition: len(b) >= requestBytes.
func decodeRequest(b []byte) (request, error) {
	r := request{
		kind:  frameKind(b[1]),
		count: int(binary.LittleEndian.Uint16(b[2:])),
		id:    binary.LittleEndian.Uint32(b[4:]),
		bytes: binary.LittleEndian.Uint32(b[8:]),
	}
	switch {
	case b[0] != version, r.kind != kindRead && r.kind != kindWrite, binary.LittleEndian.Uint32(b[12:]) != 0:
		return r, errGarbage
	case r.count > maxSegments, r.bytes > maxRequestBytes:
		return r, errOversized
	case r.count == 0, int(r.bytes) < r.count:
		return r, errGarbage
	}
	return r, nil
}

// segment is a run of one of the owner's buffers.
type segment struct {
	buffer uint32
	len    uint32
	off    uint64
}

func (s segment) encode(b []byte) {
	binary.LittleEndian.PutUint32(b, s.buffer)
	binary.LittleEndian.PutUint32(b[4:], s.len)
	binary.LittleEndian.PutUint64(b[8:], s.off)
}

func decodeSegment(b []byte) segment {
	return segment{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])}
}

// checkSegments says whether the segments of a request are what its header told. Precondition: len(b) is a whole number of them.
func checkSegments(r request, b []byte) error {
	var sum uint64
	for ; len(b) > 0; b = b[segmentBytes:] {
		s := decodeSegment(b)
		if s.len == 0 {
			return errGarbage
		}
		sum += uint64(s.len)
	}
	if sum != uint64(r.bytes) {
		return errGarbage
	}
	return nil
}

type response struct {
	kind   frameKind
	status status
	id     uint32
	bytes  uint32
}

func (r response) encode(b []byte) {
	b[0], b[1], b[2], b[3] = version, byte(r.kind), byte(r.status), 0
	binary.LittleEndian.PutUint32(b[4:], r.id)
	binary.LittleEndian.PutUint32(b[8:], r.bytes)
	binary.LittleEndian.PutUint32(b[12:], 0)
}

// decodeResponse reads a header. Precondition: len(b) >= responseBytes.
func decodeResponse(b []byte) (response, error) {
	r := response{
		kind:   frameKind(b[1]),
		status: status(b[2]),
		id:     binary.LittleEndian.Uint32(b[4:]),
		bytes:  binary.LittleEndian.Uint32(b[8:]),
	}
	switch {
	case b[0] != version, r.kind != kindRead && r.kind != kindWrite, b[3] != 0, r.status >= numStatuses,
		binary.LittleEndian.Uint32(b[12:]) != 0:
		return r, errGarbage
	case r.bytes > maxRequestBytes:
		return r, errOversized
	case r.bytes > 0 && (r.kind == kindWrite || r.status != statusOK):
		return r, errGarbage
	}
	return r, nil
}
