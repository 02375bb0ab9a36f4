package hip

import (
	"context"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/ports"
)

// piece is a part of an op that the device moves in one round: n bytes between device memory and the bounce buffer, or within and between
// devices. The bases tell allocations apart (0: the bounce buffer): neighbours in different ones are not one run for a driver.
type piece struct {
	op               uint32
	kind             hiprt.Kind
	dst, src, n      uint64
	dstBase, srcBase uint64
}

// cursor is how far a job has been planned: op mine[at], of which off bytes are in earlier rounds.
type cursor struct {
	at  int
	off uint64
}

// straightBytes is what a round moves between device memory at most, so that its time stays far below a deadline; the number is
// arbitrary.
const straightBytes = 64 << 20

// plan fills the next round. The context is looked at before each op; an op that was begun is finished.
func (w *worker) plan(j *job) {
	w.pieces, w.gather, w.deal, w.dealt = w.pieces[:0], w.gather[:0], w.deal[:0], w.dealt[:0]
	bounce, straight := uint64(0), uint64(0)
	for c := &w.cur; c.at < len(j.mine) && len(w.pieces) < maxPieces; {
		i := j.mine[c.at]
		op := &j.ops[i]
		if c.off == 0 && j.ctx.Err() != nil {
			j.errs[i] = context.Cause(j.ctx)
		}
		if j.errs[i] != nil {
			c.at, c.off = c.at+1, 0
			continue
		}
		used, room := &bounce, uint64(len(w.bounce))
		if between(op) {
			used, room = &straight, straightBytes
		}
		n := min(op.Len-c.off, room-*used)
		if n == 0 {
			return
		}
		w.add(i, op, c.off, n, *used)
		*used += n
		if c.off += n; c.off == op.Len {
			c.at, c.off = c.at+1, 0
		}
	}
}

// between says that both sides are device memory.
func between(op *ports.CopyOp) bool {
	_, dst := op.Dst.(ports.DeviceRegion)
	_, src := op.Src.(ports.DeviceRegion)
	return dst && src
}

// add plans n bytes at off of an op; at is where they lie in the bounce buffer, if they pass it.
func (w *worker) add(i uint32, op *ports.CopyOp, off, n, at uint64) {
	p := piece{op: i, n: n}
	dst, toDevice := op.Dst.(ports.DeviceRegion)
	src, fromDevice := op.Src.(ports.DeviceRegion)
	if toDevice {
		p.dstBase = dst.Addr().Raw()
		p.dst = p.dstBase + op.DstOff + off
	}
	if fromDevice {
		p.srcBase = src.Addr().Raw()
		p.src = p.srcBase + op.SrcOff + off
	}
	switch {
	case !fromDevice:
		p.kind, p.src = hiprt.HostToDevice, w.base+at
		w.gather = append(w.gather, ports.CopyOp{Dst: w.region, DstOff: at, Src: op.Src, SrcOff: op.SrcOff + off, Len: n})
	case !toDevice:
		p.kind, p.dst = hiprt.DeviceToHost, w.base+at
		w.deal = append(w.deal, ports.CopyOp{Dst: op.Dst, DstOff: op.DstOff + off, Src: w.region, SrcOff: at, Len: n})
		w.dealt = append(w.dealt, i)
	case dst.Ordinal() == src.Ordinal():
		p.kind = hiprt.DeviceToDevice
	default:
		p.kind = hiprt.Default
	}
	w.pieces = append(w.pieces, p)
}

// follows says that q goes on where p ends, on both sides.
func (p *piece) follows(q *piece) bool {
	return p.alike(q) && p.dst == q.dst+q.n && p.src == q.src+q.n
}

// alike says that one call may move both.
func (p *piece) alike(q *piece) bool {
	return p.kind == q.kind && p.dstBase == q.dstBase && p.srcBase == q.srcBase
}

// minRows is from when on rows are worth a call of their own; maxPitch is below what every device allows.
const (
	minRows  = 3
	maxPitch = 1 << 30
)

// lay makes the columns of a submission: neighbours become one copy, equal strides one copy of rows.
func (w *worker) lay(pieces []piece) {
	w.runs = w.runs[:0]
	for i := range pieces {
		if n := len(w.runs); n > 0 && pieces[i].follows(&w.runs[n-1]) {
			w.runs[n-1].n += pieces[i].n
			continue
		}
		w.runs = append(w.runs, pieces[i])
	}
	c := &w.columns
	c.Reset()
	for i := 0; i < len(w.runs); {
		p := &w.runs[i]
		if rows := rowsOf(w.runs[i:]); rows >= minRows {
			q := &w.runs[i+1]
			c.Rects = append(c.Rects, hiprt.Rect{Dst: p.dst, Src: p.src, Width: p.n, Height: uint64(rows), DPitch: q.dst - p.dst, SPitch: q.src - p.src, Kind: p.kind})
			i += rows
			continue
		}
		c.Dst, c.Src, c.Len, c.Kind = append(c.Dst, p.dst), append(c.Src, p.src), append(c.Len, p.n), append(c.Kind, p.kind)
		i++
	}
}

// rowsOf is how many of the first runs have one length and one stride on either side.
func rowsOf(runs []piece) int {
	if len(runs) < 2 {
		return len(runs)
	}
	p := &runs[0]
	dpitch, spitch := runs[1].dst-p.dst, runs[1].src-p.src // what lies before p gives a pitch that is too large
	if dpitch < p.n || spitch < p.n || dpitch > maxPitch || spitch > maxPitch {
		return 1
	}
	n := 1
	for n < len(runs) {
		q, before := &runs[n], &runs[n-1]
		if !q.alike(p) || q.n != p.n || q.dst-before.dst != dpitch || q.src-before.src != spitch {
			break
		}
		n++
	}
	return n
}
