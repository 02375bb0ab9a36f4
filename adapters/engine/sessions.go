package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// writing is a write session of a client. Guarded by the client's mu.
type writing struct {
	keys []string            // for a commit of all
	open map[string]struct{} // those that are not decided
}

// maxFinished is how many decided sessions of a client answer a repeated commit; the number is arbitrary, above its calls at a time.
const maxFinished = 64

// Hello makes a client.
func (s *calls) Hello(_ context.Context, req *enginev1.HelloRequest) (*enginev1.HelloReply, error) {
	switch {
	case req.GetProtocol() == 0:
		return nil, s.failed(fmt.Errorf("protocol 0, want 1 or more: %w", domain.ErrInvalid))
	case len(req.GetNamespace()) > maxNamespace:
		return nil, s.failed(limit("bytes of a namespace", len(req.GetNamespace()), maxNamespace))
	case len(req.GetName()) > maxClientName:
		return nil, s.failed(limit("bytes of a client's name", len(req.GetName()), maxClientName))
	}
	c, err := s.clients.hello(string(req.GetNamespace()))
	if err != nil {
		return nil, err
	}
	return &enginev1.HelloReply{Protocol: 1, Boot: uint64(s.Self.Incarnation), Client: []byte(c.id), Node: string(s.Self.ID), Version: s.Version,
		DescriptorSocket: s.descriptorSocket, Limits: s.limits(),
		Abilities: &enginev1.Abilities{Ranged: true, ReadSessions: true, WriteSessions: true, Handles: true, Patterns: true, RegisterFile: true, Allocate: true,
			DeviceIpc: s.Devices != nil,
			Checksums: s.Checksums, Events: s.Journal != nil}}, nil
}

func (s *calls) limits() *enginev1.Limits {
	return &enginev1.Limits{Keys: domain.MaxCallKeys, Ranges: domain.MaxCallRanges, MessageBytes: maxMessage, BytesInFlight: s.MaxClientBytes,
		Regions: uint32(s.MaxRegions), RegionBytes: s.MaxRegionBytes, Sessions: uint32(s.MaxSessions), HandleKeys: maxHandleKeys, HandleBytes: maxHandleBytes,
		HoldNanos: uint64(maxHold), WaitNanos: uint64(maxWait), CallNanos: uint64(callBound)}
}

// with runs a call of a client that moves no bytes.
func with[Reply any](s *calls, ctx context.Context, caller *enginev1.Caller, do func(ctx context.Context, c *client, k *call) (*Reply, error)) (*Reply, error) {
	ctx, k, err := s.clients.begin(ctx, s.Self.Incarnation, caller)
	if err != nil {
		return nil, err
	}
	defer k.end()
	out, err := do(ctx, k.of, k)
	if err != nil {
		return nil, s.failed(err)
	}
	return out, nil
}

// Deregister lets go of regions.
func (s *calls) Deregister(ctx context.Context, req *enginev1.DeregisterRequest) (*enginev1.DeregisterReply, error) {
	return with(s, ctx, req.GetCaller(), func(_ context.Context, c *client, _ *call) (*enginev1.DeregisterReply, error) {
		return &enginev1.DeregisterReply{}, c.deregister(req.GetRegions())
	})
}

// NameKeys makes a handle, or appends to one.
func (s *calls) NameKeys(ctx context.Context, req *enginev1.NameKeysRequest) (*enginev1.NameKeysReply, error) {
	return with(s, ctx, req.GetCaller(), func(_ context.Context, c *client, _ *call) (*enginev1.NameKeysReply, error) {
		id, n, err := c.name(req.GetHandle(), req.GetKeys(), req.GetRows())
		return &enginev1.NameKeysReply{Handle: id, Keys: uint32(n)}, err
	})
}

func (c *client) name(id uint64, keys [][]byte, rows []uint64) (uint64, int, error) {
	if len(rows) != 0 && len(rows) != len(keys) {
		return 0, 0, malformed("rows", len(rows), len(keys))
	}
	bytes := 0
	for i, k := range keys {
		bytes += len(k)
		if err := domain.CheckKey(string(k)); err != nil {
			return 0, 0, fmt.Errorf("key %d: %w", i, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.mu.handles[id]
	switch {
	case id != 0 && h == nil:
		return 0, 0, fmt.Errorf("handle %d: %w", id, ports.ErrNotFound)
	case id == 0 && len(c.mu.handles) >= maxHandles:
		return 0, 0, limit("handles of a client", len(c.mu.handles)+1, maxHandles)
	case c.mu.handleKeys+len(keys) > maxHandleKeys:
		return 0, 0, limit("keys of a client's handles", c.mu.handleKeys+len(keys), maxHandleKeys)
	case c.mu.handleBytes+bytes > maxHandleBytes:
		return 0, 0, limit("bytes of the names of a client's handles", c.mu.handleBytes+bytes, maxHandleBytes)
	case h != nil && len(h.keys) > 0 && (len(h.rows) > 0) != (len(rows) > 0) && len(keys) > 0:
		return 0, 0, fmt.Errorf("some keys of handle %d with rows and some without: %w", id, domain.ErrInvalid)
	}
	if h == nil {
		h = &handle{keys: make([]string, 0, len(keys))}
		c.mu.lastHandle++
		id = c.mu.lastHandle
		c.mu.handles[id] = h
	}
	h.keys = append(h.keys, texts(keys)...)
	h.rows = append(h.rows, rows...)
	c.mu.handleKeys += len(keys)
	c.mu.handleBytes += bytes
	return id, len(h.keys), nil
}

// DropKeys forgets handles; those that are not there are passed over.
func (s *calls) DropKeys(ctx context.Context, req *enginev1.DropKeysRequest) (*enginev1.DropKeysReply, error) {
	return with(s, ctx, req.GetCaller(), func(_ context.Context, c *client, _ *call) (*enginev1.DropKeysReply, error) {
		for _, id := range req.GetHandles() {
			c.drop(id)
		}
		return &enginev1.DropKeysReply{}, nil
	})
}

func (c *client) drop(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.mu.handles[id]
	if h == nil {
		return
	}
	delete(c.mu.handles, id)
	c.mu.handleKeys -= len(h.keys)
	for _, k := range h.keys {
		c.mu.handleBytes -= len(k)
	}
}

// keysOf is a list of keys by itself.
func (c *client) keysOf(k *enginev1.Keys) ([]string, error) {
	l, err := listOf(k, placed{&call{of: c}})
	if err != nil {
		return nil, err
	}
	if l.len() > domain.MaxCallKeys {
		return nil, limit("keys of a call", l.len(), domain.MaxCallKeys)
	}
	out := make([]string, 0, l.len())
	l.each(func(_, _ int, key string) { out = append(out, key) })
	return out, nil
}

// existsStep is how many keys are looked for at a time when only the leading run is wanted.
const existsStep = 512

// BatchExists looks for keys.
func (s *calls) BatchExists(ctx context.Context, req *enginev1.BatchExistsRequest) (*enginev1.BatchExistsReply, error) {
	if req.GetHoldNanos() > uint64(maxHold) {
		return nil, s.failed(limit("nanoseconds of a hold", int(min(req.GetHoldNanos(), 1<<62)), int(maxHold)))
	}
	return with(s, ctx, req.GetCaller(), func(ctx context.Context, c *client, _ *call) (*enginev1.BatchExistsReply, error) {
		keys, err := c.keysOf(req.GetKeys())
		if err != nil {
			return nil, err
		}
		out := &enginev1.BatchExistsReply{Found: make([]bool, len(keys))}
		step := max(len(keys), 1)
		if req.GetLeadingOnly() {
			step = existsStep
		}
		for lo := 0; lo < len(keys); lo += step {
			hi := min(lo+step, len(keys))
			n, err := s.Pool.BatchExists(ctx, c.namespace, keys[lo:hi], time.Duration(req.GetHoldNanos()), out.Found[lo:hi])
			if err != nil {
				return nil, err
			}
			out.Leading += uint32(n)
			if n < hi-lo {
				break
			}
		}
		if req.GetLeadingOnly() {
			clear(out.Found[out.Leading:])
		}
		return out, nil
	})
}

// OpenRead begins a session of reads.
func (s *calls) OpenRead(ctx context.Context, req *enginev1.OpenReadRequest) (*enginev1.OpenReadReply, error) {
	return with(s, ctx, req.GetCaller(), func(ctx context.Context, c *client, _ *call) (*enginev1.OpenReadReply, error) {
		if err := c.mayOpen(); err != nil {
			return nil, err
		}
		defer c.less(&c.mu.opening)
		var named uint64
		if len(req.GetKeys()) > 0 {
			id, _, err := c.name(0, req.GetKeys(), req.GetRows())
			if err != nil {
				return nil, err
			}
			named = id
		}
		id, err := s.Pool.OpenRead(ctx, c.namespace)
		if err != nil {
			c.drop(named)
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mu.reads[id] = named
		return &enginev1.OpenReadReply{Session: uint64(id), Handle: named}, nil
	})
}

// mayOpen counts a session in before it is opened; less(&c.mu.opening) is called once it is in a map, or will not be.
func (c *client) mayOpen() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.mu.reads) + len(c.mu.writes) - len(c.mu.finished) + int(c.mu.opening); n >= int(c.of.bounds.MaxSessions) {
		return limit("sessions of a client", n+1, int(c.of.bounds.MaxSessions))
	}
	c.mu.opening++
	return nil
}

// ReadRanges is BatchGetRanges in a session.
func (s *calls) ReadRanges(ctx context.Context, req *enginev1.ReadRangesRequest) (*enginev1.RangesReply, error) {
	return s.move(ctx, req.GetCaller(), req.GetParts(), patterned, func(ctx context.Context, k *call, t *transfer) error {
		id := ports.SessionID(req.GetSession())
		k.of.mu.Lock()
		_, ok := k.of.mu.reads[id]
		k.of.mu.Unlock()
		if !ok {
			return fmt.Errorf("read session %d: %w", id, ports.ErrNotFound)
		}
		return t.get(ctx, k, s.Pool, id)
	})
}

// CloseRead ends a session of reads.
func (s *calls) CloseRead(ctx context.Context, req *enginev1.CloseReadRequest) (*enginev1.CloseReadReply, error) {
	return with(s, ctx, req.GetCaller(), func(_ context.Context, c *client, _ *call) (*enginev1.CloseReadReply, error) {
		id := ports.SessionID(req.GetSession())
		c.mu.Lock()
		named, ok := c.mu.reads[id]
		delete(c.mu.reads, id)
		c.mu.Unlock()
		if !ok {
			return nil, fmt.Errorf("read session %d: %w", id, ports.ErrNotFound)
		}
		c.drop(named)
		return &enginev1.CloseReadReply{}, s.Pool.CloseRead(id)
	})
}

// OpenWrite reserves objects that are written in parts.
func (s *calls) OpenWrite(ctx context.Context, req *enginev1.OpenWriteRequest) (*enginev1.OpenWriteReply, error) {
	return with(s, ctx, req.GetCaller(), func(ctx context.Context, c *client, _ *call) (*enginev1.OpenWriteReply, error) {
		keys, err := c.keysOf(req.GetKeys())
		if err != nil {
			return nil, err
		}
		given := column{req.GetSizes()}
		if !given.fits(len(keys)) {
			return nil, malformed("sizes", len(req.GetSizes()), len(keys))
		}
		if err := c.mayOpen(); err != nil {
			return nil, err
		}
		defer c.less(&c.mu.opening)
		sizes, results := make([]uint64, len(keys)), make([]ports.Result, len(keys))
		for i := range sizes {
			sizes[i] = given.at(i)
		}
		id, err := s.Pool.OpenWrite(ctx, c.namespace, keys, sizes, results)
		if err != nil {
			return nil, err
		}
		w := &writing{open: make(map[string]struct{})}
		out := &enginev1.OpenWriteReply{Session: uint64(id)}
		for i, r := range results {
			out.Status = append(out.Status, statuses[r.Status])
			if r.Status == ports.Hit {
				w.keys = append(w.keys, keys[i])
				w.open[keys[i]] = struct{}{}
			} else if !r.Status.OK() {
				addFailure(&out.Failures, uint32(i), r)
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mu.writes[id] = w
		return out, nil
	})
}

// writing finds a write session.
func (c *client) writing(id ports.WriteID) (*writing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.mu.writes[id]
	if w == nil {
		return nil, fmt.Errorf("write session %d: %w", id, ports.ErrNotFound)
	}
	return w, nil
}

// WriteRanges writes parts of objects.
func (s *calls) WriteRanges(ctx context.Context, req *enginev1.WriteRangesRequest) (*enginev1.RangesReply, error) {
	return s.move(ctx, req.GetCaller(), req.GetParts(), unsizedLists, func(ctx context.Context, k *call, t *transfer) error {
		id := ports.WriteID(req.GetSession())
		if _, err := k.of.writing(id); err != nil {
			return err
		}
		return s.Pool.WriteRanges(ctx, id, &ports.PutBatch{Keys: t.keys, End: t.end, Ranges: t.ranges, Regions: t.memory}, t.out)
	})
}

// Commit makes objects visible.
func (s *calls) Commit(ctx context.Context, req *enginev1.CommitRequest) (*enginev1.RangesReply, error) {
	return with(s, ctx, req.GetCaller(), func(ctx context.Context, c *client, _ *call) (*enginev1.RangesReply, error) {
		id := ports.WriteID(req.GetSession())
		w, err := c.writing(id)
		if err != nil {
			return nil, err
		}
		keys := w.keys
		if k := req.GetKeys(); len(k.GetNames()) > 0 || k.GetHandle() != 0 {
			if keys, err = c.keysOf(req.GetKeys()); err != nil {
				return nil, err
			}
		}
		results := make([]ports.Result, len(keys))
		if err := s.Pool.CommitWrite(ctx, id, keys, results); err != nil {
			return nil, err
		}
		out := &enginev1.RangesReply{}
		for i, r := range results {
			out.Status = append(out.Status, statuses[r.Status])
			if !r.Status.OK() {
				addFailure(&out.Failures, uint32(i), r)
			}
		}
		if old, ok := c.decided(id, w, keys, results); ok {
			_ = s.Pool.AbortWrite(old) // nothing of it is open
		}
		return out, nil
	})
}

// decided notes the keys that a commit has decided. A session without others has ended, but for the same commit again; the oldest such
// one is forgotten when there are many.
func (c *client) decided(id ports.WriteID, w *writing, keys []string, results []ports.Result) (oldest ports.WriteID, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(w.open)
	for i, r := range results {
		if r.Status != ports.Invalid && r.Status != ports.Busy {
			delete(w.open, keys[i])
		}
	}
	if before == 0 || len(w.open) > 0 || c.mu.writes[id] == nil {
		return 0, false
	}
	c.mu.finished = append(c.mu.finished, id)
	if len(c.mu.finished) <= maxFinished {
		return 0, false
	}
	oldest = c.mu.finished[0]
	c.mu.finished = slices.Delete(c.mu.finished, 0, 1)
	delete(c.mu.writes, oldest)
	return oldest, true
}

// Abort ends a write session.
func (s *calls) Abort(ctx context.Context, req *enginev1.AbortRequest) (*enginev1.AbortReply, error) {
	return with(s, ctx, req.GetCaller(), func(_ context.Context, c *client, _ *call) (*enginev1.AbortReply, error) {
		id := ports.WriteID(req.GetSession())
		if _, err := c.writing(id); err != nil {
			return nil, err
		}
		c.mu.Lock()
		delete(c.mu.writes, id)
		c.mu.finished = slices.DeleteFunc(c.mu.finished, func(f ports.WriteID) bool { return f == id })
		c.mu.Unlock()
		return &enginev1.AbortReply{}, s.Pool.AbortWrite(id)
	})
}

// Quiesce ends calls that got no reply.
func (s *calls) Quiesce(ctx context.Context, req *enginev1.QuiesceRequest) (*enginev1.QuiesceReply, error) {
	if len(req.GetCalls()) > maxBarred {
		return nil, s.failed(limit("calls of a quiesce", len(req.GetCalls()), maxBarred))
	}
	return with(s, ctx, req.GetCaller(), func(ctx context.Context, c *client, k *call) (*enginev1.QuiesceReply, error) {
		n, err := c.quiesce(ctx, k, req.GetCalls())
		return &enginev1.QuiesceReply{Ended: uint32(n)}, err
	})
}

// Stats is about the node, and the client if one asks.
func (s *calls) Stats(ctx context.Context, req *enginev1.StatsRequest) (*enginev1.StatsReply, error) {
	out := &enginev1.StatsReply{Counts: s.counted()}
	if req.GetCaller() == nil {
		return out, nil
	}
	return with(s, ctx, req.GetCaller(), func(_ context.Context, c *client, _ *call) (*enginev1.StatsReply, error) {
		out.Client = c.gauges()
		return out, nil
	})
}

// counted is everything that the node and this socket count.
func (s *calls) counted() map[string]uint64 {
	m, c := counts(s.Pool.Stats()), s.counts()
	for prefix, of := range map[string]map[string]uint64{"engine.": c.Events, "engine.ended.": c.Ended, "engine.refused.": c.Refused} {
		for name, v := range of {
			m[prefix+name] = v
		}
	}
	m["now.engine.clients"], m["now.engine.region_bytes"] = c.Clients, c.RegionBytes
	return m
}

func (c *client) gauges() map[string]uint64 {
	c.bytes.mu.Lock()
	inFlight := c.bytes.mu.used
	c.bytes.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	return map[string]uint64{"regions": uint64(len(c.mu.regions)), "region_bytes": c.mu.regionBytes, "read_sessions": uint64(len(c.mu.reads)),
		"write_sessions": uint64(len(c.mu.writes)), "handles": uint64(len(c.mu.handles)), "calls": uint64(len(c.mu.calls)), "bytes_in_flight": inFlight}
}
