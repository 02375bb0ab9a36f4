package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// The bounds of clients: defaults, and those that are not configured. All are arbitrary, above what an engine with many ranks has.
const (
	defaultClients  = 256
	defaultRegions  = 256
	defaultSessions = 1024

	maxHandles     = 4096
	maxHandleKeys  = 1 << 20
	maxHandleBytes = 64 << 20
	maxBarred      = 4096
	maxNamespace   = 512
	maxClientName  = 128
	attachWithin   = 5 * time.Second
)

// clients is everyone who said hello.
//
//	Hello -> waiting -> attached -> ended
//	            \-- not within attachWithin --^
//
// A client has ended when its connection for descriptors has: from then on its calls are refused, those in progress are cancelled and
// waited for, and then what it had is let go of, in this order, so that no copy runs in memory that is unmapped.
// INVARIANT: mapped is the sum of the regions of all clients, those that are being mapped included.
//
// Lock order: clients.mu, then nothing; client.mu, then nothing. Neither is held across a call of the pool.
type clients struct {
	pool   ports.Pool
	bounds Config
	count  *counters

	mu struct {
		sync.Mutex
		stopped bool
		byID    map[string]*client
		mapped  uint64
	}
}

// client is one hello.
type client struct {
	of        *clients
	id        string
	namespace string
	bytes     budget // in flight
	born      time.Time
	over      chan struct{}  // closed when nothing of it is left
	running   sync.WaitGroup // calls; Add only under mu while not ended

	mu struct {
		sync.Mutex
		attached, ended bool
		calls           map[*call]struct{}
		barredBelow     uint64   // calls with a smaller number are refused
		barred          []uint64 // so are these; the oldest is forgotten first
		regions         map[uint32]*region
		regionBytes     uint64
		lastRegion      uint32
		mapping         uint64                     // regions that are counted in, and not in the map yet
		opening         uint64                     // sessions likewise
		reads           map[ports.SessionID]uint64 // the handle that ends with it; 0: none
		writes          map[ports.WriteID]*writing
		finished        []ports.WriteID // of writes: every key is decided; kept for a commit that is repeated
		handles         map[uint64]*handle
		lastHandle      uint64
		handleKeys      int
		handleBytes     int
	}
}

// handle is keys that were named once. Its columns only grow, so that a call may use what it saw.
type handle struct {
	keys []string
	rows []uint64 // none, or as many as keys
}

// region is memory that is registered and mapped here.
type region struct {
	id     uint32
	memory ports.Memory
	mapped mapping
	users  sync.WaitGroup // calls; Add only under the client's mu while the region is in its map
}

// call is one call of a client, from begin to end.
type call struct {
	of      *client
	number  uint64
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when it touches nothing any more
	regions []*region
	bytes   uint64
}

var (
	errGone     = status.Error(codes.FailedPrecondition, "the client is not known, or was let go: say hello again")
	errQuiesced = fmt.Errorf("ended by quiesce: %w", context.Canceled)
	errLeft     = fmt.Errorf("the client has gone: %w", context.Canceled)
)

func newClients(c Config, count *counters) *clients {
	cs := &clients{pool: c.Pool, bounds: c, count: count}
	cs.mu.byID = make(map[string]*client)
	return cs
}

// hello makes a client.
func (cs *clients) hello(namespace string) (*client, error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails: crypto/rand ends the program instead
	c := &client{of: cs, id: string(id), namespace: namespace, bytes: budget{limit: cs.bounds.MaxClientBytes}, born: time.Now(), over: make(chan struct{})}
	c.mu.calls = make(map[*call]struct{})
	c.mu.regions = make(map[uint32]*region)
	c.mu.reads = make(map[ports.SessionID]uint64)
	c.mu.writes = make(map[ports.WriteID]*writing)
	c.mu.handles = make(map[uint64]*handle)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.mu.stopped {
		return nil, status.Error(codes.Unavailable, "the node is stopping")
	}
	if n, most := uint64(len(cs.mu.byID)), cs.bounds.MaxClients; n >= most {
		return nil, cs.refuse(refusedLimit, codes.ResourceExhausted, &domain.LimitError{What: "clients", Value: n + 1, Limit: most})
	}
	cs.mu.byID[c.id] = c
	cs.count.clients.Add(1)
	return c, nil
}

// refuse counts why a call is refused as a whole, and makes its error.
func (cs *clients) refuse(why refusal, code codes.Code, err error) error {
	cs.count.refused[why].Add(1)
	return status.Error(code, err.Error())
}

func (cs *clients) find(id []byte) *client {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.mu.byID[string(id)]
}

func (cs *clients) all() []*client {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	out := make([]*client, 0, len(cs.mu.byID))
	for _, c := range cs.mu.byID {
		out = append(out, c)
	}
	return out
}

// reap ends the clients that did not attach in time.
func (cs *clients) reap(now time.Time) {
	for _, c := range cs.all() {
		c.mu.Lock()
		over := !c.mu.attached && !c.mu.ended && now.Sub(c.born) >= attachWithin
		c.mu.Unlock()
		if over {
			c.end(endedUnattached)
		}
	}
}

// stop ends everyone, and lets nobody in.
func (cs *clients) stop() {
	cs.mu.Lock()
	cs.mu.stopped = true
	cs.mu.Unlock()
	for _, c := range cs.all() {
		c.end(endedStop)
	}
}

// attach ties a connection to a client, once.
func (cs *clients) attach(id []byte) (*client, error) {
	c := cs.find(id)
	if c == nil {
		return nil, cs.gone()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return nil, cs.gone()
	}
	if c.mu.attached {
		return nil, cs.refuse(refusedMalformed, codes.InvalidArgument, errors.New("the client is attached already"))
	}
	c.mu.attached = true
	return c, nil
}

func (cs *clients) gone() error {
	cs.count.refused[refusedGone].Add(1)
	return errGone
}

// takeMapped counts bytes of a region in that is about to be mapped.
func (cs *clients) takeMapped(n uint64) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if limit := cs.bounds.MaxRegionBytes; n > limit || cs.mu.mapped > limit-n {
		return cs.refuse(refusedLimit, codes.ResourceExhausted, &domain.LimitError{What: fmt.Sprintf("bytes of %d more in regions of all clients", n),
			Value: cs.mu.mapped, Limit: limit})
	}
	cs.mu.mapped += n
	return nil
}

func (cs *clients) giveMapped(n uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.mu.mapped -= n
}

// begin counts a call in: its context ends with the client, with Quiesce, and with what it came with. The call must be ended. It says
// that a client is gone only when nothing of it is left: who hears it may have his memory back.
func (cs *clients) begin(ctx context.Context, boot domain.Incarnation, who *enginev1.Caller) (context.Context, *call, error) {
	c := cs.find(who.GetClient())
	if c == nil || who.GetBoot() != uint64(boot) {
		return nil, nil, cs.gone()
	}
	k := &call{of: c, number: who.GetCall(), done: make(chan struct{})}
	inner, cancel := context.WithCancelCause(ctx)
	k.cancel = cancel
	barred, ended := c.enlist(k)
	switch {
	case ended:
		cancel(nil)
		select {
		case <-c.over:
			return nil, nil, cs.gone()
		case <-ctx.Done():
			return nil, nil, statusOf(context.Cause(ctx))
		}
	case barred:
		cancel(nil)
		return nil, nil, cs.refuse(refusedBarred, codes.Canceled, fmt.Errorf("call %d was quiesced before it came", k.number))
	}
	return inner, k, nil
}

// enlist counts a call in, unless it was quiesced before it came or the client has ended.
func (c *client) enlist(k *call) (barred, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return false, true
	}
	if n := k.number; n != 0 && (n < c.mu.barredBelow || slices.Contains(c.mu.barred, n)) {
		return true, false
	}
	c.mu.calls[k] = struct{}{}
	c.running.Add(1)
	return false, false
}

// end lets go of everything that the call used.
func (k *call) end() {
	k.cancel(nil)
	for _, r := range k.regions {
		r.users.Done()
	}
	if k.bytes > 0 {
		k.of.bytes.give(k.bytes)
	}
	c := k.of
	c.mu.Lock()
	delete(c.mu.calls, k)
	c.mu.Unlock()
	close(k.done)
	c.running.Done()
}

// use finds a region and keeps it mapped until the call ends. It returns the region's place in the call's table.
func (k *call) use(id uint32) (place int, ok bool) {
	for i, r := range k.regions {
		if r.id == id {
			return i, true
		}
	}
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	r := k.of.mu.regions[id]
	if r == nil {
		return 0, false
	}
	r.users.Add(1)
	k.regions = append(k.regions, r)
	return len(k.regions) - 1, true
}

// named is the keys of a handle, as they are now.
func (c *client) named(id uint64) (handle, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.mu.handles[id]
	if h == nil {
		return handle{}, false
	}
	return *h, true
}

// quiesce cancels calls and waits until they have let go; numbers none: all that began before the call own.
func (c *client) quiesce(ctx context.Context, own *call, numbers []uint64) (ended int, err error) {
	c.mu.Lock()
	var targets []*call
	for k := range c.mu.calls {
		if k != own && k.meant(own, numbers) {
			targets = append(targets, k)
		}
	}
	if len(numbers) == 0 {
		c.mu.barredBelow = max(c.mu.barredBelow, own.number)
	}
	c.mu.barred = append(c.mu.barred, numbers...)
	c.mu.barred = slices.Delete(c.mu.barred, 0, max(0, len(c.mu.barred)-maxBarred))
	c.mu.Unlock()
	for _, k := range targets {
		k.cancel(errQuiesced)
	}
	for _, k := range targets {
		select {
		case <-k.done:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	c.of.count.quiesced.Add(uint64(len(targets)))
	return len(targets), nil
}

func (k *call) meant(own *call, numbers []uint64) bool {
	if len(numbers) == 0 {
		return own.number == 0 || k.number < own.number
	}
	return k.number != 0 && slices.Contains(numbers, k.number)
}

// deregister lets go of regions; a region that is not there is ErrNotFound, and the others are let go of all the same.
func (c *client) deregister(ids []uint32) (err error) {
	c.mu.Lock()
	var out []*region
	if len(ids) == 0 {
		for id := range c.mu.regions {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		r := c.mu.regions[id]
		if r == nil {
			err = fmt.Errorf("region %d: %w", id, ports.ErrNotFound)
			continue
		}
		delete(c.mu.regions, id)
		out = append(out, r)
	}
	c.mu.Unlock()
	for _, r := range out {
		err = errors.Join(err, c.release(r))
	}
	return err
}

// release waits until no call uses the region, and unmaps it. Precondition: it is in no map any more. Memory that a transport cannot let
// go of stays mapped, and counted.
func (c *client) release(r *region) error {
	r.users.Wait()
	if r.memory.ID != 0 {
		if err := c.of.pool.DeregisterMemory(context.Background(), r.memory.ID); err != nil && !errors.Is(err, ports.ErrNotFound) {
			c.of.count.stuck.Add(1)
			return fmt.Errorf("region %d stays mapped: %w", r.id, err)
		}
	}
	err := r.mapped.unmap()
	c.giveBack(r.mapped.hostBytes())
	return err
}

// end lets go of all that the client has, and returns when that is done. Twice is allowed.
func (c *client) end(why ending) {
	c.mu.Lock()
	if c.mu.ended {
		c.mu.Unlock()
		<-c.over
		return
	}
	c.mu.ended = true
	running := make([]*call, 0, len(c.mu.calls))
	for k := range c.mu.calls {
		running = append(running, k)
	}
	c.mu.Unlock()
	for _, k := range running {
		k.cancel(errLeft)
	}
	c.running.Wait()
	c.of.count.ended[why].Add(1)
	for id := range c.mu.writes { // nothing else touches the client any more
		_ = c.of.pool.AbortWrite(id)
	}
	for id := range c.mu.reads {
		_ = c.of.pool.CloseRead(id)
	}
	_ = c.deregister(nil) // what is stuck is counted
	c.mu.Lock()
	clear(c.mu.writes)
	clear(c.mu.reads)
	clear(c.mu.handles)
	c.mu.Unlock()
	c.of.mu.Lock()
	delete(c.of.mu.byID, c.id)
	c.of.mu.Unlock()
	close(c.over)
}

// add takes in a region that is mapped, and names it. On an error the mapping stays the caller's.
func (c *client) add(m mapping) (*region, error) {
	memory := ports.Memory{Region: m.region}
	if m.sealed { // transports copy by themselves, and a file that is cut under them would be the end of this process
		registered, err := c.of.pool.RegisterMemory(context.Background(), m.region)
		if err != nil {
			return nil, err
		}
		memory = registered
	}
	if r := c.enter(memory, m); r != nil {
		return r, nil
	}
	if memory.ID != 0 {
		_ = c.of.pool.DeregisterMemory(context.Background(), memory.ID)
	}
	return nil, c.of.gone()
}

// enter names a region, or returns nil when the client has ended.
func (c *client) enter(memory ports.Memory, m mapping) *region {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return nil
	}
	c.mu.lastRegion++
	r := &region{id: c.mu.lastRegion, memory: memory, mapped: m}
	c.mu.regions[r.id] = r
	c.of.count.regions.Add(1)
	return r
}

// mayMap counts a region of n bytes in before it is mapped; giveBack counts its bytes out when it could not be. mapped is called once it
// is in the map, or will not be; nil with an error.
func (c *client) mayMap(n uint64) (mapped func(), err error) {
	c.mu.Lock()
	have, most := uint64(len(c.mu.regions))+c.mu.mapping, c.of.bounds.MaxRegions
	if have < most {
		c.mu.mapping++
	}
	c.mu.Unlock()
	if have >= most {
		return nil, c.of.refuse(refusedLimit, codes.ResourceExhausted, &domain.LimitError{What: "regions of a client", Value: have + 1, Limit: most})
	}
	mapped = func() { c.less(&c.mu.mapping) }
	if err := c.of.takeMapped(n); err != nil {
		mapped()
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.regionBytes += n
	return mapped, nil
}

// less counts one out of a number that mu guards.
func (c *client) less(n *uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n--
}

func (c *client) giveBack(n uint64) {
	c.of.giveMapped(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.regionBytes -= n
}
