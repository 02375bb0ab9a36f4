package faults

import (
	"context"
	"errors"

	"github.com/spanpool/spanpool/ports"
)

// ErrShort is what the last op of a short Copy fails with when the plan names no error.
var ErrShort = errors.New("faults: copied short")

type copier struct {
	i     *Injector
	inner ports.Copier
}

// Copier wraps a Copier. A plan is asked about the batch ("Copy") and about each op ("Op", whose Before, After and Drop mean
// nothing: ops have no time of their own).
func (i *Injector) Copier(inner ports.Copier) ports.Copier { return copier{i, inner} }

func (c copier) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	call := Call{Port: "Copier", Method: "Copy"}
	v := c.i.decide(call)
	if err := v.Before.wait(ctx); err != nil {
		setAll(errs, err)
		return
	}
	fails := v.fails() && !v.Short
	if !fails || v.Effect {
		c.copyOps(ctx, ops, errs, v)
	}
	// What was done stays done, and its error says so: an answer that is held too long is late, and no less true.
	_ = v.After.wait(ctx)
	if !fails {
		return
	}
	err := v.Err
	if v.Drop {
		err = drop(ctx, call)
	}
	setAll(errs, err)
}

// copyOps copies those that are to be copied and then says of each what it is to be said.
func (c copier) copyOps(ctx context.Context, ops []ports.CopyOp, errs []error, whole Verdict) {
	wanted := make([]error, len(ops))
	run, at := make([]ports.CopyOp, 0, len(ops)), make([]int, 0, len(ops))
	for j, op := range ops {
		v := c.i.decide(Call{Port: "Copier", Method: "Op", Copy: op})
		if whole.Short && j == len(ops)-1 {
			v = Verdict{Err: whole.Err, Short: true}
		}
		wanted[j] = v.Err
		if v.Short {
			op.Len /= 2
			wanted[j] = orElse(v.Err, ErrShort)
		}
		if wanted[j] == nil || v.Effect || v.Short {
			run, at = append(run, op), append(at, j)
		}
	}
	got := make([]error, len(run))
	c.inner.Copy(ctx, run, got)
	copy(errs, wanted)
	for k, j := range at {
		errs[j] = orElse(wanted[j], got[k])
	}
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func setAll(errs []error, err error) {
	for j := range errs {
		errs[j] = err
	}
}
