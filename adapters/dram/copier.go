package dram

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spanpool/spanpool/ports"
)

// Copier copies between host regions on the caller's goroutine. A DeviceRegion is an error that wraps
// errors.ErrUnsupported. Regions that overlap are copied as if through memory of their own.
//
// Memory that other processes own can vanish under a copy (a client cuts its file short): such an op fails with a
// *FaultError and the others are done, the process lives. Its destination is undefined.
type Copier struct{}

var _ ports.Copier = Copier{}

// NewCopier makes a Copier.
func NewCopier() Copier { return Copier{} }

// FaultError says that an op touched memory that is not there.
type FaultError struct{ Addr uintptr }

func (e *FaultError) Error() string { return fmt.Sprintf("dram: copy: memory fault at %#x", e.Addr) }

// pieceBytes is how much is copied without a chance for the scheduler: a stop of the world waits for the piece. It lies well
// above 1 MiB, from which on the runtime's copy goes past the caches. At 10 GB/s a piece takes under a millisecond.
const pieceBytes = 8 << 20

// Copy is ports.Copier's. The context is looked at before each op; an op that was begun is finished.
func (Copier) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for i := 0; i < len(ops); {
		i += copyUntilFault(ctx, ops[i:], errs[i:])
	}
}

// copyUntilFault returns the number of ops that are decided: all, or up to and with the one that faulted. The recovery is
// per run of ops and not per op, which keeps small ops cheap.
func copyUntilFault(ctx context.Context, ops []ports.CopyOp, errs []error) (done int) {
	defer func() {
		if r := recover(); r != nil {
			errs[done] = faultOf(r)
			done++
		}
	}()
	for ; done < len(ops); done++ {
		if ctx.Err() != nil {
			errs[done] = context.Cause(ctx)
			continue
		}
		errs[done] = copyOne(&ops[done])
	}
	return done
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

func copyOne(op *ports.CopyOp) error {
	dst, okDst := op.Dst.(ports.HostRegion)
	src, okSrc := op.Src.(ports.HostRegion)
	if !okDst || !okSrc {
		return fmt.Errorf("dram: copy from %T to %T: %w", op.Src, op.Dst, errors.ErrUnsupported)
	}
	if !within(op.DstOff, op.Len, dst.Len()) {
		return fmt.Errorf("dram: copy destination: %d bytes at %d of %d: %w", op.Len, op.DstOff, dst.Len(), ports.ErrBounds)
	}
	if !within(op.SrcOff, op.Len, src.Len()) {
		return fmt.Errorf("dram: copy source: %d bytes at %d of %d: %w", op.Len, op.SrcOff, src.Len(), ports.ErrBounds)
	}
	copyBytes(dst.Bytes()[op.DstOff:op.DstOff+op.Len], src.Bytes()[op.SrcOff:op.SrcOff+op.Len])
	return nil
}

// within says that [off, off+n) lies in [0, size), and no sum overflows.
func within(off, n, size uint64) bool { return off <= size && n <= size-off }

// copyBytes copies equal lengths.
func copyBytes(dst, src []byte) {
	if len(dst) <= pieceBytes || overlap(dst, src) {
		copy(dst, src)
		return
	}
	for len(src) > pieceBytes {
		copy(dst, src[:pieceBytes])
		dst, src = dst[pieceBytes:], src[pieceBytes:]
	}
	copy(dst, src)
}
