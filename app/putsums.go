package app

import (
	"context"
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// putStep is how much of an object is copied before it is summed: it is in a cache by then. The number is arbitrary, below the
// second-level cache of a server's core and below what a copy streams past the caches.
const putStep = 512 << 10

// sumsPuts reports whether puts of this node make sums of what lies in those regions.
func (n *Node) sumsPuts(regions []ports.Region) bool { return !n.cfg.NoChecksums && allHost(regions) }

// copyAndSum copies the keys of a local put into their slots, step by step, and sums what was copied: the bytes as stored. errs is a
// place per key.
func (c *putCall) copyAndSum(errs []error) {
	var scratch putScratch
	for i := range c.keys {
		if k := &c.keys[i]; c.pendingKey(i) {
			k.summer = domain.NewSummer(c.putLens(k))
			errs[i] = c.copyRun(&scratch, k, domain.Run{Len: k.size}, c.n.regions, k.layout, 0)
		}
	}
}

// putScratch is columns that the steps of a put share.
type putScratch struct {
	copies []ports.CopyOp
	errs   []error
}

// copyRun copies a run of the object into dst, a layout over regions in which the run begins at at, and adds what was copied to the
// key's sums. The runs of a key come in order.
func (c *putCall) copyRun(s *putScratch, k *putKey, run domain.Run, regions []ports.Region, dst domain.Layout, at uint64) error {
	for run.Len > 0 {
		step := domain.Run{Off: run.Off, Len: min(run.Len, putStep)}
		s.copies = c.addCopies(s.copies[:0], k, step, regions, dst, at)
		for len(s.errs) < len(s.copies) {
			s.errs = append(s.errs, nil)
		}
		errs := s.errs[:len(s.copies)]
		c.n.p.Copier.Copy(c.ctx, s.copies, errs)
		err := firstError(errs)
		clear(errs)
		if err != nil {
			return err
		}
		addRun(&k.summer, regions, &dst, domain.Run{Off: at, Len: step.Len})
		run.Off, run.Len, at = run.Off+step.Len, run.Len-step.Len, at+step.Len
	}
	return nil
}

// addRun adds a run of a layout to sums.
func addRun(s *domain.Summer, regions []ports.Region, l *domain.Layout, r domain.Run) {
	mustPlan(domain.ForEachRangePageFragment(*l, r, func(f domain.Fragment) bool {
		s.Add(hostBytes(regions[f.Page.Buffer], f.Off, f.Len))
		return true
	}))
}

// verifyPut holds what a peer has written to the sums that it sent. The slot is pinned, and its writer is fenced.
func (n *Node) verifyPut(ctx context.Context, l *domain.Layout, lens []uint64, sums []uint32) error {
	if len(sums) == 0 || n.cfg.NoChecksums || !n.hostMedium {
		return nil
	}
	var err error
	domain.ForEachWhole(lens, []domain.Run{{Len: l.Size}}, func(i int, r domain.Run) bool {
		switch {
		case context.Cause(ctx) != nil:
			err = fmt.Errorf("verify a put: %w", context.Cause(ctx))
		case sumOf(n.regions, l, r) != sums[i]:
			n.counters.corrupt.Add(1)
			err = &corruptError{run: r}
		}
		return err == nil
	})
	return err
}
