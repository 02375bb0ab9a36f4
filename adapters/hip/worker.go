package hip

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/adapters/hip/internal/hiprt"
	"github.com/spanpool/spanpool/ports"
)

// worker is what one thread has: streams, an event, a bounce buffer, and the plan of the round that it is at.
type worker struct {
	d       *device
	lib     *hiprt.Lib
	streams [2]hiprt.Stream // foreground, background
	event   hiprt.Event
	bounce  []byte
	region  ports.Region // bounce
	base    uint64       // where it lies

	away bool // the driver was left at work: nothing of this is given back

	pieces  []piece
	runs    []piece        // neighbours among them made one
	gather  []ports.CopyOp // callers' memory into bounce
	deal    []ports.CopyOp // and from it
	dealt   []uint32       // the op that each of deal is of
	errs    []error        // of gather and deal
	columns hiprt.Columns
	cur     cursor
}

// newWorker is called on its thread.
func newWorker(d *device) (w *worker, err error) {
	w = &worker{d: d, lib: d.r.lib}
	defer func() {
		if err != nil {
			w.close()
			err = fmt.Errorf("set up a thread: %w", err)
		}
	}()
	if err = w.lib.SetDevice(d.ordinal); err != nil {
		return nil, err
	}
	for i := range w.streams {
		if w.streams[i], err = w.lib.StreamCreate(i == foreground); err != nil {
			return nil, err
		}
	}
	if w.event, err = w.lib.EventCreate(); err != nil {
		return nil, err
	}
	b, err := mapBounce(d.r.cfg.BounceBytes)
	if err != nil {
		return nil, fmt.Errorf("bounce buffer of %d bytes: %w", d.r.cfg.BounceBytes, err)
	}
	if err = w.lib.HostRegister(b); err != nil {
		return nil, errors.Join(err, unmapBounce(b))
	}
	w.bounce, w.region, w.base = b, ports.HostRegionOf(b), hiprt.HostAddr(b)
	w.makeRoom()
	return w, nil
}

// maxPieces is what a round holds at most. The number is arbitrary; it makes the plan a fixed size, so that nothing is allocated later.
const maxPieces = 1024

func (w *worker) makeRoom() {
	w.pieces, w.runs = make([]piece, 0, maxPieces), make([]piece, 0, maxPieces)
	w.gather, w.deal, w.dealt = make([]ports.CopyOp, 0, maxPieces), make([]ports.CopyOp, 0, maxPieces), make([]uint32, 0, maxPieces)
	w.errs = make([]error, maxPieces)
	c := &w.columns
	c.Dst, c.Src, c.Len = make([]uint64, 0, maxPieces), make([]uint64, 0, maxPieces), make([]uint64, 0, maxPieces)
	c.Kind, c.Rects = make([]hiprt.Kind, 0, maxPieces), make([]hiprt.Rect, 0, maxPieces/minRows)
}

// close gives back what nothing uses. It runs on the thread, at its end.
func (w *worker) close() {
	if w.away {
		return
	}
	var errs []error
	if w.bounce != nil {
		errs = append(errs, w.lib.HostUnregister(w.bounce))
	}
	if w.event != 0 {
		errs = append(errs, w.lib.EventDestroy(w.event))
	}
	for _, s := range w.streams {
		if s != 0 {
			errs = append(errs, w.lib.StreamDestroy(s))
		}
	}
	if errors.Join(errs...) != nil {
		w.d.stats.errors.Add(1) // a device that is gone: the bounce buffer stays, since the driver may know it still
		return
	}
	if w.bounce != nil {
		_ = unmapBounce(w.bounce) // of a mapping that is ours: it does not fail
	}
}

// run carries a job out. Afterwards it is not the thread's any more.
func (w *worker) run(j *job, queue int) {
	if !j.touch(queued) {
		return
	}
	w.d.stats.jobs.Add(1)
	if j.do != nil {
		w.call(j)
		return
	}
	w.cur = cursor{}
	for j.next < len(j.mine) {
		w.plan(j)
		w.gatherIn(j)
		if len(w.pieces) > 0 && !w.moveAll(j, queue) {
			return
		}
		w.dealOut(j)
	}
	j.end()
}

// call runs a function of the library.
func (w *worker) call(j *job) {
	f := j.do
	j.leave()
	value, err := f(w.lib)
	if j.touch(away) {
		j.value, j.err = value, err
		j.end()
	}
}

// gatherIn copies what goes to the device into the bounce buffer. An op whose memory cannot be read fails, and its pieces are left out.
func (w *worker) gatherIn(j *job) {
	if len(w.gather) == 0 {
		return
	}
	errs := w.copyHost(w.gather)
	at := 0
	kept := w.pieces[:0]
	for _, p := range w.pieces {
		if p.kind == hiprt.HostToDevice {
			err := errs[at]
			at++
			if err != nil {
				j.errs[p.op] = err
				continue
			}
		}
		kept = append(kept, p)
	}
	w.pieces = kept
}

// copyHost is begun, so it is finished: the caller's context ended or not.
func (w *worker) copyHost(ops []ports.CopyOp) []error {
	errs := w.errs[:len(ops)]
	clear(errs)
	w.d.r.cfg.Host.Copy(context.Background(), ops, errs)
	return errs
}

// moveAll has the device carry out the round. When that fails as a whole, each piece is tried alone, so that the error is that of the op
// it hit. It returns false when the job was given up.
func (w *worker) moveAll(j *job, queue int) bool {
	w.d.stats.rounds.Add(1)
	err, ok := w.move(j, w.pieces, queue)
	if err == nil || !ok {
		return ok
	}
	for i := range w.pieces {
		p := &w.pieces[i]
		if len(w.pieces) > 1 {
			if err, ok = w.move(j, w.pieces[i:i+1], queue); !ok {
				return false
			}
		}
		if err != nil && j.errs[p.op] == nil {
			w.d.stats.errors.Add(1)
			j.errs[p.op] = fail("copy", w.d.ordinal, err)
		}
	}
	return true
}

// pollBudget is how long the thread stays in the library between two looks at whether its device is lost.
const pollBudget = 2 * time.Millisecond

// move submits pieces and waits until they are over. false: the job was given up meanwhile, and the driver may be at work still.
func (w *worker) move(j *job, pieces []piece, queue int) (err error, ok bool) {
	if w.d.isLost() {
		return ErrLost, true
	}
	w.lay(pieces)
	j.leave()
	over, err := w.carryOut(queue)
	if !over {
		w.away = true
		w.d.markLost()
		err = errors.Join(ErrLost, err)
	}
	if err == nil {
		w.d.stats.bytes.Add(bytesOf(pieces))
	}
	return err, j.touch(away)
}

func bytesOf(pieces []piece) (n uint64) {
	for i := range pieces {
		n += pieces[i].n
	}
	return n
}

// carryOut returns false when nothing tells whether what was submitted is over: the end could not be marked, or did not come.
func (w *worker) carryOut(queue int) (over bool, err error) {
	recorded, err := w.lib.Submit(w.streams[queue], w.event, &w.columns)
	w.d.stats.submitted.Add(uint64(len(w.columns.Dst) + len(w.columns.Rects)))
	for recorded && !over {
		if w.d.isLost() {
			return false, err
		}
		var waited error
		over, waited = w.lib.Wait(w.event, pollBudget)
		err = errors.Join(err, waited)
	}
	return over, err
}

// dealOut copies what came from the device to the callers, less what did not come, and decides the ops that the round ends.
func (w *worker) dealOut(j *job) {
	ops, dealt := w.deal[:0], w.dealt[:0]
	for i, op := range w.dealt {
		if j.errs[op] == nil {
			ops, dealt = append(ops, w.deal[i]), append(dealt, op)
		}
	}
	if len(ops) > 0 {
		for i, err := range w.copyHost(ops) {
			if err != nil {
				j.errs[dealt[i]] = err
			}
		}
	}
	j.next = w.cur.at
	clear(w.gather) // callers' memory is not kept
	clear(w.deal)
}
