package dram

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/ports"
)

// Copier copies between host regions. A DeviceRegion is an error that wraps errors.ErrUnsupported. Regions that overlap are
// copied as if through memory of their own; the ops of a batch are done in any order, some at once. The sums that ops ask for are
// made while they are copied.
//
// Memory that other processes own can vanish under a copy (a client cuts its file short): such an op fails with a
// *FaultError and the others are done, the process lives. Its destination is undefined.
//
// A large batch goes past the caches where the processor can, and is shared with goroutines of the call's own while places are
// free (batch, below). docs/copies.md says when and why. A Copier needs no Close: nothing that it starts outlives its Copy.
type Copier struct {
	// places holds a token for each goroutine that copies now. It is one less than GOMAXPROCS, so that there is always one
	// that polls the network, and at most the processors. Who blocks to enter is served in turn.
	places  chan struct{}
	streams bool

	// mu guards the batches that are not in use. Nothing is held across it.
	mu struct {
		sync.Mutex
		spare []*batch
	}
}

var _ ports.Copier = (*Copier)(nil)

// NewCopier makes a Copier for GOMAXPROCS as it is now.
func NewCopier() *Copier {
	return newCopier(max(1, min(runtime.GOMAXPROCS(0)-1, runtime.NumCPU())), canStream)
}

func newCopier(places int, streams bool) *Copier {
	return &Copier{places: make(chan struct{}, places), streams: streams} // capacity: a token each
}

// FaultError says that an op touched memory that is not there.
type FaultError struct{ Addr uintptr }

func (e *FaultError) Error() string { return fmt.Sprintf("dram: copy: memory fault at %#x", e.Addr) }

// Sizes of batches. Figures are of docs/copies.md.
const (
	// shortBatch goes ahead without a place: it is done sooner than a place would be waited for.
	shortBatch = 64 << 10
	// cachedBatch stays in the caches: whoever had it copied may read it next, as the sums of a put do after steps of this
	// size. What is larger pushes its own beginning out of them.
	cachedBatch = 512 << 10
	// sharedBatch takes several times as long as a goroutine takes to begin.
	sharedBatch = 4 << 20
	// lookBytes is what is copied between two looks at the context: a few microseconds.
	lookBytes = 64 << 10
)

// Copy is ports.Copier's. The context is looked at now and then between ops; an op that was begun is finished.
func (c *Copier) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	clear(errs)
	total := bytesOf(ops, sharedBatch)
	if total <= shortBatch {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		copyOps(ctx, ops, errs, false)
		return
	}
	b := c.take()
	b.ctx, b.ops, b.errs, b.streams = ctx, ops, errs, c.streams && total > cachedBatch
	b.copy(total >= sharedBatch)
	c.giveBack(b)
}

// bytesOf is what ops ask for, or enough if that is less. A length may be any number yet.
func bytesOf(ops []ports.CopyOp, enough uint64) (sum uint64) {
	for i := range ops {
		if sum += min(ops[i].Len, enough); sum >= enough {
			return enough
		}
	}
	return sum
}

// copyOps copies ops on the caller's goroutine, which must have SetPanicOnFault.
func copyOps(ctx context.Context, ops []ports.CopyOp, errs []error, streams bool) {
	for i := 0; i < len(ops); {
		i += copyUntilFault(ctx, ops[i:], errs[i:], streams)
	}
}

// copyUntilFault returns the number of ops that are decided: all, or up to and with the one that faulted. The recovery is
// per run of ops and not per op, which keeps small ops cheap.
func copyUntilFault(ctx context.Context, ops []ports.CopyOp, errs []error, streams bool) (done int) {
	defer func() {
		if streams {
			fence() // of what was done before a fault, too
		}
		if r := recover(); r != nil {
			errs[done] = faultOf(r)
			done++
		}
	}()
	copyRun(ctx, ops, errs, streams, &done)
	return len(ops)
}

// copyRun copies ops, and keeps at what it is. While one is copied the processor fetches the source of the next.
func copyRun(ctx context.Context, ops []ports.CopyOp, errs []error, streams bool, at *int) {
	unseen := uint64(lookBytes)
	for i := range ops {
		*at = i
		if unseen >= lookBytes {
			if ctx.Err() != nil {
				failAll(errs[i:], context.Cause(ctx))
				return
			}
			unseen = 0
		}
		op := &ops[i]
		dst, src, err := sidesOf(op)
		if err != nil {
			errs[i] = err
			continue
		}
		var ahead []byte
		if (streams || op.Sum) && i+1 < len(ops) {
			ahead = sourceOf(&ops[i+1])
		}
		if op.Sum {
			op.CRC, op.Summed = copySum(dst, src, ahead, streams), true
		} else {
			copyBytes(dst, src, ahead, streams)
		}
		unseen += uint64(len(dst))
	}
}

func failAll(errs []error, err error) {
	for i := range errs {
		errs[i] = err
	}
}

// faultOf panics again with what is no memory fault: that is a bug.
func faultOf(r any) error {
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	return &FaultError{Addr: fault.Addr()}
}

// sidesOf is the memory of an op, of one length, or why it cannot be copied. It returns no struct: to copy one that was just
// written takes longer than all the rest of a small op.
func sidesOf(op *ports.CopyOp) (dst, src []byte, err error) {
	d, okDst := op.Dst.(ports.HostRegion)
	s, okSrc := op.Src.(ports.HostRegion)
	if !okDst || !okSrc || !within(op.DstOff, op.Len, d.Len()) || !within(op.SrcOff, op.Len, s.Len()) {
		return nil, nil, whyNot(op)
	}
	return d.Bytes()[op.DstOff : op.DstOff+op.Len], s.Bytes()[op.SrcOff : op.SrcOff+op.Len], nil
}

// sourceOf is what an op will read, or nothing.
func sourceOf(op *ports.CopyOp) []byte {
	if s, ok := op.Src.(ports.HostRegion); ok && within(op.SrcOff, op.Len, s.Len()) {
		return s.Bytes()[op.SrcOff : op.SrcOff+op.Len]
	}
	return nil
}

// whyNot is the error of an op that sidesOf refuses.
func whyNot(op *ports.CopyOp) error {
	dst, okDst := op.Dst.(ports.HostRegion)
	src, okSrc := op.Src.(ports.HostRegion)
	switch {
	case !okDst || !okSrc:
		return fmt.Errorf("dram: copy from %T to %T: %w", op.Src, op.Dst, errors.ErrUnsupported)
	case !within(op.DstOff, op.Len, dst.Len()):
		return fmt.Errorf("dram: copy destination: %d bytes at %d of %d: %w", op.Len, op.DstOff, dst.Len(), ports.ErrBounds)
	default:
		return fmt.Errorf("dram: copy source: %d bytes at %d of %d: %w", op.Len, op.SrcOff, src.Len(), ports.ErrBounds)
	}
}

// within says that [off, off+n) lies in [0, size), and no sum overflows.
func within(off, n, size uint64) bool { return off <= size && n <= size-off }

// line is what the processor moves between its caches and memory.
const line = 64

// streamLeast is the shortest op that streams. Below, the processor's buffers of whole lines cost more than the reads that they
// save, and what helps is to have the source of the next op fetched.
const streamLeast = 4 << 10

// copyBytes copies equal lengths. ahead is what will be read after src, or nothing.
func copyBytes(dst, src, ahead []byte, streams bool) {
	switch {
	case !streams:
		copy(dst, src)
	case len(dst) >= streamLeast && !overlap(dst, src):
		stream(dst, src, ahead)
	default:
		fetch(ahead[:min(len(ahead), streamLeast)])
		copy(dst, src)
	}
}

// copySum is copyBytes that makes the sum of what it stores.
func copySum(dst, src, ahead []byte, streams bool) uint32 {
	if streams {
		return crc32c.Stream(dst, src, ahead, 0) // fenced as stream is
	}
	return crc32c.Copy(dst, src, ahead, 0)
}
