package porttest

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// crossings draw a request and a reply of one method and fail unless both ends see what the other sent. Replies are in order:
// a row's columns end where its neighbour's begin.
var crossings = map[string]func(ctx context.Context, r *rapid.T, p *peers){
	"Hello": crossHello, "Probe": crossProbe, "Resolve": crossResolve, "Complain": crossComplain,
	"Reserve": crossReserve, "Commit": crossCommit, "Abort": crossAbort, "Remove": crossRemove,
}

func crossHello(ctx context.Context, r *rapid.T, p *peers) {
	in := &ports.Hello{From: p.Asker, Protocol: drawUint32(r), Features: drawUint64(r), Namespaces: drawTexts(r), Offers: drawOffers(r)}
	reply := &ports.HelloReply{From: p.Owner, Protocol: drawUint32(r), Features: drawUint64(r), PageSize: drawUint64(r),
		Buffers: rapid.SliceOfN(rapid.Uint64(), 0, 5).Draw(r, "buffers"), Answers: drawOffers(r)}
	for _, reason := range drawTexts(r) {
		reply.Refused = append(reply.Refused, ports.Refusal{Kind: ports.TransportKind(reason), Reason: reason + "!"})
	}
	p.srv.Use(Answers{Hello: func(_ context.Context, _ ports.Peer, h *ports.Hello, out *ports.HelloReply) error {
		same(r, "namespaces", in.Namespaces, h.Namespaces)
		sameOffers(r, in.Offers, h.Offers)
		require.Equal(r, [3]any{in.From, in.Protocol, in.Features}, [3]any{h.From, h.Protocol, h.Features})
		*out = *reply
		return nil
	}})
	var got ports.HelloReply
	require.NoError(r, p.Resolver.Hello(ctx, p.Owner, in, &got))
	same(r, "buffers", reply.Buffers, got.Buffers)
	same(r, "refused", reply.Refused, got.Refused)
	sameOffers(r, reply.Answers, got.Answers)
	require.Equal(r, [4]any{reply.From, reply.Protocol, reply.Features, reply.PageSize}, [4]any{got.From, got.Protocol, got.Features, got.PageSize})
}

func crossProbe(ctx context.Context, r *rapid.T, p *peers) {
	keys := drawKeys(r)
	reply := ports.ProbeReply{Versions: drawVersions(r, len(keys))}
	for range keys {
		reply.Status = append(reply.Status, drawKeyStatus(r))
	}
	p.srv.Use(Answers{Probe: func(_ context.Context, _ ports.Peer, got []ports.Key, out *ports.ProbeReply) error {
		same(r, "keys", keys, got)
		*out = reply
		return nil
	}})
	var got ports.ProbeReply
	require.NoError(r, p.Resolver.Probe(ctx, p.Owner, keys, &got))
	same(r, "status", reply.Status, got.Status)
	same(r, "versions", reply.Versions, got.Versions)
}

func crossResolve(ctx context.Context, r *rapid.T, p *peers) {
	keys := drawKeys(r)
	in := &ports.ResolveRequest{Keys: keys, Versions: drawVersions(r, len(keys)), Held: drawGenerations(r, len(keys)),
		WantChecksums: rapid.Bool().Draw(r, "checksums")}
	reply := drawResolve(r, len(keys))
	p.srv.Use(Answers{Resolve: func(_ context.Context, _ ports.Peer, got *ports.ResolveRequest, out *ports.ResolveReply) error {
		same(r, "keys", in.Keys, got.Keys)
		same(r, "versions", in.Versions, got.Versions)
		same(r, "held", in.Held, got.Held)
		require.Equal(r, in.WantChecksums, got.WantChecksums)
		*out = *reply
		return nil
	}})
	got := &ports.ResolveReply{}
	require.NoError(r, p.Resolver.Resolve(ctx, p.Owner, in, got))
	require.True(r, sameResolve(reply, got), "sent %+v, got %+v", reply, got)
}

func crossComplain(ctx context.Context, r *rapid.T, p *peers) {
	held := drawGenerations(r, rapid.IntRange(0, 9).Draw(r, "rows"))
	p.srv.Use(Answers{Complain: func(_ context.Context, _ ports.Peer, got []domain.Generation) error {
		same(r, "held", held, got)
		return nil
	}})
	require.NoError(r, p.Resolver.Complain(ctx, p.Owner, held))
}

func crossReserve(ctx context.Context, r *rapid.T, p *peers) {
	keys := drawKeys(r)
	in := &ports.ReserveRequest{Via: ports.TransportKind(drawText(r)), Keys: keys, Versions: drawVersions(r, len(keys))}
	reply := &ports.ReserveReply{}
	for range keys {
		in.Sizes = append(in.Sizes, drawUint64(r))
		reply.Status = append(reply.Status, ports.ReserveStatus(rapid.IntRange(0, int(ports.ReserveRefused)).Draw(r, "status")))
		var token ports.GrantToken
		copy(token[:], rapid.SliceOfN(rapid.Byte(), len(token), len(token)).Draw(r, "token"))
		reply.Tokens = append(reply.Tokens, token)
		reply.EndNanos = append(reply.EndNanos, rapid.Int64().Draw(r, "end"))
		reply.Pages = append(reply.Pages, drawPages(r)...)
		reply.PageEnd = append(reply.PageEnd, uint32(len(reply.Pages)))
	}
	p.srv.Use(Answers{Reserve: func(_ context.Context, _ ports.Peer, got *ports.ReserveRequest, out *ports.ReserveReply) error {
		require.Equal(r, in.Via, got.Via)
		same(r, "keys", in.Keys, got.Keys)
		same(r, "versions", in.Versions, got.Versions)
		same(r, "sizes", in.Sizes, got.Sizes)
		*out = *reply
		return nil
	}})
	got := &ports.ReserveReply{}
	require.NoError(r, p.Writer.Reserve(ctx, p.Owner, in, got))
	require.True(r, sameReserve(reply, got), "sent %+v, got %+v", reply, got)
}

func crossCommit(ctx context.Context, r *rapid.T, p *peers) {
	keys := drawKeys(r)
	in := &ports.CommitRequest{Keys: keys, Versions: drawVersions(r, len(keys))}
	var reply []ports.CommitStatus
	for range keys {
		in.PutLens, in.Sums = drawSums(r, in.PutLens, in.Sums)
		in.LenEnd, in.SumEnd = append(in.LenEnd, uint32(len(in.PutLens))), append(in.SumEnd, uint32(len(in.Sums)))
		reply = append(reply, ports.CommitStatus(rapid.IntRange(0, int(ports.CommitRefused)).Draw(r, "status")))
	}
	p.srv.Use(Answers{Commit: func(_ context.Context, _ ports.Peer, got *ports.CommitRequest, out *[]ports.CommitStatus) error {
		same(r, "keys", in.Keys, got.Keys)
		same(r, "versions", in.Versions, got.Versions)
		same(r, "length ends", in.LenEnd, got.LenEnd)
		same(r, "lengths", in.PutLens, got.PutLens)
		same(r, "sum ends", in.SumEnd, got.SumEnd)
		same(r, "sums", in.Sums, got.Sums)
		*out = reply
		return nil
	}})
	var got []ports.CommitStatus
	require.NoError(r, p.Writer.Commit(ctx, p.Owner, in, &got))
	same(r, "status", reply, got)
}

func crossAbort(ctx context.Context, r *rapid.T, p *peers) {
	keys := drawKeys(r)
	versions, quiet := drawVersions(r, len(keys)), ports.Quiet(rapid.Bool().Draw(r, "quiet"))
	p.srv.Use(Answers{Abort: func(_ context.Context, _ ports.Peer, k []ports.Key, v []domain.Version, q ports.Quiet) error {
		same(r, "keys", keys, k)
		same(r, "versions", versions, v)
		require.Equal(r, quiet, q)
		return nil
	}})
	require.NoError(r, p.Writer.Abort(ctx, p.Owner, keys, versions, quiet))
}

func crossRemove(ctx context.Context, r *rapid.T, p *peers) {
	keys := drawKeys(r)
	var reply []ports.KeyStatus
	for range keys {
		reply = append(reply, drawKeyStatus(r))
	}
	p.srv.Use(Answers{Remove: func(_ context.Context, _ ports.Peer, got []ports.Key, out *[]ports.KeyStatus) error {
		same(r, "keys", keys, got)
		*out = reply
		return nil
	}})
	var got []ports.KeyStatus
	require.NoError(r, p.Writer.Remove(ctx, p.Owner, keys, &got))
	same(r, "status", reply, got)
}

// drawResolve draws rows that are here (with a layout), renewed (without one), or not here.
func drawResolve(r *rapid.T, rows int) *ports.ResolveReply {
	reply := &ports.ResolveReply{Versions: drawVersions(r, rows), Generations: drawGenerations(r, rows)}
	for range rows {
		status := drawKeyStatus(r)
		reply.Status = append(reply.Status, status)
		reply.Sizes = append(reply.Sizes, drawUint64(r))
		reply.LeaseNanos = append(reply.LeaseNanos, rapid.Int64().Draw(r, "lease"))
		if status == ports.KeyHere {
			reply.Pages = append(reply.Pages, drawPages(r)...)
			reply.PutLens, reply.Sums = drawSums(r, reply.PutLens, reply.Sums)
		}
		reply.PageEnd = append(reply.PageEnd, uint32(len(reply.Pages)))
		reply.LenEnd = append(reply.LenEnd, uint32(len(reply.PutLens)))
		reply.SumEnd = append(reply.SumEnd, uint32(len(reply.Sums)))
	}
	return reply
}

// drawSums appends the put-ranges of one row, and as many sums or none.
func drawSums(r *rapid.T, lens []uint64, sums []uint32) ([]uint64, []uint32) {
	some := rapid.Bool().Draw(r, "sums")
	for range rapid.IntRange(0, 4).Draw(r, "put-ranges") {
		lens = append(lens, drawUint64(r))
		if some {
			sums = append(sums, drawUint32(r))
		}
	}
	return lens, sums
}

// drawKeys draws names of any bytes: no key is text by contract.
func drawKeys(r *rapid.T) []ports.Key {
	return rapid.SliceOfN(rapid.Custom(func(r *rapid.T) ports.Key {
		name := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(r, "name")
		return ports.Key{Space: drawUint32(r), Name: string(name)}
	}), 0, 9).Draw(r, "keys")
}

func drawVersions(r *rapid.T, n int) []domain.Version {
	return rapid.SliceOfN(rapid.Custom(func(r *rapid.T) domain.Version {
		return domain.Version{Hi: drawUint64(r), Lo: drawUint64(r)}
	}), n, n).Draw(r, "versions")
}

func drawGenerations(r *rapid.T, n int) []domain.Generation {
	return rapid.SliceOfN(rapid.Custom(func(r *rapid.T) domain.Generation {
		return domain.Generation{Incarnation: domain.Incarnation(drawUint64(r)), Counter: drawUint64(r)}
	}), n, n).Draw(r, "generations")
}

func drawPages(r *rapid.T) []domain.PageRef {
	return rapid.SliceOfN(rapid.Custom(func(r *rapid.T) domain.PageRef {
		return domain.PageRef{Buffer: drawUint32(r), Page: drawUint32(r)}
	}), 0, 4).Draw(r, "pages")
}

func drawOffers(r *rapid.T) []ports.Offer {
	return rapid.SliceOfN(rapid.Custom(func(r *rapid.T) ports.Offer {
		return ports.Offer{Kind: ports.TransportKind(drawText(r)), Bytes: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(r, "bytes")}
	}), 0, 3).Draw(r, "offers")
}

func drawKeyStatus(r *rapid.T) ports.KeyStatus {
	return ports.KeyStatus(rapid.IntRange(0, int(ports.KeyRefused)).Draw(r, "status"))
}

func drawTexts(r *rapid.T) []string { return rapid.SliceOfN(rapid.String(), 0, 4).Draw(r, "texts") }
func drawText(r *rapid.T) string    { return rapid.String().Draw(r, "text") }
func drawUint32(r *rapid.T) uint32  { return rapid.Uint32().Draw(r, "uint32") }
func drawUint64(r *rapid.T) uint64  { return rapid.Uint64().Draw(r, "uint64") }

// same compares columns; an empty one is one like another.
func same[T comparable](r *rapid.T, what string, want, got []T) {
	require.True(r, slices.Equal(want, got), "%s: sent %v, got %v", what, want, got)
}

func sameOffers(r *rapid.T, want, got []ports.Offer) {
	require.True(r, slices.EqualFunc(want, got, func(a, b ports.Offer) bool {
		return a.Kind == b.Kind && slices.Equal(a.Bytes, b.Bytes)
	}), "offers: sent %v, got %v", want, got)
}

func sameResolve(a, b *ports.ResolveReply) bool {
	return slices.Equal(a.Status, b.Status) && slices.Equal(a.Versions, b.Versions) && slices.Equal(a.Generations, b.Generations) &&
		slices.Equal(a.Sizes, b.Sizes) && slices.Equal(a.LeaseNanos, b.LeaseNanos) &&
		slices.Equal(a.PageEnd, b.PageEnd) && slices.Equal(a.Pages, b.Pages) && slices.Equal(a.LenEnd, b.LenEnd) &&
		slices.Equal(a.PutLens, b.PutLens) && slices.Equal(a.SumEnd, b.SumEnd) && slices.Equal(a.Sums, b.Sums)
}

func sameReserve(a, b *ports.ReserveReply) bool {
	return slices.Equal(a.Status, b.Status) && slices.Equal(a.Tokens, b.Tokens) && slices.Equal(a.EndNanos, b.EndNanos) &&
		slices.Equal(a.PageEnd, b.PageEnd) && slices.Equal(a.Pages, b.Pages)
}
