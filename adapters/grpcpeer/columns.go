package grpcpeer

import (
	"bytes"
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// Columns that several messages share, to the wire and back. What comes from the wire is checked while it is turned: columns of one
// message are as long as each other, and counts add up. All of it wraps domain.ErrInvalid.

func checkRows(rows int) error {
	if rows > domain.MaxCallKeys {
		return &domain.LimitError{What: "rows of a call", Value: uint64(rows), Limit: domain.MaxCallKeys}
	}
	return nil
}

func checkColumn(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("column %s: %d entries, want %d: %w", what, got, want, domain.ErrInvalid)
	}
	return nil
}

// firstError is the first that is one.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func keysOut(keys []ports.Key) (*peerv1.Keys, error) {
	if err := checkRows(len(keys)); err != nil {
		return nil, err
	}
	total := 0
	for _, k := range keys {
		total += len(k.Name)
	}
	m := &peerv1.Keys{Space: make([]uint32, len(keys)), NameLen: make([]uint32, len(keys))}
	names := make([]byte, 0, total)
	for i, k := range keys {
		m.Space[i], m.NameLen[i] = k.Space, uint32(len(k.Name))
		names = append(names, k.Name...)
	}
	if total > 0 {
		m.Names = [][]byte{names}
	}
	return m, nil
}

// keysIn makes names that share one memory: who keeps a name for long clones it.
func keysIn(m *peerv1.Keys) ([]ports.Key, error) {
	space, lens := m.GetSpace(), m.GetNameLen()
	if err := firstError(checkRows(len(space)), checkColumn("name_len", len(lens), len(space))); err != nil {
		return nil, err
	}
	names := string(joined(m.GetNames()))
	keys := make([]ports.Key, len(space))
	for i, n := range lens {
		if uint64(n) > uint64(len(names)) {
			return nil, fmt.Errorf("names end in row %d of %d: %w", i, len(lens), domain.ErrInvalid)
		}
		keys[i] = ports.Key{Space: space[i], Name: names[:n]}
		names = names[n:]
	}
	if names != "" {
		return nil, fmt.Errorf("%d bytes after the last name: %w", len(names), domain.ErrInvalid)
	}
	return keys, nil
}

// joined is a blob that was cut.
func joined(parts [][]byte) []byte {
	if len(parts) == 1 {
		return parts[0]
	}
	return bytes.Join(parts, nil)
}

func versionsOut(versions []domain.Version) *peerv1.Versions {
	m := &peerv1.Versions{Hi: make([]uint64, len(versions)), Lo: make([]uint64, len(versions))}
	for i, v := range versions {
		m.Hi[i], m.Lo[i] = v.Hi, v.Lo
	}
	return m
}

// versionsIn appends to out.
func versionsIn(out []domain.Version, m *peerv1.Versions, rows int) ([]domain.Version, error) {
	hi, lo := m.GetHi(), m.GetLo()
	if err := firstError(checkColumn("versions.hi", len(hi), rows), checkColumn("versions.lo", len(lo), rows)); err != nil {
		return out, err
	}
	for i := range hi {
		out = append(out, domain.Version{Hi: hi[i], Lo: lo[i]})
	}
	return out, nil
}

func generationsOut(generations []domain.Generation) *peerv1.Generations {
	m := &peerv1.Generations{Incarnation: make([]uint64, len(generations)), Counter: make([]uint64, len(generations))}
	for i, g := range generations {
		m.Incarnation[i], m.Counter[i] = uint64(g.Incarnation), g.Counter
	}
	return m
}

// generationsIn appends to out.
func generationsIn(out []domain.Generation, m *peerv1.Generations, rows int) ([]domain.Generation, error) {
	inc, counter := m.GetIncarnation(), m.GetCounter()
	if err := firstError(checkColumn("generations.incarnation", len(inc), rows), checkColumn("generations.counter", len(counter), rows)); err != nil {
		return out, err
	}
	for i := range inc {
		out = append(out, domain.Generation{Incarnation: domain.Incarnation(inc[i]), Counter: counter[i]})
	}
	return out, nil
}

// countsOut turns the end of each row into its count: counts stay true when columns are cut and joined.
func countsOut(what string, ends []uint32, rows, entries int) ([]uint32, error) {
	if err := checkColumn(what, len(ends), rows); err != nil {
		return nil, err
	}
	counts, before := make([]uint32, rows), uint32(0)
	for i, end := range ends {
		if end < before {
			return nil, fmt.Errorf("column %s: row %d ends at %d, the one before at %d: %w", what, i, end, before, domain.ErrInvalid)
		}
		counts[i], before = end-before, end
	}
	return counts, checkColumn(what+", its entries", entries, int(before))
}

// countsIn appends the ends of rows to out.
func countsIn(what string, out, counts []uint32, rows, entries int) ([]uint32, error) {
	if err := checkColumn(what, len(counts), rows); err != nil {
		return out, err
	}
	end := uint64(0)
	for i, n := range counts {
		if end += uint64(n); end > uint64(entries) {
			return out, fmt.Errorf("column %s: row %d ends at %d, past %d entries: %w", what, i, end, entries, domain.ErrInvalid)
		}
		out = append(out, uint32(end))
	}
	return out, checkColumn(what+", its entries", entries, int(end))
}

func pagesOut(ends []uint32, pages []domain.PageRef, rows int) (*peerv1.Pages, error) {
	counts, err := countsOut("pages.count", ends, rows, len(pages))
	if err != nil {
		return nil, err
	}
	m := &peerv1.Pages{Count: counts, Buffer: make([]uint32, len(pages)), Page: make([]uint32, len(pages))}
	for i, p := range pages {
		m.Buffer[i], m.Page[i] = p.Buffer, p.Page
	}
	return m, nil
}

// pagesIn appends to both columns.
func pagesIn(ends []uint32, pages []domain.PageRef, m *peerv1.Pages, rows int) ([]uint32, []domain.PageRef, error) {
	buffer, page := m.GetBuffer(), m.GetPage()
	if err := checkColumn("pages.page", len(page), len(buffer)); err != nil {
		return ends, pages, err
	}
	ends, err := countsIn("pages.count", ends, m.GetCount(), rows, len(page))
	if err != nil {
		return ends, pages, err
	}
	for i := range page {
		pages = append(pages, domain.PageRef{Buffer: buffer[i], Page: page[i]})
	}
	return ends, pages, nil
}

// putRanges is the columns of how objects were written, as two messages of ports have them.
type putRanges struct {
	lenEnd []uint32
	lens   []uint64
	sumEnd []uint32
	sums   []uint32
}

func (p putRanges) out(rows int) (*peerv1.PutRanges, error) {
	lens, err := countsOut("put_ranges.len_count", p.lenEnd, rows, len(p.lens))
	if err != nil {
		return nil, err
	}
	sums, err := countsOut("put_ranges.sum_count", p.sumEnd, rows, len(p.sums))
	if err != nil {
		return nil, err
	}
	return &peerv1.PutRanges{LenCount: lens, Len: p.lens, SumCount: sums, Sum: p.sums}, nil
}

// in appends to p's columns.
func (p putRanges) in(m *peerv1.PutRanges, rows int) (putRanges, error) {
	var errLen, errSum error
	p.lenEnd, errLen = countsIn("put_ranges.len_count", p.lenEnd, m.GetLenCount(), rows, len(m.GetLen()))
	p.sumEnd, errSum = countsIn("put_ranges.sum_count", p.sumEnd, m.GetSumCount(), rows, len(m.GetSum()))
	p.lens, p.sums = append(p.lens, m.GetLen()...), append(p.sums, m.GetSum()...)
	return p, firstError(errLen, errSum)
}

func startOut(p ports.Peer) *peerv1.Start {
	return &peerv1.Start{Id: string(p.ID), Incarnation: uint64(p.Incarnation)}
}

func startIn(s *peerv1.Start) ports.Peer {
	return ports.Peer{ID: ports.PeerID(s.GetId()), Incarnation: domain.Incarnation(s.GetIncarnation())}
}

func offersOut(offers []ports.Offer) []*peerv1.Offer {
	var out []*peerv1.Offer
	for _, o := range offers {
		out = append(out, &peerv1.Offer{Kind: string(o.Kind), Bytes: o.Bytes})
	}
	return out
}

func offersIn(out []ports.Offer, offers []*peerv1.Offer) []ports.Offer {
	for _, o := range offers {
		out = append(out, ports.Offer{Kind: ports.TransportKind(o.GetKind()), Bytes: o.GetBytes()})
	}
	return out
}

// Statuses are counted from 0 in ports and from 1 on the wire, in the same order. One that is not known counts as refused, which is
// the last of each.

func statusOut[P ~uint8, W ~int32](status []P) []W {
	out := make([]W, len(status))
	for i, s := range status {
		out[i] = W(s) + 1
	}
	return out
}

func statusIn[P ~uint8, W ~int32](out []P, status []W, refused P) []P {
	for _, s := range status {
		if s < 1 || s > W(refused)+1 {
			s = W(refused) + 1
		}
		out = append(out, P(s-1))
	}
	return out
}
