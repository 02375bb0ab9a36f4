package grpcpeer

import (
	"fmt"
	"unicode/utf8"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// Each message of a call: what it is on the wire (Out), and what it says (In). An Out borrows the columns of its argument until the
// call has ended. An In checks all that it is given, and appends replies to columns that the caller emptied.

func textOut(what, text string) (string, error) {
	if !utf8.ValidString(text) {
		return "", fmt.Errorf("%s %q is not UTF-8: %w", what, text, domain.ErrInvalid)
	}
	return text, nil
}

func helloOut(ends *peerv1.Ends, h *ports.Hello) (*peerv1.HelloRequest, error) {
	m := &peerv1.HelloRequest{Ends: ends, Protocol: h.Protocol, Features: h.Features, Offers: offersOut(h.Offers)}
	for _, ns := range h.Namespaces {
		m.Namespaces = append(m.Namespaces, []byte(ns))
	}
	for _, o := range h.Offers {
		if _, err := textOut("transport", string(o.Kind)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func cutHello(m *peerv1.HelloRequest) func(c *cut, first bool) *peerv1.HelloRequest {
	return func(c *cut, first bool) *peerv1.HelloRequest {
		part := &peerv1.HelloRequest{Namespaces: takeWhole(c, &m.Namespaces)}
		if first {
			part.Ends, part.Protocol, part.Features, part.Offers = m.Ends, m.Protocol, m.Features, m.Offers
		}
		return part
	}
}

// helloIn takes the asker from the ends of the call, which were checked: there is no second place to name it in.
func helloIn(from ports.Peer, m *peerv1.HelloRequest) *ports.Hello {
	h := &ports.Hello{From: from, Protocol: m.GetProtocol(), Features: m.GetFeatures(), Offers: offersIn(nil, m.GetOffers())}
	for _, ns := range m.GetNamespaces() {
		h.Namespaces = append(h.Namespaces, string(ns))
	}
	return h
}

func helloReplyOut(r *ports.HelloReply) *peerv1.HelloReply {
	m := &peerv1.HelloReply{From: startOut(r.From), Protocol: r.Protocol, Features: r.Features, PageSize: r.PageSize,
		Buffers: r.Buffers, Answers: offersOut(r.Answers)}
	for _, f := range r.Refused {
		m.Refused = append(m.Refused, &peerv1.Refusal{Kind: string(f.Kind), Reason: printable(f.Reason)})
	}
	return m
}

func cutHelloReply(m *peerv1.HelloReply) func(c *cut, first bool) *peerv1.HelloReply {
	return func(c *cut, first bool) *peerv1.HelloReply {
		part := &peerv1.HelloReply{Buffers: take(c, varint64, &m.Buffers)}
		if first {
			part.From, part.Protocol, part.Features, part.PageSize = m.From, m.Protocol, m.Features, m.PageSize
			part.Answers, part.Refused = m.Answers, m.Refused
		}
		return part
	}
}

func helloReplyIn(m *peerv1.HelloReply, out *ports.HelloReply) {
	*out = ports.HelloReply{From: startIn(m.GetFrom()), Protocol: m.GetProtocol(), Features: m.GetFeatures(), PageSize: m.GetPageSize(),
		Buffers: append(out.Buffers[:0], m.GetBuffers()...), Answers: offersIn(out.Answers[:0], m.GetAnswers()), Refused: out.Refused[:0]}
	for _, f := range m.GetRefused() {
		out.Refused = append(out.Refused, ports.Refusal{Kind: ports.TransportKind(f.GetKind()), Reason: f.GetReason()})
	}
}

func probeOut(ends *peerv1.Ends, keys []ports.Key) (*peerv1.ProbeRequest, error) {
	k, err := keysOut(keys)
	return &peerv1.ProbeRequest{Ends: ends, Keys: k}, err
}

func cutProbe(m *peerv1.ProbeRequest) func(c *cut, first bool) *peerv1.ProbeRequest {
	return func(c *cut, first bool) *peerv1.ProbeRequest {
		part := &peerv1.ProbeRequest{Keys: takeKeys(c, m.Keys)}
		if first {
			part.Ends = m.Ends
		}
		return part
	}
}

func probeReplyOut(r *ports.ProbeReply) (*peerv1.ProbeReply, error) {
	m := &peerv1.ProbeReply{Status: statusOut[ports.KeyStatus, peerv1.KeyStatus](r.Status), Versions: versionsOut(r.Versions)}
	return m, checkColumn("versions", len(r.Versions), len(r.Status))
}

func cutProbeReply(m *peerv1.ProbeReply) func(c *cut, first bool) *peerv1.ProbeReply {
	return func(c *cut, _ bool) *peerv1.ProbeReply {
		return &peerv1.ProbeReply{Status: take(c, enum, &m.Status), Versions: takeVersions(c, m.Versions)}
	}
}

func probeReplyIn(m *peerv1.ProbeReply, out *ports.ProbeReply) (err error) {
	out.Status = statusIn(out.Status[:0], m.GetStatus(), ports.KeyRefused)
	out.Versions, err = versionsIn(out.Versions[:0], m.GetVersions(), len(out.Status))
	return firstError(checkRows(len(out.Status)), err)
}

func resolveOut(ends *peerv1.Ends, r *ports.ResolveRequest) (*peerv1.ResolveRequest, error) {
	k, err := keysOut(r.Keys)
	m := &peerv1.ResolveRequest{Ends: ends, Keys: k, Versions: versionsOut(r.Versions), Held: generationsOut(r.Held), WantChecksums: r.WantChecksums}
	return m, firstError(err, checkColumn("versions", len(r.Versions), len(r.Keys)), checkColumn("held", len(r.Held), len(r.Keys)))
}

func cutResolve(m *peerv1.ResolveRequest) func(c *cut, first bool) *peerv1.ResolveRequest {
	return func(c *cut, first bool) *peerv1.ResolveRequest {
		part := &peerv1.ResolveRequest{Keys: takeKeys(c, m.Keys), Versions: takeVersions(c, m.Versions), Held: takeGenerations(c, m.Held)}
		if first {
			part.Ends, part.WantChecksums = m.Ends, m.WantChecksums
		}
		return part
	}
}

func resolveIn(m *peerv1.ResolveRequest) (*ports.ResolveRequest, error) {
	keys, err := keysIn(m.GetKeys())
	if err != nil {
		return nil, err
	}
	r := &ports.ResolveRequest{Keys: keys, WantChecksums: m.GetWantChecksums()}
	var errVersions, errHeld error
	r.Versions, errVersions = versionsIn(nil, m.GetVersions(), len(keys))
	r.Held, errHeld = generationsIn(nil, m.GetHeld(), len(keys))
	return r, firstError(errVersions, errHeld)
}

func resolveReplyOut(r *ports.ResolveReply) (*peerv1.ResolveReply, error) {
	rows := len(r.Status)
	pages, errPages := pagesOut(r.PageEnd, r.Pages, rows)
	ranges, errRanges := putRanges{r.LenEnd, r.PutLens, r.SumEnd, r.Sums}.out(rows)
	m := &peerv1.ResolveReply{Status: statusOut[ports.KeyStatus, peerv1.KeyStatus](r.Status), Versions: versionsOut(r.Versions),
		Generations: generationsOut(r.Generations), Size: r.Sizes, LeaseNanos: r.LeaseNanos, Pages: pages, PutRanges: ranges}
	return m, firstError(errPages, errRanges, checkColumn("versions", len(r.Versions), rows), checkColumn("generations", len(r.Generations), rows),
		checkColumn("size", len(r.Sizes), rows), checkColumn("lease_nanos", len(r.LeaseNanos), rows))
}

func cutResolveReply(m *peerv1.ResolveReply) func(c *cut, first bool) *peerv1.ResolveReply {
	return func(c *cut, _ bool) *peerv1.ResolveReply {
		return &peerv1.ResolveReply{Status: take(c, enum, &m.Status), Versions: takeVersions(c, m.Versions),
			Generations: takeGenerations(c, m.Generations), Size: take(c, varint64, &m.Size), LeaseNanos: take(c, varint64, &m.LeaseNanos),
			Pages: takePages(c, m.Pages), PutRanges: takePutRanges(c, m.PutRanges)}
	}
}

func resolveReplyIn(m *peerv1.ResolveReply, out *ports.ResolveReply) error {
	out.Reset()
	rows := len(m.GetStatus())
	err := firstError(checkRows(rows), checkColumn("size", len(m.GetSize()), rows), checkColumn("lease_nanos", len(m.GetLeaseNanos()), rows))
	if err != nil {
		return err
	}
	out.Status = statusIn(out.Status, m.GetStatus(), ports.KeyRefused)
	out.Sizes, out.LeaseNanos = append(out.Sizes, m.GetSize()...), append(out.LeaseNanos, m.GetLeaseNanos()...)
	var errVersions, errGenerations, errPages error
	out.Versions, errVersions = versionsIn(out.Versions, m.GetVersions(), rows)
	out.Generations, errGenerations = generationsIn(out.Generations, m.GetGenerations(), rows)
	out.PageEnd, out.Pages, errPages = pagesIn(out.PageEnd, out.Pages, m.GetPages(), rows)
	ranges, errRanges := putRanges{out.LenEnd, out.PutLens, out.SumEnd, out.Sums}.in(m.GetPutRanges(), rows)
	out.LenEnd, out.PutLens, out.SumEnd, out.Sums = ranges.lenEnd, ranges.lens, ranges.sumEnd, ranges.sums
	return firstError(errVersions, errGenerations, errPages, errRanges)
}

func complainOut(ends *peerv1.Ends, held []domain.Generation) (*peerv1.ComplainRequest, error) {
	return &peerv1.ComplainRequest{Ends: ends, Held: generationsOut(held)}, checkRows(len(held))
}

func cutComplain(m *peerv1.ComplainRequest) func(c *cut, first bool) *peerv1.ComplainRequest {
	return func(c *cut, first bool) *peerv1.ComplainRequest {
		part := &peerv1.ComplainRequest{Held: takeGenerations(c, m.Held)}
		if first {
			part.Ends = m.Ends
		}
		return part
	}
}

func complainIn(m *peerv1.ComplainRequest) ([]domain.Generation, error) {
	rows := len(m.GetHeld().GetIncarnation())
	if err := checkRows(rows); err != nil {
		return nil, err
	}
	return generationsIn(nil, m.GetHeld(), rows)
}

func reserveOut(ends *peerv1.Ends, r *ports.ReserveRequest) (*peerv1.ReserveRequest, error) {
	via, errVia := textOut("transport", string(r.Via))
	k, err := keysOut(r.Keys)
	m := &peerv1.ReserveRequest{Ends: ends, Via: via, Keys: k, Versions: versionsOut(r.Versions), Size: r.Sizes}
	return m, firstError(errVia, err, checkColumn("versions", len(r.Versions), len(r.Keys)), checkColumn("size", len(r.Sizes), len(r.Keys)))
}

func cutReserve(m *peerv1.ReserveRequest) func(c *cut, first bool) *peerv1.ReserveRequest {
	return func(c *cut, first bool) *peerv1.ReserveRequest {
		part := &peerv1.ReserveRequest{Keys: takeKeys(c, m.Keys), Versions: takeVersions(c, m.Versions), Size: take(c, varint64, &m.Size)}
		if first {
			part.Ends, part.Via = m.Ends, m.Via
		}
		return part
	}
}

func reserveIn(m *peerv1.ReserveRequest) (*ports.ReserveRequest, error) {
	keys, err := keysIn(m.GetKeys())
	if err != nil {
		return nil, err
	}
	cloneNames(keys)
	r := &ports.ReserveRequest{Via: ports.TransportKind(m.GetVia()), Keys: keys, Sizes: m.GetSize()}
	var errVersions error
	r.Versions, errVersions = versionsIn(nil, m.GetVersions(), len(keys))
	return r, firstError(errVersions, checkColumn("size", len(r.Sizes), len(keys)))
}

func reserveReplyOut(r *ports.ReserveReply) (*peerv1.ReserveReply, error) {
	rows := len(r.Status)
	pages, errPages := pagesOut(r.PageEnd, r.Pages, rows)
	m := &peerv1.ReserveReply{Status: statusOut[ports.ReserveStatus, peerv1.ReserveStatus](r.Status), EndNanos: r.EndNanos, Pages: pages}
	if len(r.Tokens) > 0 {
		tokens := make([]byte, 0, len(r.Tokens)*len(ports.GrantToken{}))
		for i := range r.Tokens {
			tokens = append(tokens, r.Tokens[i][:]...)
		}
		m.Tokens = [][]byte{tokens}
	}
	return m, firstError(errPages, checkColumn("tokens", len(r.Tokens), rows), checkColumn("end_nanos", len(r.EndNanos), rows))
}

func cutReserveReply(m *peerv1.ReserveReply) func(c *cut, first bool) *peerv1.ReserveReply {
	return func(c *cut, _ bool) *peerv1.ReserveReply {
		return &peerv1.ReserveReply{Status: take(c, enum, &m.Status), Tokens: takeBlob(c, &m.Tokens),
			EndNanos: take(c, varint64, &m.EndNanos), Pages: takePages(c, m.Pages)}
	}
}

func reserveReplyIn(m *peerv1.ReserveReply, out *ports.ReserveReply) (err error) {
	out.Reset()
	rows, tokens := len(m.GetStatus()), joined(m.GetTokens())
	const each = len(ports.GrantToken{})
	err = firstError(checkRows(rows), checkColumn("tokens, in bytes", len(tokens), rows*each), checkColumn("end_nanos", len(m.GetEndNanos()), rows))
	if err != nil {
		return err
	}
	out.Status = statusIn(out.Status, m.GetStatus(), ports.ReserveRefused)
	for i := range rows {
		out.Tokens = append(out.Tokens, ports.GrantToken(tokens[i*each:]))
	}
	out.EndNanos = append(out.EndNanos, m.GetEndNanos()...)
	out.PageEnd, out.Pages, err = pagesIn(out.PageEnd, out.Pages, m.GetPages(), rows)
	return err
}

func commitOut(ends *peerv1.Ends, r *ports.CommitRequest) (*peerv1.CommitRequest, error) {
	k, err := keysOut(r.Keys)
	ranges, errRanges := putRanges{r.LenEnd, r.PutLens, r.SumEnd, r.Sums}.out(len(r.Keys))
	m := &peerv1.CommitRequest{Ends: ends, Keys: k, Versions: versionsOut(r.Versions), PutRanges: ranges}
	return m, firstError(err, errRanges, checkColumn("versions", len(r.Versions), len(r.Keys)))
}

func cutCommit(m *peerv1.CommitRequest) func(c *cut, first bool) *peerv1.CommitRequest {
	return func(c *cut, first bool) *peerv1.CommitRequest {
		part := &peerv1.CommitRequest{Keys: takeKeys(c, m.Keys), Versions: takeVersions(c, m.Versions), PutRanges: takePutRanges(c, m.PutRanges)}
		if first {
			part.Ends = m.Ends
		}
		return part
	}
}

func commitIn(m *peerv1.CommitRequest) (*ports.CommitRequest, error) {
	keys, err := keysIn(m.GetKeys())
	if err != nil {
		return nil, err
	}
	versions, errVersions := versionsIn(nil, m.GetVersions(), len(keys))
	ranges, errRanges := putRanges{}.in(m.GetPutRanges(), len(keys))
	return &ports.CommitRequest{Keys: keys, Versions: versions, LenEnd: ranges.lenEnd, PutLens: ranges.lens, SumEnd: ranges.sumEnd,
		Sums: ranges.sums}, firstError(errVersions, errRanges)
}

func commitReplyOut(status []ports.CommitStatus) *peerv1.CommitReply {
	return &peerv1.CommitReply{Status: statusOut[ports.CommitStatus, peerv1.CommitStatus](status)}
}

func cutCommitReply(m *peerv1.CommitReply) func(c *cut, first bool) *peerv1.CommitReply {
	return func(c *cut, _ bool) *peerv1.CommitReply {
		return &peerv1.CommitReply{Status: take(c, enum, &m.Status)}
	}
}

func commitReplyIn(m *peerv1.CommitReply, out *[]ports.CommitStatus) error {
	*out = statusIn((*out)[:0], m.GetStatus(), ports.CommitRefused)
	return checkRows(len(*out))
}

func abortOut(ends *peerv1.Ends, keys []ports.Key, versions []domain.Version, quiet ports.Quiet) (*peerv1.AbortRequest, error) {
	k, err := keysOut(keys)
	m := &peerv1.AbortRequest{Ends: ends, Keys: k, Versions: versionsOut(versions), Quiet: bool(quiet)}
	return m, firstError(err, checkColumn("versions", len(versions), len(keys)))
}

func cutAbort(m *peerv1.AbortRequest) func(c *cut, first bool) *peerv1.AbortRequest {
	return func(c *cut, first bool) *peerv1.AbortRequest {
		part := &peerv1.AbortRequest{Keys: takeKeys(c, m.Keys), Versions: takeVersions(c, m.Versions)}
		if first {
			part.Ends, part.Quiet = m.Ends, m.Quiet
		}
		return part
	}
}

func abortIn(m *peerv1.AbortRequest) ([]ports.Key, []domain.Version, error) {
	keys, err := keysIn(m.GetKeys())
	if err != nil {
		return nil, nil, err
	}
	versions, err := versionsIn(nil, m.GetVersions(), len(keys))
	return keys, versions, err
}

func removeOut(ends *peerv1.Ends, keys []ports.Key) (*peerv1.RemoveRequest, error) {
	k, err := keysOut(keys)
	return &peerv1.RemoveRequest{Ends: ends, Keys: k}, err
}

func cutRemove(m *peerv1.RemoveRequest) func(c *cut, first bool) *peerv1.RemoveRequest {
	return func(c *cut, first bool) *peerv1.RemoveRequest {
		part := &peerv1.RemoveRequest{Keys: takeKeys(c, m.Keys)}
		if first {
			part.Ends = m.Ends
		}
		return part
	}
}

func removeReplyOut(status []ports.KeyStatus) *peerv1.RemoveReply {
	return &peerv1.RemoveReply{Status: statusOut[ports.KeyStatus, peerv1.KeyStatus](status)}
}

func cutRemoveReply(m *peerv1.RemoveReply) func(c *cut, first bool) *peerv1.RemoveReply {
	return func(c *cut, _ bool) *peerv1.RemoveReply {
		return &peerv1.RemoveReply{Status: take(c, enum, &m.Status)}
	}
}

func removeReplyIn(m *peerv1.RemoveReply, out *[]ports.KeyStatus) error {
	*out = statusIn((*out)[:0], m.GetStatus(), ports.KeyRefused)
	return checkRows(len(*out))
}
