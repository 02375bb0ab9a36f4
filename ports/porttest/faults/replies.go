package faults

import (
	"math"

	"github.com/spanpool/spanpool/ports"
)

// shorten takes the last row of a reply away, columns and all; an empty reply, and one without rows, stays.
func shorten(reply any) {
	switch r := reply.(type) {
	case *ports.ResolveReply:
		shortenResolve(r)
	case *ports.ReserveReply:
		shortenReserve(r)
	case *ports.ProbeReply:
		r.Status, r.Versions = less(r.Status), less(r.Versions)
	case *ports.HelloReply:
		r.Answers = less(r.Answers)
	case *[]ports.CommitStatus:
		*r = less(*r)
	case *[]ports.KeyStatus:
		*r = less(*r)
	case *ports.Holders:
		r.End = less(r.End)
		r.Peers, r.Versions = r.Peers[:lastEnd(r.End)], r.Versions[:lastEnd(r.End)]
	case *[]ports.PeerID:
		*r = less(*r)
	}
}

func shortenResolve(r *ports.ResolveReply) {
	r.Status, r.Versions, r.Generations = less(r.Status), less(r.Versions), less(r.Generations)
	r.Sizes, r.LeaseNanos = less(r.Sizes), less(r.LeaseNanos)
	r.PageEnd, r.LenEnd, r.SumEnd = less(r.PageEnd), less(r.LenEnd), less(r.SumEnd)
	r.Pages, r.PutLens, r.Sums = r.Pages[:lastEnd(r.PageEnd)], r.PutLens[:lastEnd(r.LenEnd)], r.Sums[:lastEnd(r.SumEnd)]
}

func shortenReserve(r *ports.ReserveReply) {
	r.Status, r.Tokens, r.EndNanos = less(r.Status), less(r.Tokens), less(r.EndNanos)
	r.PageEnd = less(r.PageEnd)
	r.Pages = r.Pages[:lastEnd(r.PageEnd)]
}

func less[T any](column []T) []T { return column[:max(len(column)-1, 0)] }

func lastEnd(ends []uint32) uint32 {
	if len(ends) == 0 {
		return 0
	}
	return ends[len(ends)-1]
}

// Lie makes a reply into one that no honest peer sends. Its Edit is a Verdict's.
type Lie struct {
	Name string
	Edit func(reply any)
}

func lies[R any](tell []struct {
	name string
	tell func(*R)
}) []Lie {
	var out []Lie
	for _, l := range tell {
		out = append(out, Lie{Name: l.name, Edit: func(reply any) { l.tell(reply.(*R)) }})
	}
	return out
}

// ResolveLies are replies that a resolver must refuse as malformed: columns that contradict each other or the request, and
// layouts that do not fit. They change the last row, so that those before it look right. A lie about a version, or about which
// pages an object lies on, is none of them: nothing in the reply gives it away. The reply has rows with pages and put-ranges.
func ResolveLies() []Lie {
	last := func(r *ports.ResolveReply) int { return len(r.Status) - 1 }
	return lies([]struct {
		name string
		tell func(*ports.ResolveReply)
	}{
		{"no rows", func(r *ports.ResolveReply) { r.Reset() }},
		{"a row too few", shortenResolve},
		{"a row too many", func(r *ports.ResolveReply) {
			r.Status, r.Versions = append(r.Status, ports.KeyAbsent), append(r.Versions, r.Versions[0])
			r.Generations, r.Sizes = append(r.Generations, r.Generations[0]), append(r.Sizes, 0)
			r.LeaseNanos, r.PageEnd = append(r.LeaseNanos, 0), append(r.PageEnd, lastEnd(r.PageEnd))
			r.LenEnd, r.SumEnd = append(r.LenEnd, lastEnd(r.LenEnd)), append(r.SumEnd, lastEnd(r.SumEnd))
		}},
		{"a column too short: versions", func(r *ports.ResolveReply) { r.Versions = less(r.Versions) }},
		{"a column too short: generations", func(r *ports.ResolveReply) { r.Generations = less(r.Generations) }},
		{"a column too short: sizes", func(r *ports.ResolveReply) { r.Sizes = less(r.Sizes) }},
		{"a column too short: leases", func(r *ports.ResolveReply) { r.LeaseNanos = less(r.LeaseNanos) }},
		{"a column too short: page ends", func(r *ports.ResolveReply) { r.PageEnd = less(r.PageEnd) }},
		{"a column too short: pages", func(r *ports.ResolveReply) { r.Pages = less(r.Pages) }},
		{"a column too short: put lengths", func(r *ports.ResolveReply) { r.PutLens = less(r.PutLens) }},
		{"page ends go back", func(r *ports.ResolveReply) { r.PageEnd[0] = lastEnd(r.PageEnd) + 1 }},
		{"a page end past the pages", func(r *ports.ResolveReply) { r.PageEnd[last(r)] = math.MaxUint32 }},
		{"a put-range end past the lengths", func(r *ports.ResolveReply) { r.LenEnd[last(r)] = math.MaxUint32 }},
		{"a sum end past the sums", func(r *ports.ResolveReply) { r.SumEnd[last(r)] = math.MaxUint32 }},
		{"an unknown status", func(r *ports.ResolveReply) { r.Status[last(r)] = 200 }},
		{"no bytes", func(r *ports.ResolveReply) { r.Sizes[last(r)] = 0 }},
		{"a size of all bits", func(r *ports.ResolveReply) { r.Sizes[last(r)] = math.MaxUint64 }},
		{"a size past the pages", func(r *ports.ResolveReply) { r.Sizes[last(r)] += 1 << 40 }},
		{"a page too many", func(r *ports.ResolveReply) {
			r.Pages, r.PageEnd[last(r)] = append(r.Pages, r.Pages[len(r.Pages)-1]), r.PageEnd[last(r)]+1
		}},
		{"no such buffer", func(r *ports.ResolveReply) { r.Pages[len(r.Pages)-1].Buffer = math.MaxUint32 }},
		{"no such page", func(r *ports.ResolveReply) { r.Pages[len(r.Pages)-1].Page = math.MaxUint32 }},
		{"a lease that has ended", func(r *ports.ResolveReply) { r.LeaseNanos[last(r)] = -1 }},
		{"a generation of nothing", func(r *ports.ResolveReply) { r.Generations[last(r)].Counter = 0 }},
		{"a generation of another start", func(r *ports.ResolveReply) { r.Generations[last(r)].Incarnation++ }},
		{"put-ranges that do not tile", func(r *ports.ResolveReply) { r.PutLens[len(r.PutLens)-1]++ }},
		{"put-ranges that overflow", func(r *ports.ResolveReply) { r.PutLens[len(r.PutLens)-1] = math.MaxUint64 }},
	})
}

// ReserveLies are replies that a writer must refuse: believed, they make it write where nobody granted it anything, or read
// columns past their ends. The last row of the reply is a fresh reservation with pages.
func ReserveLies() []Lie {
	last := func(r *ports.ReserveReply) int { return len(r.Status) - 1 }
	return lies([]struct {
		name string
		tell func(*ports.ReserveReply)
	}{
		{"no rows", func(r *ports.ReserveReply) { r.Reset() }},
		{"a row too few", shortenReserve},
		{"a row too many", func(r *ports.ReserveReply) {
			r.Status, r.Tokens = append(r.Status, ports.ReserveBusy), append(r.Tokens, ports.GrantToken{})
			r.EndNanos, r.PageEnd = append(r.EndNanos, 0), append(r.PageEnd, lastEnd(r.PageEnd))
		}},
		{"a column too short: tokens", func(r *ports.ReserveReply) { r.Tokens = less(r.Tokens) }},
		{"a column too short: times", func(r *ports.ReserveReply) { r.EndNanos = less(r.EndNanos) }},
		{"a column too short: page ends", func(r *ports.ReserveReply) { r.PageEnd = less(r.PageEnd) }},
		{"a column too short: pages", func(r *ports.ReserveReply) { r.Pages = less(r.Pages) }},
		{"page ends go back", func(r *ports.ReserveReply) { r.PageEnd[0] = lastEnd(r.PageEnd) + 1 }},
		{"a page end past the pages", func(r *ports.ReserveReply) { r.PageEnd[last(r)] = math.MaxUint32 }},
		{"an unknown status", func(r *ports.ReserveReply) { r.Status[last(r)] = 200 }},
		{"a page too many", func(r *ports.ReserveReply) {
			r.Pages, r.PageEnd[last(r)] = append(r.Pages, r.Pages[len(r.Pages)-1]), r.PageEnd[last(r)]+1
		}},
		{"no such buffer", func(r *ports.ReserveReply) { r.Pages[len(r.Pages)-1].Buffer = math.MaxUint32 }},
		{"no such page", func(r *ports.ReserveReply) { r.Pages[len(r.Pages)-1].Page = math.MaxUint32 }},
		{"a reservation that has ended", func(r *ports.ReserveReply) { r.EndNanos[last(r)] = -1 }},
	})
}
