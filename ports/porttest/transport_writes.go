package porttest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

var transportWriteCases = []transportCase{
	{name: "WritesLandWhereTheySay", claim: writesLandWhereTheySay},
	{name: "WritesStayOnGrantedPages", claim: writesStayOnGrantedPages},
	{name: "AWriteOutOfBoundsMovesNothing", claim: aWriteOutOfBoundsMovesNothing},
	{name: "AWriteNeedsAGrantOfItsWriter", claim: aWriteNeedsAGrantOfItsWriter},
	{name: "GrantsOfAnEarlierStartAreRefused", claim: grantsOfAnEarlierStartAreRefused},
	{name: "GrantCopiesItsPages", claim: grantCopiesItsPages},
	{name: "GrantRefusesPagesThatAreNotThere", claim: grantRefusesPagesThatAreNotThere},
	{name: "NothingLandsAfterRevoke", claim: nothingLandsAfterRevoke},
	{name: "RevokeTwiceAndOfTheUnknown", claim: revokeTwiceAndOfTheUnknown},
	{name: "DropRevokes", claim: dropRevokes},
	{name: "ARestartOfTheWriterRevokes", claim: aRestartOfTheWriterRevokes},
	{name: "WritesAreCounted", claim: writesAreCounted},
	{name: "NothingLandsAfterTheOwnersClose", claim: nothingLandsAfterTheOwnersClose},
}

// What writers write: content of another key than the buffers'.
const writtenKey = 0xbeef

// source is memory of the asker's with content of writtenKey.
func (x *exchange) source(t testing.TB, bytes int) ports.HostRegion {
	r := x.local(t, bytes)
	content.Fill(r.Bytes(), writtenKey, 0)
	return r
}

func (x *exchange) grant(t testing.TB, writer *TransportEnd, pages ...domain.PageRef) (ports.GrantID, ports.GrantToken) {
	t.Helper()
	id, token, err := x.Owner.Transport.Grant(writer.Self, exchangePage, pages)
	require.NoError(t, err)
	return id, token
}

func (x *exchange) writes(token ports.GrantToken, ops ...[]ports.Segment) *ports.Batch {
	return x.batch(ports.Write, ports.PurposePut, token, ops...)
}

// onPage names n bytes at an offset of a page.
func onPage(p domain.PageRef, off uint64, local ports.Region, localOff, n uint64) ports.Segment {
	return piece(p.Buffer, uint64(p.Page)*exchangePage+off, local, localOff, n)
}

// written fails unless these pieces hold what the source had, and all else what it had before.
func (x *exchange) written(t testing.TB, segs ...ports.Segment) {
	t.Helper()
	for _, s := range segs {
		b := x.mem[s.Remote].Bytes()[s.RemoteOff:][:s.Len]
		require.Equal(t, -1, content.Check(b, writtenKey, s.LocalOff), "first wrong byte at offset %d of buffer %d", s.RemoteOff, s.Remote)
	}
	x.intact(t, segs...)
}

func writesLandWhereTheySay(t *testing.T, x *exchange) {
	l, src := x.link(t), x.source(t, 64<<10)
	pages := []domain.PageRef{{Buffer: 0, Page: 3}, {Buffer: 1, Page: bufferPages - 1}, {Buffer: 0, Page: 4}, {Buffer: 0, Page: 9}}
	_, token := x.grant(t, x.Asker, pages...)
	segs := []ports.Segment{
		onPage(pages[1], exchangePage-1, src, 40_000, 1),  // the last byte of a buffer
		onPage(pages[0], 100, src, 7, 2*exchangePage-100), // two pages that follow each other
		onPage(pages[3], 0, src, 20_000, 509),
		onPage(pages[3], 1024, src, 30_001, 1728),
	}
	noErrors(t, x.submit(t, l, x.writes(token, segs[:2], segs[2:])))
	x.written(t, segs...)
	require.Equal(t, -1, content.Check(src.Bytes(), writtenKey, 0), "the source changed")
}

func writesStayOnGrantedPages(t *testing.T, x *exchange) {
	l, src := x.link(t), x.source(t, 64<<10)
	mine, next := domain.PageRef{Buffer: 0, Page: 10}, domain.PageRef{Buffer: 0, Page: 11}
	_, token := x.grant(t, x.Asker, mine)
	x.grant(t, x.Asker, next) // a grant of the same writer, but not this token's
	x.grant(t, x.Other, domain.PageRef{Buffer: 0, Page: 9})
	for name, s := range map[string]ports.Segment{
		"the page behind":          onPage(next, 0, src, 0, 8),
		"into the page behind":     onPage(mine, exchangePage-4, src, 0, 8),
		"from the page before":     piece(0, 10*exchangePage-4, src, 0, 8),
		"the same page elsewhere":  piece(1, 10*exchangePage, src, 0, 8),
		"over the page and beyond": piece(0, 9*exchangePage, src, 0, 3*exchangePage),
	} {
		t.Run(name, func(t *testing.T) {
			errs := x.submit(t, l, x.writes(token, []ports.Segment{s}))
			require.ErrorIs(t, errs[0], ports.ErrBounds)
			x.intact(t, onPage(mine, 0, nil, 0, exchangePage)) // on its own page it may have begun
			x.refill()
		})
	}
	good := onPage(mine, 0, src, 0, exchangePage)
	noErrors(t, x.submit(t, l, x.writes(token, []ports.Segment{good})))
	x.written(t, good)
}

func aWriteOutOfBoundsMovesNothing(t *testing.T, x *exchange) {
	l, src := x.link(t), x.source(t, 4096)
	var all []domain.PageRef
	for i := range uint32(bufferPages) {
		all = append(all, domain.PageRef{Buffer: 0, Page: i}, domain.PageRef{Buffer: 1, Page: i})
	}
	_, token := x.grant(t, x.Asker, all...)
	for name, s := range outsides(src) {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, x.submit(t, l, x.writes(token, []ports.Segment{s}))[0], ports.ErrBounds)
			x.intact(t)
		})
	}
}

func aWriteNeedsAGrantOfItsWriter(t *testing.T, x *exchange) {
	l, src := x.link(t), x.source(t, 4096)
	page := domain.PageRef{Buffer: 0, Page: 5}
	_, token := x.grant(t, x.Asker, page)
	_, others := x.grant(t, x.Other, page)
	anotherStart := *x.Asker
	anotherStart.Self.Incarnation++
	_, anothers := x.grant(t, &anotherStart, page)
	flipped := token
	flipped[17] ^= 1
	seg := []ports.Segment{onPage(page, 0, src, 0, 100)}
	for name, bad := range map[string]ports.GrantToken{
		"none": {}, "another node's": others, "another start's": anothers, "one bit off": flipped,
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, x.submit(t, l, x.writes(bad, seg))[0], ports.ErrRevoked)
			x.intact(t)
		})
	}
	mixed := x.writes(token, seg, seg)
	mixed.Ops[0].Grant = flipped
	errs := x.submit(t, l, mixed)
	require.ErrorIs(t, errs[0], ports.ErrRevoked)
	require.NoError(t, errs[1])
	x.written(t, seg...)
}

func grantsOfAnEarlierStartAreRefused(t *testing.T, x *exchange) {
	src := x.source(t, 4096)
	page := domain.PageRef{Buffer: 1, Page: 2}
	_, token := x.grant(t, x.Asker, page)
	x.Restart(t, x.Owner)
	x.expose(t, x.Owner)
	l := x.link(t)
	seg := []ports.Segment{onPage(page, 0, src, 0, 100)}
	require.ErrorIs(t, x.submit(t, l, x.writes(token, seg))[0], ports.ErrRevoked)
	x.grant(t, x.Asker, page) // it likely has the number of the old one
	require.ErrorIs(t, x.submit(t, l, x.writes(token, seg))[0], ports.ErrRevoked)
	x.intact(t)
}

func grantCopiesItsPages(t *testing.T, x *exchange) {
	l, src := x.link(t), x.source(t, 4096)
	pages := []domain.PageRef{{Buffer: 0, Page: 1}}
	_, token := x.grant(t, x.Asker, pages...)
	id, again, err := x.Owner.Transport.Grant(x.Asker.Self, exchangePage, pages)
	require.NoError(t, err)
	require.NotZero(t, id)
	require.NotEqual(t, token, again, "a token names one grant")
	pages[0].Page = 2
	for _, token := range []ports.GrantToken{token, again} {
		errs := x.submit(t, l, x.writes(token, []ports.Segment{piece(0, exchangePage, src, 0, 8)}, []ports.Segment{piece(0, 2*exchangePage, src, 0, 8)}))
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], ports.ErrBounds)
	}
	x.written(t, piece(0, exchangePage, src, 0, 8))
}

func grantRefusesPagesThatAreNotThere(t *testing.T, x *exchange) {
	for name, pages := range map[string][]domain.PageRef{
		"past the end":   {{Buffer: 0, Page: bufferPages}},
		"page 2^32-1":    {{Buffer: 0, Page: 0}, {Buffer: 1, Page: 1<<32 - 1}},
		"no such buffer": {{Buffer: 2, Page: 0}},
	} {
		_, _, err := x.Owner.Transport.Grant(x.Asker.Self, exchangePage, pages)
		require.ErrorIs(t, err, ports.ErrBounds, name)
	}
	for _, size := range []uint64{0, 1 << 63, 1<<64 - 1} {
		_, _, err := x.Owner.Transport.Grant(x.Asker.Self, size, []domain.PageRef{{Buffer: 0, Page: 1}})
		require.Error(t, err, "page size %d", size)
	}
}

// nothingLandsAfterRevoke has a writer that never stops: as soon as Revoke returned the pages get other bytes, which must stay
// while the writer goes on.
func nothingLandsAfterRevoke(t *testing.T, x *exchange) {
	const first, pages = 8, 48
	l, src := x.link(t), x.source(t, pages*exchangePage)
	refs := make([]domain.PageRef, pages)
	for i := range refs {
		refs[i] = domain.PageRef{Buffer: 0, Page: first + uint32(i)}
	}
	for range 25 {
		id, token := x.grant(t, x.Asker, refs...)
		w := startHammer(t, x, l, token, piece(0, first*exchangePage, src, 0, pages*exchangePage))
		w.awaitWrites(t)
		require.NoError(t, x.Owner.Transport.Revoke(t.Context(), id, false))
		x.refill()
		w.stopAfterRefusal(t)
		x.intact(t)
	}
	require.NotZero(t, l.Counts().Bytes[ports.PurposePut])
}

// hammer submits the same write again and again, several at once.
type hammer struct {
	wg      sync.WaitGroup
	written atomic.Int64
	refused chan struct{} // closed at the first refusal, by run
	stop    atomic.Bool
}

func startHammer(t testing.TB, x *exchange, l ports.Link, token ports.GrantToken, s ports.Segment) *hammer {
	w := &hammer{refused: make(chan struct{})}
	w.wg.Go(func() {
		refused := false
		for !refused || !w.stop.Load() {
			before := refused // ops of one batch have no order among them
			for _, err := range x.submit(noFail{t}, l, x.writes(token, []ports.Segment{s}, []ports.Segment{s}, []ports.Segment{s})) {
				switch {
				case err == nil && before:
					t.Errorf("a write succeeded after one was refused")
				case err == nil:
					w.written.Add(1)
				case !refused:
					errorIsOneOf(noFail{t}, err, ports.ErrRevoked)
					refused = true
					close(w.refused)
				}
			}
		}
	})
	return w
}

func (w *hammer) awaitWrites(t testing.TB) {
	require.Eventually(t, func() bool { return w.written.Load() > 2 }, patience, 1)
}

func (w *hammer) stopAfterRefusal(t testing.TB) {
	closedSoon(t, w.refused, "the writer was never refused")
	w.stop.Store(true)
	w.wg.Wait()
}

func revokeTwiceAndOfTheUnknown(t *testing.T, x *exchange) {
	l, src := x.link(t), x.source(t, 4096)
	page, other := domain.PageRef{Buffer: 0, Page: 1}, domain.PageRef{Buffer: 0, Page: 2}
	id, token := x.grant(t, x.Asker, page)
	_, kept := x.grant(t, x.Asker, other)
	require.NoError(t, x.Owner.Transport.Revoke(t.Context(), id, true))
	require.NoError(t, x.Owner.Transport.Revoke(t.Context(), id, false), "twice")
	errorIsOneOf(t, x.Owner.Transport.Revoke(t.Context(), id+1000, false), nil, ports.ErrNotFound)
	errorIsOneOf(t, x.Owner.Transport.Revoke(t.Context(), 0, false), nil, ports.ErrNotFound)
	require.ErrorIs(t, x.submit(t, l, x.writes(token, []ports.Segment{onPage(page, 0, src, 0, 8)}))[0], ports.ErrRevoked)
	good := onPage(other, 0, src, 0, 8)
	noErrors(t, x.submit(t, l, x.writes(kept, []ports.Segment{good})))
	x.written(t, good)
}

func dropRevokes(t *testing.T, x *exchange) {
	src := x.source(t, 4096)
	page := domain.PageRef{Buffer: 0, Page: 1}
	_, token := x.grant(t, x.Asker, page)
	_, kept := x.grant(t, x.Other, domain.PageRef{Buffer: 0, Page: 2})
	x.link(t)
	x.Owner.Transport.Drop(x.Asker.Self)
	require.ErrorIs(t, x.submit(t, x.link(t), x.writes(token, []ports.Segment{onPage(page, 0, src, 0, 8)}))[0], ports.ErrRevoked)
	good := piece(0, 2*exchangePage, src, 0, 8)
	noErrors(t, x.submit(t, x.dial(t, x.Other, x.Owner), x.writes(kept, []ports.Segment{good})))
	x.written(t, good)
}

func aRestartOfTheWriterRevokes(t *testing.T, x *exchange) {
	page := domain.PageRef{Buffer: 0, Page: 1}
	x.link(t)
	id, token := x.grant(t, x.Asker, page)
	x.Restart(t, x.Asker)
	l, src := x.link(t), x.source(t, 4096)
	require.ErrorIs(t, x.submit(t, l, x.writes(token, []ports.Segment{onPage(page, 0, src, 0, 8)}))[0], ports.ErrRevoked)
	x.intact(t)
	require.NoError(t, x.Owner.Transport.Revoke(t.Context(), id, false))
}

func writesAreCounted(t *testing.T, x *exchange) {
	l, src := x.link(t), x.source(t, 8192)
	page := domain.PageRef{Buffer: 0, Page: 1}
	id, token := x.grant(t, x.Asker, page)
	good := onPage(page, 0, src, 0, 1728)
	noErrors(t, x.submit(t, l, x.writes(token, []ports.Segment{good}, []ports.Segment{good})))
	require.NoError(t, x.Owner.Transport.Revoke(t.Context(), id, true))
	require.Error(t, x.submit(t, l, x.writes(token, []ports.Segment{good}))[0])
	want := ports.LinkStats{}
	want.Bytes[ports.PurposePut] = 2 * 1728
	require.Equal(t, want, l.Counts())
}

func nothingLandsAfterTheOwnersClose(t *testing.T, x *exchange) {
	const pages = 32
	l, src := x.link(t), x.source(t, pages*exchangePage)
	refs := make([]domain.PageRef, pages)
	for i := range refs {
		refs[i] = domain.PageRef{Buffer: 1, Page: uint32(i)}
	}
	_, token := x.grant(t, x.Asker, refs...)
	var all [][]ports.Segment
	for range loadOps {
		all = append(all, []ports.Segment{piece(1, 0, src, 0, pages*exchangePage)})
	}
	q := ports.NewCompletions()
	require.NoError(t, l.Submit(x.writes(token, all...), q))
	require.NoError(t, x.Owner.Transport.Close())
	x.refill()
	for _, c := range takeAll(t, q, loadOps) {
		errorIsOneOf(t, c.Err, nil, ports.ErrReset, ports.ErrRevoked)
	}
	x.intact(t)
}

// writesAreRefusedWhereCapsSaySo: by the owner, which grants nothing, and by the link; and a read beside is served.
func writesAreRefusedWhereCapsSaySo(t *testing.T, x *exchange) {
	page := domain.PageRef{Buffer: 0, Page: 1}
	id, token, err := x.Owner.Transport.Grant(x.Asker.Self, exchangePage, []domain.PageRef{page})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	errorIsOneOf(t, x.Owner.Transport.Revoke(t.Context(), id, true), nil, ports.ErrNotFound)
	l, src, dst := x.link(t), x.source(t, exchangePage), x.local(t, 64)
	good := piece(0, 0, dst, 0, 32)
	b := x.reads([]ports.Segment{onPage(page, 0, src, 0, exchangePage)}, []ports.Segment{good})
	b.Ops[0].Dir, b.Ops[0].Grant = ports.Write, token
	errs := x.submit(t, l, b)
	require.ErrorIs(t, errs[0], errors.ErrUnsupported)
	require.NoError(t, errs[1])
	readRight(t, dst, good)
	x.intact(t)
	want := ports.LinkStats{}
	want.Bytes[ports.PurposeGet] = good.Len
	require.Equal(t, want, l.Counts())
}
