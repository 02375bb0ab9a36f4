package app

import (
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// checkGet refuses a call that is malformed as a whole.
func checkGet(g *ports.GetBatch, out int) error {
	if len(g.Patterns) > 0 {
		return checkPatterns(g, out)
	}
	return errJoin(checkCounts(len(g.Keys), len(g.Ranges), out), checkColumn("End", len(g.End), len(g.Keys)), checkEnds(g.End, len(g.Ranges)))
}

// checkPatterns is checkGet of a call by patterns. No sum overflows: a call has fewer keys and ranges than that.
func checkPatterns(g *ports.GetBatch, out int) error {
	var keys, ranges int
	for i := range g.Patterns {
		p := &g.Patterns[i]
		if len(p.Ranges) > domain.MaxCallRanges || len(p.Rows) > domain.MaxCallKeys {
			return errJoin(checkCounts(len(p.Rows), len(p.Ranges), len(p.Rows)))
		}
		keys += len(p.Rows)
		ranges += len(p.Rows) * len(p.Ranges)
		if err := checkCounts(keys, ranges, keys); err != nil {
			return err
		}
	}
	if len(g.End)+len(g.Ranges) > 0 {
		return fmt.Errorf("%d patterns beside %d ranges: %w", len(g.Patterns), len(g.Ranges), domain.ErrInvalid)
	}
	return errJoin(checkColumn("rows of patterns", keys, len(g.Keys)), checkColumn("results", out, len(g.Keys)))
}

func checkWhole(w *ports.WholeBatch, out int) error {
	return errJoin(checkCounts(len(w.Keys), len(w.Targets), out), checkColumn("Targets", len(w.Targets), len(w.Keys)))
}

func checkPut(p *ports.PutBatch, out int) error {
	return errJoin(checkCounts(len(p.Keys), len(p.Ranges), out), checkColumn("Sizes", len(p.Sizes), len(p.Keys)),
		checkColumn("End", len(p.End), len(p.Keys)), checkEnds(p.End, len(p.Ranges)))
}

func checkCounts(keys, ranges, out int) error {
	switch {
	case keys > domain.MaxCallKeys:
		return &domain.LimitError{What: "keys of a call", Value: uint64(keys), Limit: domain.MaxCallKeys}
	case ranges > domain.MaxCallRanges:
		return &domain.LimitError{What: "ranges of a call", Value: uint64(ranges), Limit: domain.MaxCallRanges}
	}
	return checkColumn("results", out, keys)
}

func checkColumn(what string, n, keys int) error {
	if n != keys {
		return fmt.Errorf("%s: %d entries for %d keys: %w", what, n, keys, domain.ErrInvalid)
	}
	return nil
}

// malformed fails every key of a call.
func (n *Node) malformed(kind ports.BatchKind, out []ports.Result, err error) error {
	n.counters.keys(kind, ports.FromNowhere, ports.Invalid, len(out))
	return refuseAll(out, ports.Invalid, err)
}

func refuseAll(out []ports.Result, s ports.Status, err error) error {
	for i := range out {
		out[i] = ports.Result{Status: s, Err: err}
	}
	return err
}
