package rdma

import (
	"encoding/binary"

	"github.com/spanpool/spanpool/ports"
)

// messageBytes is the room for a control message; each fits.
const messageBytes = 4096

// kind of a control message. A request and its answer have the same.
type kind uint8

const (
	kindPing kind = iota + 1
	kindOpen
	kindRevive
	kindBye
	kindFenced
)

// message is any control message; which fields count is up to its kind.
//
//	ping    request: nothing              answer: start
//	open    request: token, from          answer: refused, total, runs (those from `from` on that fit)
//	revive  request: pair, end            answer: refused, end
//	bye     request: nothing              no answer: the asker closes the link
//	fenced  from the owner, unasked: the pairs for writes are gone
type message struct {
	kind    kind
	refused bool
	seq     uint32
	start   uint64
	token   ports.GrantToken
	from    uint32
	total   uint32
	runs    []run
	pair    uint8 // of the link's list
	end     end
}

// run is granted memory that one key is good for.
type run struct {
	buffer, key uint32
	off, len    uint64
}

const (
	runBytes    = 24
	headerBytes = 6
	maxRuns     = (messageBytes - headerBytes - 8 - 64 - 12) / runBytes // beside start, token and three numbers
)

// append encodes. Runs past what fits are left out.
func (m *message) append(b []byte) []byte {
	refused := byte(0)
	if m.refused {
		refused = 1
	}
	b = binary.LittleEndian.AppendUint32(append(b, byte(m.kind), refused), m.seq)
	b = binary.LittleEndian.AppendUint64(b, m.start)
	switch m.kind {
	case kindOpen:
		b = append(b, m.token[:]...)
		b = binary.LittleEndian.AppendUint32(b, m.from)
		b = binary.LittleEndian.AppendUint32(b, m.total)
		n := min(len(m.runs), maxRuns)
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
		for _, r := range m.runs[:n] {
			b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, r.buffer), r.key)
			b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, r.off), r.len)
		}
	case kindRevive:
		b = appendEnds(append(b, m.pair), []end{m.end})
	}
	return b
}

func decodeMessage(b []byte) (m message, err error) {
	r := reader{b: b}
	m.kind = kind(r.u8())
	refused := r.u8()
	m.refused = refused == 1
	m.seq, m.start = r.u32(), r.u64()
	switch m.kind {
	case kindPing, kindBye, kindFenced:
	case kindOpen:
		r.bytes(m.token[:])
		m.from, m.total = r.u32(), r.u32()
		m.runs = make([]run, r.count(r.u32(), maxRuns, runBytes))
		for i := range m.runs {
			m.runs[i] = run{buffer: r.u32(), key: r.u32(), off: r.u64(), len: r.u64()}
		}
	case kindRevive:
		m.pair = r.u8()
		m.end = end{r.u32(), r.u32()}
	default:
		r.bad = true
	}
	r.bad = r.bad || refused > 1
	return m, r.end("control message")
}
