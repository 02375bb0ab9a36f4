package porttest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

var transportLossyCases = []transportCase{
	{name: "ReadsOverALossyWayAreRightOrFail", claim: readsOverALossyWayAreRightOrFail, lacks: (*exchange).lacksCuts},
	{name: "WritesOverALossyWayLandWhereTheySayOrFail", claim: writesOverALossyWayLandWhereTheySayOrFail, lacks: (*exchange).lacksCutsOrWrites},
}

func (x *exchange) lacksCuts() string {
	if x.Cuts == nil {
		return "the harness has no Cuts"
	}
	return ""
}

func (x *exchange) lacksCutsOrWrites() string {
	if why := x.lacksWrites(); why != "" {
		return why
	}
	return x.lacksCuts()
}

// lossyLinks makes links over a way that cuts, one after the other, and then one over the way as it was.
func (x *exchange) lossyLinks(t *testing.T, use func(l ports.Link)) {
	const links = 8
	x.Cuts(t, true)
	for range links {
		l, err := x.tryDial(t, x.Asker, x.Owner)
		if err != nil {
			errorIsOneOf(t, err, ports.ErrPeer, ports.ErrTimeout, ports.ErrReset)
			continue
		}
		use(l)
		require.NoError(t, l.Close())
	}
	x.Cuts(t, false)
	x.roundTrip(t)
}

// lossySubmit is submit over a link that may have ended. Every op completes, once, well or with an error that says so.
func lossySubmit(t *testing.T, l ports.Link, b *ports.Batch) (done []ports.Completion, good int) {
	t.Helper()
	q := ports.NewCompletions()
	if err := l.Submit(b, q); err != nil {
		errorIsOneOf(t, err, ports.ErrReset, ports.ErrClosed)
		return nil, 0
	}
	done = takeAll(t, q, len(b.Ops))
	for _, c := range done {
		errorIsOneOf(t, c.Err, nil, ports.ErrReset, ports.ErrTimeout)
		if c.Err == nil {
			good++
		}
	}
	return done, good
}

func readsOverALossyWayAreRightOrFail(t *testing.T, x *exchange) {
	var quiet []func()
	all, good := 0, 0
	x.lossyLinks(t, func(l ports.Link) {
		for range 4 {
			work := newLoad(t, x)
			done, fine := lossySubmit(t, l, work.batch)
			quiet = append(quiet, work.check(t, done, ports.ErrReset, ports.ErrTimeout))
			if all, good = all+loadOps, good+fine; fine < loadOps {
				return
			}
		}
	})
	for _, landedNothing := range quiet {
		landedNothing()
	}
	require.Greater(t, all, good, "nothing failed")
	require.NotZero(t, good, "everything failed")
}

// writesOverALossyWayLandWhereTheySayOrFail has the pages be another key's again as soon as they are revoked.
func writesOverALossyWayLandWhereTheySayOrFail(t *testing.T, x *exchange) {
	const pages, rounds = 48, 40
	src := x.source(t, pages*exchangePage)
	var granted []domain.PageRef
	var ops [][]ports.Segment
	var segs []ports.Segment
	for i := range uint32(pages) {
		granted = append(granted, domain.PageRef{Buffer: i % 2, Page: i})
		segs = append(segs, onPage(granted[i], 0, src, uint64(i)*exchangePage, exchangePage))
		ops = append(ops, segs[i:])
		ops[i] = ops[i][:1]
	}
	all, good := 0, 0
	x.lossyLinks(t, func(l ports.Link) {
		id, token := x.grant(t, x.Asker, granted...)
		for range rounds {
			done, fine := lossySubmit(t, l, x.writes(token, ops...))
			for _, c := range done {
				if s := segs[c.Tag]; c.Err == nil {
					b := x.mem[s.Remote].Bytes()[s.RemoteOff:][:s.Len]
					require.Equal(t, -1, content.Check(b, writtenKey, s.LocalOff), "op %d is done, and its page is another's", c.Tag)
				}
			}
			all, good = all+pages, good+fine
			if fine < pages {
				break
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, x.Owner.Transport.Revoke(ctx, id, false))
		x.intact(t, segs...) // what failed may have landed until now
		x.refill()
	})
	x.intact(t)
	require.Greater(t, all, good, "nothing failed")
	require.NotZero(t, good, "everything failed")
}
