package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

const (
	maxFailures  = 16 // with a reason, of a reply
	defaultWait  = 2 * time.Second
	maxWait      = 5 * time.Second
	firstRetry   = time.Millisecond // of a put that waits for another writer; doubles
	longestRetry = 32 * time.Millisecond
)

// transfer is the scratch of one call that moves bytes.
type transfer struct {
	want
	memory []ports.Memory
	out    []ports.Result
}

var transfers = sync.Pool{New: func() any { return new(transfer) }}

// giveBack forgets the call's memory and keeps the columns' room.
func (t *transfer) giveBack() {
	t.reset()
	clear(t.memory)
	clear(t.out)
	t.memory, t.out = t.memory[:0], t.out[:0]
	transfers.Put(t)
}

// form is what the pool's call takes.
type form uint8

const (
	patterned    form = iota // gets: patterns, where all parts are; else lists
	unsizedLists             // parts of objects that are written
	sizedLists               // puts
)

// take decodes a call's parts, and counts its bytes in. refused is Busy or Refused for all keys when they do not fit.
func (t *transfer) take(k *call, parts []*enginev1.Part, f form) (refused ports.Status, why, err error) {
	t.stay = f == patterned
	s := unsized
	if f == sizedLists {
		s = sized
	}
	if err := t.fill(parts, placed{k}, s); err != nil {
		return 0, nil, err
	}
	for _, r := range k.regions {
		t.memory = append(t.memory, r.memory)
	}
	t.out = slices.Grow(t.out, len(t.keys))[:len(t.keys)]
	if refused, why = k.of.bytes.take(t.bytes); why != nil {
		k.of.of.count.overBytes.Add(uint64(len(t.keys)))
		return refused, why, nil
	}
	k.bytes = t.bytes
	return 0, nil, nil
}

// reply is the columns of the answer.
func (t *transfer) reply(count *counters) *enginev1.RangesReply {
	count.notRegistered.Add(uint64(len(t.refused)))
	out := &enginev1.RangesReply{Status: make([]enginev1.KeyStatus, t.total), Source: make([]enginev1.Source, t.total)}
	for _, r := range t.refused {
		out.Status[r.row] = enginev1.KeyStatus_KEY_STATUS_NOT_REGISTERED
		addFailure(&out.Failures, r.row, ports.Result{Err: r.reason})
	}
	for j, r := range t.out {
		row := t.row[j]
		out.Status[row], out.Source[row] = statuses[r.Status], sources[r.Source]
		out.Fetched += r.Fetched
		out.Joined += r.Joined
		if r.Verified {
			out.Verified++
		}
		if !r.Status.OK() {
			addFailure(&out.Failures, row, r)
		}
	}
	return out
}

func addFailure(to *[]*enginev1.KeyFailure, row uint32, r ports.Result) {
	if len(*to) >= maxFailures {
		return
	}
	f := &enginev1.KeyFailure{Key: row, Size: r.Size}
	if r.Err != nil {
		f.Reason = r.Err.Error()
	}
	*to = append(*to, f)
}

func (t *transfer) refuseAll(s ports.Status, why error) {
	for i := range t.out {
		t.out[i] = ports.Result{Status: s, Err: why}
	}
}

// move runs one call that moves bytes: do is asked for the keys whose memory is registered.
func (s *calls) move(ctx context.Context, caller *enginev1.Caller, parts []*enginev1.Part, f form, do func(ctx context.Context, k *call, t *transfer) error) (*enginev1.RangesReply, error) {
	ctx, k, err := s.clients.begin(ctx, s.Self.Incarnation, caller)
	if err != nil {
		return nil, err
	}
	t := transfers.Get().(*transfer)
	defer t.giveBack()
	defer k.end()
	refused, why, err := t.take(k, parts, f)
	if err != nil {
		return nil, s.failed(err)
	}
	switch {
	case why != nil:
		t.refuseAll(refused, why)
	case len(t.keys) > 0:
		if err := do(ctx, k, t); err != nil {
			return nil, s.failed(err)
		}
	}
	return t.reply(s.count), nil
}

// failed counts why a call of a client failed as a whole, and makes its status.
func (s *calls) failed(err error) error {
	switch {
	case errors.Is(err, ports.ErrNotFound):
		s.count.refused[refusedUnknown].Add(1)
	case errors.Is(err, ports.ErrRefused):
		s.count.refused[refusedLimit].Add(1)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		s.count.refused[refusedEnded].Add(1)
	case errors.Is(err, domain.ErrInvalid):
		s.count.refused[refusedMalformed].Add(1)
	default:
		s.count.refused[refusedFailed].Add(1)
	}
	return statusOf(err)
}

func (t *transfer) get(ctx context.Context, k *call, pool ports.Pool, session ports.SessionID) error {
	return pool.BatchGetRanges(ctx, &ports.GetBatch{Namespace: k.of.namespace, Keys: t.keys, End: t.end, Ranges: t.ranges, Patterns: t.patterns(),
		Regions: t.memory, Session: session}, t.out)
}

// BatchGetRanges reads ranges into registered memory.
func (s *calls) BatchGetRanges(ctx context.Context, req *enginev1.BatchGetRangesRequest) (*enginev1.RangesReply, error) {
	return s.move(ctx, req.GetCaller(), req.GetParts(), patterned, func(ctx context.Context, k *call, t *transfer) error {
		return t.get(ctx, k, s.Pool, 0)
	})
}

// BatchPutRanges stores objects from registered memory.
func (s *calls) BatchPutRanges(ctx context.Context, req *enginev1.BatchPutRangesRequest) (*enginev1.RangesReply, error) {
	wait := defaultWait
	if req.WaitNanos != nil {
		wait = time.Duration(min(req.GetWaitNanos(), uint64(maxWait)))
	}
	return s.move(ctx, req.GetCaller(), req.GetParts(), sizedLists, func(ctx context.Context, k *call, t *transfer) error {
		p := &ports.PutBatch{Namespace: k.of.namespace, Keys: t.keys, Sizes: t.sizes, End: t.end, Ranges: t.ranges, Regions: t.memory,
			To: ports.PeerID(req.GetTo())}
		if err := s.Pool.BatchPutRanges(ctx, p, t.out); err != nil {
			return err
		}
		return s.outwait(ctx, p, t.out, wait)
	})
}

// outwait asks again for the keys that another writer has, until that writer is done or has failed, or the time is over. The other may
// be on another node: nobody here is told of its end, so that this looks again, at intervals that grow.
func (s *calls) outwait(ctx context.Context, p *ports.PutBatch, out []ports.Result, wait time.Duration) error {
	busy := busyRows(out, nil)
	if len(busy) == 0 || wait <= 0 {
		return nil
	}
	s.count.waits.Add(uint64(len(busy)))
	over := time.NewTimer(wait)
	defer over.Stop()
	for pause := firstRetry; len(busy) > 0; pause = min(2*pause, longestRetry) {
		select {
		case <-ctx.Done():
			return nil // they are busy still; nothing of them is touched
		case <-over.C:
			s.count.waitsOver.Add(uint64(len(busy)))
			return nil
		case <-time.After(pause):
		}
		again, results := choose(p, busy), make([]ports.Result, len(busy))
		if err := s.Pool.BatchPutRanges(ctx, again, results); err != nil {
			return err
		}
		for j, i := range busy {
			out[i] = results[j]
			if results[j].Status == ports.Stored {
				s.count.takeovers.Add(1)
			}
		}
		busy = busyRows(out, busy[:0])
	}
	return nil
}

func busyRows(out []ports.Result, rows []int) []int {
	for i := range out {
		if out[i].Status == ports.Busy {
			rows = append(rows, i)
		}
	}
	return rows
}

// choose is a put of some of its keys.
func choose(p *ports.PutBatch, rows []int) *ports.PutBatch {
	out := &ports.PutBatch{Namespace: p.Namespace, Regions: p.Regions, To: p.To}
	for _, i := range rows {
		lo := uint32(0)
		if i > 0 {
			lo = p.End[i-1]
		}
		out.Keys = append(out.Keys, p.Keys[i])
		out.Sizes = append(out.Sizes, p.Sizes[i])
		out.Ranges = append(out.Ranges, p.Ranges[lo:p.End[i]]...)
		out.End = append(out.End, uint32(len(out.Ranges)))
	}
	return out
}
