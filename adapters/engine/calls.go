package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// calls is the service.
type calls struct {
	enginev1.UnimplementedEngineServer
	Config
	bytes            budget // of objects in messages
	count            *counters
	clients          *clients
	path             string // of the socket
	descriptorSocket string
	stopped          context.Context // ends when the server begins to stop
}

// budget bounds the bytes of objects that calls hold.
type budget struct {
	limit uint64
	mu    struct {
		sync.Mutex
		used uint64
	}
}

// take returns StatusNone, or why there are no n bytes: Refused for ever, or Busy for now.
func (b *budget) take(n uint64) (ports.Status, error) {
	if n > b.limit {
		return ports.Refused, &domain.LimitError{What: "bytes of a call", Value: n, Limit: b.limit}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.used+n > b.limit {
		return ports.Busy, fmt.Errorf("%d bytes are in flight, limit %d: %w", b.mu.used, b.limit, ports.ErrBusy)
	}
	b.mu.used += n
	return ports.StatusNone, nil
}

func (b *budget) give(n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used -= n
}

// Put takes an object in and stores it.
func (s *calls) Put(stream grpc.ClientStreamingServer[enginev1.PutRequest, enginev1.PutReply]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h := first.GetHeader()
	if h == nil {
		return status.Error(codes.InvalidArgument, "put: the first message has no header")
	}
	if h.GetSize() == 0 || h.GetSize() > domain.MaxObjectSize {
		return stream.SendAndClose(&enginev1.PutReply{Result: resultOf(ports.Result{Status: ports.Invalid,
			Err: &domain.LimitError{What: "object bytes (1 or more)", Value: h.GetSize(), Limit: domain.MaxObjectSize}})})
	}
	ranges, total, err := layOut(h.GetRanges(), h.GetSize())
	if err != nil {
		return err
	}
	if total != h.GetSize() {
		return stream.SendAndClose(&enginev1.PutReply{Result: resultOf(ports.Result{Status: ports.Invalid,
			Err: fmt.Errorf("ranges of %d bytes for an object of %d: %w", total, h.GetSize(), domain.ErrInvalid)})})
	}
	refused, err := s.bytes.take(total)
	if err != nil {
		s.count.overBytes.Add(1)
		return stream.SendAndClose(&enginev1.PutReply{Result: resultOf(ports.Result{Status: refused, Err: err})})
	}
	defer s.bytes.give(total)
	b := make([]byte, total)
	if err := receive(stream, first.GetData(), b); err != nil {
		return err
	}
	out := make([]ports.Result, 1)
	p := &ports.PutBatch{Namespace: string(h.GetNamespace()), Keys: []string{string(h.GetKey())}, Sizes: []uint64{total},
		End: []uint32{uint32(len(ranges))}, Ranges: ranges, Regions: []ports.Memory{{Region: ports.HostRegionOf(b)}}, To: ports.PeerID(h.GetTo())}
	if err := s.Pool.BatchPutRanges(stream.Context(), p, out); err != nil {
		return statusOf(err)
	}
	return stream.SendAndClose(&enginev1.PutReply{Result: resultOf(out[0])})
}

// receive fills b with first and what the stream brings, and refuses one byte more or less.
func receive(stream grpc.ClientStreamingServer[enginev1.PutRequest, enginev1.PutReply], first, b []byte) error {
	have := 0
	for data := first; ; {
		if len(data) > len(b)-have {
			return status.Errorf(codes.InvalidArgument, "put: more than the %d bytes that the header names", len(b))
		}
		have += copy(b[have:], data)
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m.GetHeader() != nil {
			return status.Error(codes.InvalidArgument, "put: a second header")
		}
		data = m.GetData()
	}
	if have < len(b) {
		return status.Errorf(codes.InvalidArgument, "put: %d bytes, and the header names %d", have, len(b))
	}
	return nil
}

// layOut places ranges one behind the other in one region. None is the whole of size.
func layOut(in []*enginev1.Range, size uint64) (out []domain.Range, total uint64, err error) {
	if len(in) > domain.MaxCallRanges {
		return nil, 0, statusOf(&domain.LimitError{What: "ranges of a call", Value: uint64(len(in)), Limit: domain.MaxCallRanges})
	}
	if len(in) == 0 {
		return []domain.Range{{Len: size}}, size, nil
	}
	for _, r := range in {
		if r.GetLen() > domain.MaxObjectSize || total > domain.MaxObjectSize {
			return nil, 0, statusOf(&domain.LimitError{What: "bytes of ranges", Value: max(r.GetLen(), total), Limit: domain.MaxObjectSize})
		}
		out = append(out, domain.Range{Off: r.GetOff(), Len: r.GetLen(), RegionOff: total})
		total += r.GetLen()
	}
	return out, total, nil
}

// Get reads an object, or ranges of it.
func (s *calls) Get(req *enginev1.GetRequest, stream grpc.ServerStreamingServer[enginev1.GetReply]) error {
	ranges, total, err := layOut(req.GetRanges(), 0)
	if err != nil {
		return err
	}
	whole := len(req.GetRanges()) == 0
	if whole {
		if total, err = s.Pool.Size(stream.Context(), string(req.GetNamespace()), string(req.GetKey())); err != nil {
			return s.withoutSize(stream, err)
		}
	}
	// An object that was replaced since may be larger, once.
	for attempt := 0; ; attempt++ {
		refused, err := s.bytes.take(total)
		if err != nil {
			s.count.overBytes.Add(1)
			return stream.Send(&enginev1.GetReply{Result: resultOf(ports.Result{Status: refused, Err: err})})
		}
		again, err := s.get(req, stream, whole, ranges, total, attempt == 0)
		s.bytes.give(total)
		if again == 0 || err != nil {
			return err
		}
		total = again
	}
}

// withoutSize makes a result of why the size is not known.
func (s *calls) withoutSize(stream grpc.ServerStreamingServer[enginev1.GetReply], err error) error {
	r := ports.Result{Err: err}
	switch {
	case errors.Is(err, ports.ErrNotFound):
		r.Status = ports.NotFound
	case errors.Is(err, ports.ErrPeer):
		r.Status = ports.PeerUnavailable
	case errors.Is(err, domain.ErrInvalid):
		r.Status = ports.Invalid
	default:
		return statusOf(err)
	}
	return stream.Send(&enginev1.GetReply{Result: resultOf(r)})
}

// get reads into total bytes and sends them. It returns the room that the object needs when that is larger and it may be asked again.
func (s *calls) get(req *enginev1.GetRequest, stream grpc.ServerStreamingServer[enginev1.GetReply], whole bool, ranges []domain.Range, total uint64, mayRepeat bool) (uint64, error) {
	b := make([]byte, total)
	region := ports.HostRegionOf(b)
	out := make([]ports.Result, 1)
	if whole {
		out[0] = s.Pool.Get(stream.Context(), string(req.GetNamespace()), string(req.GetKey()), region)
	} else if err := s.Pool.BatchGetRanges(stream.Context(), &ports.GetBatch{Namespace: string(req.GetNamespace()), Keys: []string{string(req.GetKey())},
		End: []uint32{uint32(len(ranges))}, Ranges: ranges, Regions: []ports.Memory{{Region: region}}}, out); err != nil {
		return 0, statusOf(err)
	}
	r := out[0]
	if whole && mayRepeat && r.Status == ports.TooLarge && r.Size > total {
		return r.Size, nil
	}
	if whole && r.Status == ports.Hit {
		b = b[:min(r.Size, total)]
	}
	first := &enginev1.GetReply{Result: resultOf(r)}
	if r.Status != ports.Hit {
		return 0, stream.Send(first)
	}
	for m := first; ; m = new(enginev1.GetReply) {
		n := min(chunk, len(b))
		m.Data = b[:n]
		if err := stream.Send(m); err != nil {
			return 0, err
		}
		if b = b[n:]; len(b) == 0 {
			return 0, nil
		}
	}
}

// Exists asks for many keys.
func (s *calls) Exists(ctx context.Context, req *enginev1.ExistsRequest) (*enginev1.ExistsReply, error) {
	if req.GetHoldNanos() > uint64(time.Hour) {
		return nil, statusOf(&domain.LimitError{What: "nanoseconds of a hold", Value: req.GetHoldNanos(), Limit: uint64(time.Hour)})
	}
	found := make([]bool, len(req.GetKeys()))
	leading, err := s.Pool.BatchExists(ctx, string(req.GetNamespace()), texts(req.GetKeys()), time.Duration(req.GetHoldNanos()), found)
	if err != nil {
		return nil, statusOf(err)
	}
	return &enginev1.ExistsReply{Found: found, Leading: uint32(leading)}, nil
}

// Remove asks for many keys.
func (s *calls) Remove(ctx context.Context, req *enginev1.RemoveRequest) (*enginev1.RemoveReply, error) {
	out := make([]ports.Removal, len(req.GetKeys()))
	if err := s.Pool.Remove(ctx, string(req.GetNamespace()), texts(req.GetKeys()), out); err != nil {
		return nil, statusOf(err)
	}
	reply := &enginev1.RemoveReply{}
	for _, r := range out {
		removal := &enginev1.Removal{Found: r.Found}
		for _, p := range r.Unanswered {
			removal.Unanswered = append(removal.Unanswered, string(p))
		}
		reply.Removals = append(reply.Removals, removal)
	}
	return reply, nil
}

// Size asks for one key.
func (s *calls) Size(ctx context.Context, req *enginev1.SizeRequest) (*enginev1.SizeReply, error) {
	n, err := s.Pool.Size(ctx, string(req.GetNamespace()), string(req.GetKey()))
	if err != nil {
		return nil, statusOf(err)
	}
	return &enginev1.SizeReply{Size: n}, nil
}

// Status is about this node.
func (s *calls) Status(context.Context, *enginev1.StatusRequest) (*enginev1.StatusReply, error) {
	warnings := s.Warnings
	if s.Notes != nil {
		warnings = slices.Concat(warnings, s.Notes())
	}
	return &enginev1.StatusReply{Node: string(s.Self.ID), Incarnation: uint64(s.Self.Incarnation), Version: s.Version,
		UptimeNanos: uint64(time.Since(s.Started)), Warnings: warnings, Counts: s.counted()}, nil
}

// Peers is about the others.
func (s *calls) Peers(context.Context, *enginev1.PeersRequest) (*enginev1.PeersReply, error) {
	return &enginev1.PeersReply{Peers: peers(s.Pool.Stats().Peers)}, nil
}

func texts(keys [][]byte) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = string(k)
	}
	return out
}

// statusOf is the error of a call as a whole.
func statusOf(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return err
	}
	code := codes.Internal
	for _, c := range []struct {
		class error
		code  codes.Code
	}{
		{ports.ErrNotFound, codes.NotFound},
		{ports.ErrRefused, codes.ResourceExhausted},
		{domain.ErrInvalid, codes.InvalidArgument},
		{ports.ErrClosed, codes.Unavailable},
		{ports.ErrPeer, codes.Unavailable},
		{ports.ErrBusy, codes.ResourceExhausted},
		{errors.ErrUnsupported, codes.Unimplemented},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
	} {
		if errors.Is(err, c.class) {
			code = c.code
			break
		}
	}
	return status.Error(code, err.Error())
}
