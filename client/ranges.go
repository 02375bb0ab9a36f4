package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// Handle is keys that are named to the node once, with rows of patterns or without. It stands for keys, never for a call's list. Safe
// for parallel use.
type Handle struct {
	keys []string
	rows []uint64
	c    *Client
}

// namesPerMessage keeps a message of names far below the protocol's bound.
const namesPerMessage = 8192

// NewHandle makes a handle. It is named at its first use, and again after a restart of the node. rows are none, or as many as keys.
func (c *Client) NewHandle(keys []string, rows []uint64) (*Handle, error) {
	if len(rows) != 0 && len(rows) != len(keys) {
		return nil, fmt.Errorf("%d rows for %d keys: %w", len(rows), len(keys), ErrInvalid)
	}
	return &Handle{keys: slices.Clone(keys), rows: slices.Clone(rows), c: c}, nil
}

// Len is the number of keys.
func (h *Handle) Len() int { return len(h.keys) }

// Close forgets the handle at the node.
func (h *Handle) Close() error {
	c := h.c
	c.mu.Lock()
	s := c.mu.now
	c.mu.Unlock()
	at, ok := s.forget(h)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Within)
	defer cancel()
	_, err := c.rpc.DropKeys(ctx, &enginev1.DropKeysRequest{Caller: c.caller(s), Handles: []uint64{at.id}})
	switch status.Code(err) {
	case codes.OK, codes.FailedPrecondition, codes.Unavailable:
		return nil
	}
	return c.failed("drop keys", err)
}

// name makes a handle known to a start, and returns its number.
func (c *Client) name(ctx context.Context, s *start, h *Handle) (uint64, error) {
	at := s.named(h)
	if at.keys == len(h.keys) {
		return at.id, nil
	}
	select {
	case s.naming <- struct{}{}:
	case <-ctx.Done():
		return 0, status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-s.naming }()
	at = s.named(h)
	for at.keys < len(h.keys) {
		hi := min(at.keys+namesPerMessage, len(h.keys))
		req := &enginev1.NameKeysRequest{Caller: c.caller(s), Handle: at.id, Keys: bytesOf(h.keys[at.keys:hi])}
		if len(h.rows) > 0 {
			req.Rows = h.rows[at.keys:hi]
		}
		reply, err := c.rpc.NameKeys(ctx, req)
		if err == nil && int(reply.GetKeys()) != hi {
			err = status.Errorf(codes.Internal, "handle %d has %d keys, want %d", reply.GetHandle(), reply.GetKeys(), hi)
		}
		if err != nil { // the keys may have been named: what the handle stands for there is not known any more
			s.forget(h)
			return 0, err
		}
		at = named{reply.GetHandle(), hi}
		s.mu.Lock()
		s.mu.handles[h] = at
		s.mu.Unlock()
	}
	return at.id, nil
}

// named is how far a start knows a handle.
func (s *start) named(h *Handle) named {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.handles[h]
}

// forget takes a handle out, and returns how far it was known.
func (s *start) forget(h *Handle) (named, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.mu.handles[h]
	delete(s.mu.handles, h)
	return at, ok
}

// Run is keys [First, First+Count) of a handle.
type Run struct{ First, Count uint32 }

// Keys are names, or runs of a handle's keys in any order and with repetitions (none: all of them).
type Keys struct {
	Names  []string
	Handle *Handle
	Runs   []Run
}

// Len is the number of keys.
func (k Keys) Len() int {
	if k.Handle == nil {
		return len(k.Names)
	}
	if len(k.Runs) == 0 {
		return k.Handle.Len()
	}
	n := 0
	for _, r := range k.Runs {
		n += int(r.Count)
	}
	return n
}

func (c *Client) keysFor(ctx context.Context, s *start, k Keys) (*enginev1.Keys, error) {
	if k.Handle == nil {
		return &enginev1.Keys{Names: bytesOf(k.Names)}, nil
	}
	id, err := c.name(ctx, s, k.Handle)
	if err != nil {
		return nil, err
	}
	out := &enginev1.Keys{Handle: id}
	for _, r := range k.Runs {
		out.First, out.Count = append(out.First, r.First), append(out.Count, r.Count)
	}
	return out, nil
}

// Pattern is the same ranges of every key: range r of key i is [Off[r], Off[r]+Len[r]) of the object, at Base[r] + Row[i] x Stride[r] of
// Region[r]. Len, Region and Stride are one, or as many as Off. RowsOfHandle: rows are those that were given with the keys.
type Pattern struct {
	Off, Len     []uint64
	Region       []*Region
	Base, Stride []uint64
	Row          []uint64
	RowsOfHandle bool
}

// Lists is ranges of each key, as columns: those of key i are [End[i-1], End[i]). Region is one, or as many as Off.
type Lists struct {
	End       []uint32
	Off, Len  []uint64
	Region    []*Region
	RegionOff []uint64
}

// Part is some keys of a call with where their bytes lie: a Pattern or Lists. Sizes are of the objects of a put: one, or as many as keys.
type Part struct {
	Keys    Keys
	Pattern *Pattern
	Lists   *Lists
	Sizes   []uint64
}

// partsFor builds a request for one start. Memory that a start does not know is region 0 there, and the answer says so.
func (c *Client) partsFor(ctx context.Context, s *start, parts []Part) ([]*enginev1.Part, error) {
	out := make([]*enginev1.Part, len(parts))
	for i := range parts {
		p := &parts[i]
		keys, err := c.keysFor(ctx, s, p.Keys)
		if err != nil {
			return nil, err
		}
		out[i] = &enginev1.Part{Keys: keys, Sizes: p.Sizes}
		switch {
		case p.Pattern != nil:
			out[i].Where = &enginev1.Part_Pattern{Pattern: &enginev1.Pattern{Off: p.Pattern.Off, Len: p.Pattern.Len, Region: s.numbers(p.Pattern.Region),
				Base: p.Pattern.Base, Stride: p.Pattern.Stride, Row: p.Pattern.Row, RowsOfHandle: p.Pattern.RowsOfHandle}}
		case p.Lists != nil:
			out[i].Where = &enginev1.Part_Lists{Lists: &enginev1.RangeLists{End: p.Lists.End, Off: p.Lists.Off, Len: p.Lists.Len,
				Region: s.numbers(p.Lists.Region), RegionOff: p.Lists.RegionOff}}
		}
	}
	return out, nil
}

func (s *start) numbers(regions []*Region) []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]uint32, len(regions))
	for i, r := range regions {
		out[i] = s.mu.regions[r]
	}
	return out
}

// Answer is columns over the keys of a call: those of its parts, one part after the other.
type Answer = enginev1.RangesReply

// Failed is the first key that is no success, with the reason if there is one; nil when all are.
func Failed(a *Answer) error {
	for i, s := range a.GetStatus() {
		if OK(s) {
			continue
		}
		for _, f := range a.GetFailures() {
			if int(f.GetKey()) == i {
				return &KeyError{Key: i, Status: s, Reason: f.GetReason()}
			}
		}
		return &KeyError{Key: i, Status: s}
	}
	return nil
}

// KeyError is why a key of a call is no success.
type KeyError struct {
	Key    int // of the call
	Status Status
	Reason string
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("key %d: %s: %s", e.Key, StatusName(e.Status), e.Reason)
}

// checkAnswer refuses an answer that is not of this call.
func checkAnswer(name string, a *Answer, err error, keys int) (*Answer, error) {
	if err == nil && len(a.GetStatus()) != keys {
		return nil, fmt.Errorf("%s: %d answers for %d keys", name, len(a.GetStatus()), keys)
	}
	return a, err
}

func count(parts []Part) (n int) {
	for i := range parts {
		n += parts[i].Keys.Len()
	}
	return n
}

// BatchExists says which keys are at the node or at a peer, and how long the leading run is. With a hold, what is found on the node stays
// for that time, within its bounds; leadingOnly stops at the first key that is not there.
func (c *Client) BatchExists(ctx context.Context, keys Keys, hold time.Duration, leadingOnly bool) (found []bool, leading int, err error) {
	reply, err := do(ctx, c, "exists", nil, func(ctx context.Context, s *start, caller *enginev1.Caller) (*enginev1.BatchExistsReply, error) {
		k, err := c.keysFor(ctx, s, keys)
		if err != nil {
			return nil, err
		}
		return c.rpc.BatchExists(ctx, &enginev1.BatchExistsRequest{Caller: caller, Keys: k, HoldNanos: uint64(max(hold, 0)), LeadingOnly: leadingOnly})
	})
	if err == nil && len(reply.GetFound()) != keys.Len() {
		err = fmt.Errorf("exists: %d answers for %d keys", len(reply.GetFound()), keys.Len())
	}
	return reply.GetFound(), int(reply.GetLeading()), err
}

// GetRanges reads ranges of many objects into registered memory. The destination of a key that is no success is undefined.
func (c *Client) GetRanges(ctx context.Context, parts ...Part) (*Answer, error) {
	a, err := do(ctx, c, "get", nil, func(ctx context.Context, s *start, caller *enginev1.Caller) (*Answer, error) {
		p, err := c.partsFor(ctx, s, parts)
		if err != nil {
			return nil, err
		}
		return c.rpc.BatchGetRanges(ctx, &enginev1.BatchGetRangesRequest{Caller: caller, Parts: p})
	})
	return checkAnswer("get", a, err, count(parts))
}

// PutOptions are of PutRanges.
type PutOptions struct {
	To     string        // the id of another node; empty is this one
	Wait   time.Duration // for a key that another is just putting; default 2 s
	NoWait bool          // such a key is Busy at once
}

// PutRanges stores many objects from registered memory, each whole or not at all.
func (c *Client) PutRanges(ctx context.Context, o PutOptions, parts ...Part) (*Answer, error) {
	var wait *uint64
	if o.Wait > 0 || o.NoWait {
		n := uint64(max(o.Wait, 0))
		wait = &n
	}
	a, err := do(ctx, c, "put", nil, func(ctx context.Context, s *start, caller *enginev1.Caller) (*Answer, error) {
		p, err := c.partsFor(ctx, s, parts)
		if err != nil {
			return nil, err
		}
		return c.rpc.BatchPutRanges(ctx, &enginev1.BatchPutRangesRequest{Caller: caller, Parts: p, WaitNanos: wait, To: o.To})
	})
	return checkAnswer("put", a, err, count(parts))
}

// Reading is a session of reads: all reads of a key come from one version. It ends with its start of the node (ErrRestarted).
type Reading struct {
	c  *Client
	at *start
	id uint64
}

// OpenRead begins a session.
func (c *Client) OpenRead(ctx context.Context) (*Reading, error) {
	var at *start
	reply, err := do(ctx, c, "open read", nil, func(ctx context.Context, s *start, caller *enginev1.Caller) (*enginev1.OpenReadReply, error) {
		at = s
		return c.rpc.OpenRead(ctx, &enginev1.OpenReadRequest{Caller: caller})
	})
	if err != nil {
		return nil, err
	}
	return &Reading{c, at, reply.GetSession()}, nil
}

// GetRanges is Client.GetRanges in the session.
func (r *Reading) GetRanges(ctx context.Context, parts ...Part) (*Answer, error) {
	a, err := do(ctx, r.c, "read", r.at, func(ctx context.Context, s *start, caller *enginev1.Caller) (*Answer, error) {
		p, err := r.c.partsFor(ctx, s, parts)
		if err != nil {
			return nil, err
		}
		return r.c.rpc.ReadRanges(ctx, &enginev1.ReadRangesRequest{Caller: caller, Session: r.id, Parts: p})
	})
	return checkAnswer("read", a, err, count(parts))
}

// Close ends the session.
func (r *Reading) Close() error {
	_, err := do(context.Background(), r.c, "close read", r.at, func(ctx context.Context, _ *start, caller *enginev1.Caller) (*enginev1.CloseReadReply, error) {
		return r.c.rpc.CloseRead(ctx, &enginev1.CloseReadRequest{Caller: caller, Session: r.id})
	})
	return unlessGone(err)
}

// unlessGone forgives that what was to be ended has ended by itself.
func unlessGone(err error) error {
	if errors.Is(err, ErrRestarted) {
		return nil
	}
	return err
}

// Writing is a session of writes: objects in parts, seen only when they are committed. It ends with its start of the node.
type Writing struct {
	c    *Client
	at   *start
	id   uint64
	keys int // that were reserved
}

// OpenWrite reserves objects on this node; sizes are one, or as many as keys. The statuses say which keys wait for their bytes (Hit),
// which need none (Exists), and which are refused.
func (c *Client) OpenWrite(ctx context.Context, keys Keys, sizes ...uint64) (*Writing, *Answer, error) {
	var at *start
	reply, err := do(ctx, c, "open write", nil, func(ctx context.Context, s *start, caller *enginev1.Caller) (*enginev1.OpenWriteReply, error) {
		at = s
		k, err := c.keysFor(ctx, s, keys)
		if err != nil {
			return nil, err
		}
		return c.rpc.OpenWrite(ctx, &enginev1.OpenWriteRequest{Caller: caller, Keys: k, Sizes: sizes})
	})
	if err != nil {
		return nil, nil, err
	}
	w := &Writing{c: c, at: at, id: reply.GetSession()}
	for _, s := range reply.GetStatus() {
		if s == Hit {
			w.keys++
		}
	}
	a, err := checkAnswer("open write", &Answer{Status: reply.GetStatus(), Failures: reply.GetFailures()}, nil, keys.Len())
	return w, a, err
}

// WriteRanges writes parts of objects, whose sizes are left out.
func (w *Writing) WriteRanges(ctx context.Context, parts ...Part) (*Answer, error) {
	a, err := do(ctx, w.c, "write", w.at, func(ctx context.Context, s *start, caller *enginev1.Caller) (*Answer, error) {
		p, err := w.c.partsFor(ctx, s, parts)
		if err != nil {
			return nil, err
		}
		return w.c.rpc.WriteRanges(ctx, &enginev1.WriteRangesRequest{Caller: caller, Session: w.id, Parts: p})
	})
	return checkAnswer("write", a, err, count(parts))
}

// Commit makes the keys that were reserved visible, in the order of OpenWrite.
func (w *Writing) Commit(ctx context.Context) (*Answer, error) {
	a, err := do(ctx, w.c, "commit", w.at, func(ctx context.Context, _ *start, caller *enginev1.Caller) (*Answer, error) {
		return w.c.rpc.Commit(ctx, &enginev1.CommitRequest{Caller: caller, Session: w.id})
	})
	return checkAnswer("commit", a, err, w.keys)
}

// Abort gives back what is not committed, and ends the session.
func (w *Writing) Abort() error {
	_, err := do(context.Background(), w.c, "abort", w.at, func(ctx context.Context, _ *start, caller *enginev1.Caller) (*enginev1.AbortReply, error) {
		return w.c.rpc.Abort(ctx, &enginev1.AbortRequest{Caller: caller, Session: w.id})
	})
	return unlessGone(err)
}
