package hip

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// Copier copies between every two of host memory and the devices of its runtime. What names no device is the host copier's.
type Copier struct {
	r     *Runtime
	queue int
}

var _ ports.Copier = Copier{}

// Copier is the one for work that somebody waits for.
func (r *Runtime) Copier() Copier { return Copier{r, foreground} }

// Background is the one for work that may wait: it gives way to the other's.
func (r *Runtime) Background() Copier { return Copier{r, background} }

// call is one Copy: a job for each device that it names.
type call struct{ jobs []*job }

// call takes one that nobody uses. No sync.Pool: it forgets some now and then, and then a copy allocates.
func (r *Runtime) call() *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.mu.calls); n > 0 {
		c := r.mu.calls[n-1]
		r.mu.calls = r.mu.calls[:n-1]
		return c
	}
	return &call{jobs: make([]*job, len(r.devices))}
}

func (r *Runtime) callEnded(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.calls = append(r.mu.calls, c)
}

// Copy is ports.Copier's. An op on a lost device fails with ErrLost; host memory of such an op is quiet, device memory may not be.
func (c Copier) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	call := c.r.call()
	for i := 0; i < len(ops); {
		if n := hostOnly(ops[i:]); n > 0 {
			c.r.cfg.Host.Copy(ctx, ops[i:i+n], errs[i:i+n])
			i += n
			continue
		}
		errs[i] = c.assign(call, ctx, ops, errs, i)
		i++
	}
	for ordinal, j := range call.jobs {
		if j != nil && len(j.mine) > 0 {
			c.begin(c.r.devices[ordinal], j)
		}
	}
	for ordinal, j := range call.jobs {
		if j != nil && len(j.mine) > 0 && !c.finish(c.r.devices[ordinal], j) {
			call.jobs[ordinal] = nil // its thread may look at it yet
		}
	}
	c.r.callEnded(call)
}

// hostOnly is how many of the first ops name host memory only.
func hostOnly(ops []ports.CopyOp) int {
	for i := range ops {
		_, dst := ops[i].Dst.(ports.HostRegion)
		_, src := ops[i].Src.(ports.HostRegion)
		if !dst || !src {
			return i
		}
	}
	return len(ops)
}

// assign checks an op and gives it to the device that it goes to, or else comes from.
func (c Copier) assign(call *call, ctx context.Context, ops []ports.CopyOp, errs []error, i int) error {
	op := &ops[i]
	ordinal, err := c.ordinal(op)
	if err != nil {
		return err
	}
	if !within(op.DstOff, op.Len, op.Dst.Len()) {
		return fail("copy", ordinal, fmt.Errorf("destination: %d bytes at %d of %d: %w", op.Len, op.DstOff, op.Dst.Len(), ports.ErrBounds))
	}
	if !within(op.SrcOff, op.Len, op.Src.Len()) {
		return fail("copy", ordinal, fmt.Errorf("source: %d bytes at %d of %d: %w", op.Len, op.SrcOff, op.Src.Len(), ports.ErrBounds))
	}
	if op.Len == 0 {
		return nil
	}
	if err := c.lostSource(op, ordinal); err != nil {
		return err
	}
	j := call.jobs[ordinal]
	if j == nil {
		j = newJob()
		call.jobs[ordinal] = j
	}
	if len(j.mine) == 0 {
		j.reset()
		j.ctx, j.ops, j.errs = ctx, ops, errs
	}
	j.mine = append(j.mine, uint32(i))
	return nil
}

// ordinal checks that both sides are memory of this node.
func (c Copier) ordinal(op *ports.CopyOp) (int, error) {
	at := -1
	for _, r := range [2]ports.Region{op.Src, op.Dst} {
		switch r := r.(type) {
		case ports.HostRegion:
		case ports.DeviceRegion:
			if _, err := c.r.device(r.Ordinal()); err != nil {
				return 0, err
			}
			at = r.Ordinal()
		default:
			return 0, fmt.Errorf("hip: copy from %T to %T: %w", op.Src, op.Dst, errors.ErrUnsupported)
		}
	}
	return at, nil
}

// lostSource refuses to read a lost device from another one, which would wait for it and be lost as well.
func (c Copier) lostSource(op *ports.CopyOp, ordinal int) error {
	src, ok := op.Src.(ports.DeviceRegion)
	if !ok || src.Ordinal() == ordinal || !c.r.devices[src.Ordinal()].isLost() {
		return nil
	}
	c.r.devices[src.Ordinal()].stats.refused.Add(1)
	return fail("copy", src.Ordinal(), ErrLost)
}

// within says that [off, off+n) lies in [0, size), and no sum overflows.
func within(off, n, size uint64) bool { return off <= size && n <= size-off }

// begin queues a job, or fails its ops.
func (c Copier) begin(d *device, j *job) {
	if err := d.submit(j, c.queue); err != nil {
		d.stats.refused.Add(uint64(len(j.mine)))
		j.fail(fail("copy", d.ordinal, err))
		j.done <- struct{}{}
	}
}

// finish waits for a job. false: it was given up, and must not be used again.
func (c Copier) finish(d *device, j *job) bool {
	if !j.wait(d, c.r.cfg.Deadline) {
		j.fail(fail("copy", d.ordinal, ErrLost))
		return false
	}
	j.reset()
	return true
}

// fail gives every op that is not decided an error.
func (j *job) fail(err error) {
	for _, i := range j.mine[j.next:] {
		if j.errs[i] == nil {
			j.errs[i] = err
		}
	}
}
