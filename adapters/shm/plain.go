package shm

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/spanpool/spanpool/crc32c"
	"github.com/spanpool/spanpool/ports"
)

// plain is the Copier of a transport that is given none: the runtime's copy. Memory that is not there fails its op with a *FaultError.
// It is handed what was checked.
type plain struct{}

// Copy is ports.Copier's.
func (plain) Copy(_ context.Context, ops []ports.CopyOp, errs []error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for i := range ops {
		errs[i] = copyOne(&ops[i])
	}
}

func copyOne(op *ports.CopyOp) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = faultOf(r)
		}
	}()
	dst, src := op.Dst.(ports.HostRegion).Bytes()[op.DstOff:][:op.Len], op.Src.(ports.HostRegion).Bytes()[op.SrcOff:][:op.Len]
	if op.Sum {
		op.CRC, op.Summed = crc32c.Copy(dst, src, nil, 0), true
	} else {
		copy(dst, src)
	}
	return nil
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
