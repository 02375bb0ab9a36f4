package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// Mixed is the options of gets and puts at once. A get reads a range of an object that its thread walks in a session, a put
// stores an object. Nothing becomes local at the reader, so that all bytes go through its arenas. The fields are named after
// the flags.
type Mixed struct {
	Threads     []int // one row each: so many get, and so many put
	CallBytes   uint64
	Calls       int // of a thread in a round
	Rounds      int // measured, after one that warms up
	SharedArena bool
	ScratchMiB  int
	Runs        int
	Verify      bool
	MaxMemory   uint64
	Transport   string
	Link        LinkSpec
	Places      int
	Root        fs.FS // as Layerwise's
	Ceilings    *Ceilings

	Errors   io.Writer
	Progress *Progress
}

// Check refuses options that cannot be run. Every error is an OptionError.
func (o *Mixed) Check() error {
	if len(o.Threads) == 0 {
		return badOption("--threads", "", "want 1 or more numbers of threads")
	}
	for _, n := range o.Threads {
		if err := checkBetween("--threads", n, 1, maxRanks); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		flag          string
		value, lo, hi int
	}{
		{"--calls", o.Calls, 1, domain.MaxPutRanges},
		{"--rounds", o.Rounds, 1, maxRequests},
		{"--scratch-mib", o.ScratchMiB, 1, maxMiB},
		{"--runs", o.Runs, 1, maxRuns},
		{"--link-delay-us", o.Link.DelayUs, 0, maxLinkDelay},
	} {
		if err := checkBetween(c.flag, c.value, c.lo, c.hi); err != nil {
			return err
		}
	}
	if o.CallBytes == 0 || o.CallBytes > uint64(o.ScratchMiB)*mibBytes {
		return badOption("--call-bytes", o.CallBytes, "want 1 to the arena's %d", uint64(o.ScratchMiB)*mibBytes)
	}
	if err := o.Link.check(); err != nil {
		return err
	}
	if o.Transport == TransportSHM && o.SharedArena {
		return badOption("--shared-arena", true, "not available over shm: the comparison reads and writes by one transport")
	}
	return checkTransport(o.Transport, o.Link, nil)
}

// Run runs a row for each number of threads and gives each to emit as it is there. Errors are as Layerwise.Run's.
func (o *Mixed) Run(ctx context.Context, open OpenCluster, emit func(MixedRow)) error {
	if err := o.Check(); err != nil {
		return err
	}
	defer o.Progress.Clear()
	var errs []error
	for _, threads := range o.Threads {
		var runs []MixedRow
		for range o.Runs {
			row, err := o.run(ctx, open, threads, mixedParts)
			if row != nil {
				runs = append(runs, *row)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("row of %d threads: %w", threads, err))
				break
			}
		}
		if len(runs) > 0 {
			emit(medianMixed(runs))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// mixedPart is what runs in a window.
type mixedPart struct{ gets, puts bool }

// mixedParts is a row's windows: each kind alone, and both.
var mixedParts = []mixedPart{{gets: true}, {puts: true}, {gets: true, puts: true}}

// mixedRun is one run of one row, over nodes of its own.
type mixedRun struct {
	o        *Mixed
	threads  int
	limiter  *Limiter
	failures *failures
	cluster  *Cluster
	getters  []*mixedThread
	putters  []*mixedThread
	rates    map[mixedPart]*mixedRates
	noise    Noise
}

// mixedThread calls again and again. Its memory has a place for each call of a round, with guards around, so that all of them
// can be checked when the round is over.
type mixedThread struct {
	mem     *buffer
	stride  uint64
	session ports.SessionID // of one that gets
	calls   []mixedCall
	took    time.Duration // of the round's calls, from the gate on
}

type mixedCall struct {
	name string
	at   uint64 // where in the object the call's bytes are
	get  ports.GetBatch
	put  ports.PutBatch
	out  [1]ports.Result
	err  error
}

// mixedRates adds up the windows of a part.
type mixedRates struct {
	bytes  [2]uint64 // got, put
	time   [2]time.Duration
	window time.Duration // until the last of both
}

func (o *Mixed) run(ctx context.Context, open OpenCluster, threads int, parts []mixedPart) (row *MixedRow, err error) {
	r := &mixedRun{o: o, threads: threads, limiter: NewLimiter(o.Places), failures: newFailures(o.Errors, o.Progress), rates: map[mixedPart]*mixedRates{}}
	if err := checkMemory("it", r.needs(), o.MaxMemory); err != nil {
		return nil, err
	}
	if r.cluster, err = open(ctx, r.spec()); err != nil {
		return nil, fmt.Errorf("open nodes: %w", err)
	}
	defer func() { // as a restore's
		if row != nil {
			err = errors.Join(err, r.addShare(row))
		}
	}()
	defer func() { err = errors.Join(err, r.cluster.Close()) }()
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	for _, p := range parts {
		if err := r.part(ctx, p); err != nil {
			return nil, err
		}
	}
	return r.figures(), r.failures.err()
}

func (r *mixedRun) stride() uint64 { return roundUp(r.o.CallBytes, guardBytes) + guardBytes }

func (r *mixedRun) objectRoom() uint64 { return roundUp(r.o.CallBytes, defaultPageBytes) }

func (r *mixedRun) ownerBytes() uint64 {
	read := roundUp(times(r.o.CallBytes, uint64(r.o.Calls)), defaultPageBytes)
	put := times(r.objectRoom(), uint64(r.o.Calls))
	return times(read+put, uint64(r.threads))
}

func (r *mixedRun) needs() []MemoryNeed {
	return []MemoryNeed{
		{"other node's medium", r.ownerBytes()},
		{"arenas", times(uint64(r.o.ScratchMiB), mibBytes, 2)},
		{"callers' memory", times(r.stride(), 2, uint64(r.threads), uint64(r.o.Calls))},
		{"reader's medium", r.objectRoom()},
	}
}

// spec is the caller's node, whose medium is of no use here, and the owner.
func (r *mixedRun) spec() ClusterSpec {
	arena := uint64(r.o.ScratchMiB) * mibBytes
	s := ClusterSpec{Transport: r.o.Transport, Locality: domain.LocalityOff, Link: r.o.Link, Copier: r.limiter.Copier, SharedArena: r.o.SharedArena,
		Nodes: []NodeSpec{
			{MediumBytes: r.objectRoom(), PageBytes: defaultPageBytes, GetArena: arena, PutArena: arena},
			{MediumBytes: r.ownerBytes(), PageBytes: defaultPageBytes},
		}}
	if r.o.SharedArena {
		s.Fetch = FetchWhole
	}
	return s
}

func (r *mixedRun) close() error {
	var errs []error
	for _, t := range append(r.getters, r.putters...) {
		if t.session != 0 {
			errs = append(errs, r.cluster.Nodes[0].Pool.CloseRead(t.session))
		}
		errs = append(errs, t.mem.close())
	}
	return errors.Join(errs...)
}

// prepare makes the threads and seeds what is read: each thread has an object of its own, and each of its calls a part of it.
func (r *mixedRun) prepare(ctx context.Context) error {
	for range r.threads {
		for _, list := range []*[]*mixedThread{&r.getters, &r.putters} {
			t := &mixedThread{stride: r.stride(), calls: make([]mixedCall, r.o.Calls)}
			var err error
			if t.mem, err = openBuffer(guardBytes + times(t.stride, uint64(r.o.Calls))); err != nil {
				return err
			}
			*list = append(*list, t)
		}
	}
	return inParallel(r.threads, func(i int) error { return r.seed(ctx, i) })
}

// seed puts the object that thread i walks, a put-range for each call, and lays its calls out.
func (r *mixedRun) seed(ctx context.Context, i int) error {
	t, n := r.getters[i], r.o.CallBytes
	name := fmt.Sprintf("get/t%d", i)
	var err error
	if t.session, err = r.cluster.Nodes[0].Pool.OpenRead(ctx, namespace); err != nil {
		return err
	}
	put := ports.PutBatch{Namespace: namespace, Keys: []string{name}, Sizes: []uint64{n * uint64(r.o.Calls)}, End: []uint32{uint32(r.o.Calls)},
		Regions: []ports.Memory{{Region: t.mem.region()}}}
	for c := range r.o.Calls {
		at := uint64(c) * n
		if err := r.limiter.Do(ctx, func() { content.Fill(t.place(c, n), contentKey(name), at) }); err != nil {
			return err
		}
		put.Ranges = append(put.Ranges, domain.Range{Off: at, Len: n, RegionOff: t.off(c)})
		t.get(c, name, n)
	}
	var out [1]ports.Result
	if err := r.cluster.Nodes[1].Pool.BatchPutRanges(ctx, &put, out[:]); err != nil || out[0].Status != ports.Stored {
		return fmt.Errorf("seed key %q: status %s, want %s, error %w", namespace+"/"+name, out[0].Status, ports.Stored, errors.Join(err, out[0].Err))
	}
	return nil
}

func (t *mixedThread) off(call int) uint64 { return guardBytes + uint64(call)*t.stride }

// place is where a call's bytes go or come from.
func (t *mixedThread) place(call int, n uint64) []byte { return t.mem.b[t.off(call) : t.off(call)+n] }

func (t *mixedThread) get(call int, name string, n uint64) {
	at := uint64(call) * n
	t.calls[call] = mixedCall{name: name, at: at, get: ports.GetBatch{Namespace: namespace, Keys: []string{name}, End: []uint32{1},
		Ranges: []domain.Range{{Off: at, Len: n, RegionOff: t.off(call)}}, Regions: []ports.Memory{{Region: t.mem.region()}}, Session: t.session}}
}

func (t *mixedThread) put(call int, name string, n uint64, to ports.PeerID) {
	t.calls[call] = mixedCall{name: name, put: ports.PutBatch{Namespace: namespace, Keys: []string{name}, Sizes: []uint64{n}, End: []uint32{1},
		Ranges: []domain.Range{{Len: n, RegionOff: t.off(call)}}, Regions: []ports.Memory{{Region: t.mem.region()}}, To: to}}
}

// part runs the rounds of one part, the first unmeasured.
func (r *mixedRun) part(ctx context.Context, p mixedPart) error {
	rates := &mixedRates{}
	r.rates[p] = rates
	var noise *noiseMeter
	for round := range r.o.Rounds + 1 {
		r.o.Progress.Step(fmt.Sprintf("%d threads: round", r.threads), uint64(round), uint64(r.o.Rounds))
		if err := r.arm(ctx, p, round); err != nil {
			return err
		}
		if round == 1 {
			noise = startNoise(r.cluster, r.o.Link, r.o.Root)
		}
		r.window(ctx, p)
		if ctx.Err() != nil { // calls that were cut short are no failures
			return context.Cause(ctx)
		}
		bad, err := r.check(ctx, p)
		if err != nil {
			return err
		}
		if round > 0 && bad == 0 {
			rates.add(r, p)
		}
	}
	r.noise = r.noise.worse(noise.stop())
	return nil
}

func (r *mixedRun) active(p mixedPart) (gets, puts []*mixedThread) {
	if p.gets {
		gets = r.getters
	}
	if p.puts {
		puts = r.putters
	}
	return gets, puts
}

// arm poisons what gets write to and makes what puts store.
func (r *mixedRun) arm(ctx context.Context, p mixedPart, round int) error {
	gets, puts := r.active(p)
	return inParallel(len(gets)+len(puts), func(i int) error {
		if i < len(gets) {
			return r.limiter.Do(ctx, func() { content.Poison(gets[i].mem.b) })
		}
		t := puts[i-len(gets)]
		for c := range t.calls {
			name := fmt.Sprintf("put/%v/r%d/t%d/c%d", p.gets, round, i-len(gets), c)
			t.put(c, name, r.o.CallBytes, r.cluster.Nodes[1].ID)
			if err := r.limiter.Do(ctx, func() { content.Fill(t.place(c, r.o.CallBytes), contentKey(name), 0) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// window runs all calls of all threads of a part, which start at once.
func (r *mixedRun) window(ctx context.Context, p mixedPart) {
	gets, puts := r.active(p)
	pool := r.cluster.Nodes[0].Pool
	all := append(append([]*mixedThread(nil), gets...), puts...)
	var there sync.WaitGroup
	there.Add(len(all))
	open := make(chan struct{})
	var begin time.Time
	_ = inParallel(len(all)+1, func(i int) error {
		if i == len(all) {
			there.Wait()
			begin = time.Now()
			close(open)
			return nil
		}
		t := all[i]
		there.Done()
		<-open
		for c := range t.calls {
			k := &t.calls[c]
			if i < len(gets) {
				k.err = pool.BatchGetRanges(ctx, &k.get, k.out[:])
			} else {
				k.err = pool.BatchPutRanges(ctx, &k.put, k.out[:])
			}
		}
		t.took = time.Since(begin)
		return nil
	})
}

// check verifies a round, and takes what it put away again, so that the next one finds room.
func (r *mixedRun) check(ctx context.Context, p mixedPart) (bad int, err error) {
	gets, puts := r.active(p)
	var wrong atomic.Int64
	err = inParallel(len(gets)+len(puts), func(i int) error {
		if i < len(gets) {
			for c := range gets[i].calls {
				if !r.checkGet(ctx, gets[i], c) {
					wrong.Add(1)
				}
			}
			return context.Cause(ctx)
		}
		for c := range puts[i-len(gets)].calls {
			if !r.checkPut(ctx, puts[i-len(gets)], c) {
				wrong.Add(1)
			}
		}
		return context.Cause(ctx)
	})
	return int(wrong.Load()), err
}

func (r *mixedRun) checkGet(ctx context.Context, t *mixedThread, c int) bool {
	k := &t.calls[c]
	if k.err != nil || k.out[0].Status != ports.Hit {
		r.failures.read("read of key %q: status %s, want %s, error %v", namespace+"/"+k.name, k.out[0].Status, ports.Hit, errors.Join(k.err, k.out[0].Err))
		return false
	}
	if !r.o.Verify {
		return true
	}
	at, before, behind := -1, -1, -1
	off := t.off(c)
	err := r.limiter.Do(ctx, func() {
		at = content.Check(t.place(c, r.o.CallBytes), contentKey(k.name), k.at)
		before = content.CheckPoison(t.mem.b[off-guardBytes : off])
		behind = content.CheckPoison(t.mem.b[off+r.o.CallBytes : off+t.stride])
	})
	if err == nil && (at >= 0 || before >= 0 || behind >= 0) {
		r.failures.read("read of key %q: wrong byte at offset %d, in the guard before at %d, behind at %d (-1: none)", namespace+"/"+k.name, at, before, behind)
	}
	return at < 0 && before < 0 && behind < 0
}

// checkPut reads at the owner what was put, into where it came from.
func (r *mixedRun) checkPut(ctx context.Context, t *mixedThread, c int) bool {
	k := &t.calls[c]
	if k.err != nil || k.out[0].Status != ports.Stored {
		r.failures.put("put of key %q: status %s, want %s, error %v", namespace+"/"+k.name, k.out[0].Status, ports.Stored, errors.Join(k.err, k.out[0].Err))
		return false
	}
	b := t.place(c, r.o.CallBytes)
	if r.limiter.Do(ctx, func() { content.Poison(b) }) != nil {
		return true // the run has ended; nothing is said about what was not looked at
	}
	owner := r.cluster.Nodes[1].Pool
	res := owner.Get(ctx, namespace, k.name, ports.HostRegionOf(b))
	at := -1
	if err := r.limiter.Do(ctx, func() { at = content.Check(b, contentKey(k.name), 0) }); err != nil {
		return true
	}
	if res.Status != ports.Hit || r.o.Verify && at >= 0 {
		r.failures.read("after a put: read of key %q: status %s, wrong byte at offset %d (-1: none)", namespace+"/"+k.name, res.Status, at)
		return false
	}
	var out [1]ports.Removal
	if err := owner.Remove(ctx, namespace, []string{k.name}, out[:]); (err != nil || !out[0].Found) && ctx.Err() == nil {
		r.failures.put("remove of key %q: found %v, error %v", namespace+"/"+k.name, out[0].Found, err)
		return false
	}
	return true
}

// add takes in a window whose calls were all right.
func (m *mixedRates) add(r *mixedRun, p mixedPart) {
	gets, puts := r.active(p)
	var window time.Duration
	for kind, threads := range [][]*mixedThread{gets, puts} {
		var last time.Duration
		for _, t := range threads {
			m.bytes[kind] += r.o.CallBytes * uint64(len(t.calls))
			last = max(last, t.took)
		}
		m.time[kind] += last
		window = max(window, last)
	}
	m.window += window
}

func (m *mixedRates) rate(kind int) float64 {
	if m == nil {
		return 0
	}
	return gibPerSecond(m.bytes[kind], m.time[kind])
}

// total is all bytes over the time until the last call of either kind.
func (m *mixedRates) total() float64 {
	if m == nil {
		return 0
	}
	return gibPerSecond(m.bytes[0]+m.bytes[1], m.window)
}

func (r *mixedRun) figures() *MixedRow {
	failed, _ := r.failures.counts()
	gets, puts, both := r.rates[mixedParts[0]], r.rates[mixedParts[1]], r.rates[mixedParts[2]]
	row := &MixedRow{Verified: r.o.Verify, Noise: r.noise}
	row.Values = [NumMixedColumns]float64{
		MixedThreads:      float64(r.threads),
		MixedCallKiB:      float64(r.o.CallBytes) / 1024,
		MixedGetAlone:     gets.rate(0),
		MixedPutAlone:     puts.rate(1),
		MixedGet:          both.rate(0),
		MixedPut:          both.rate(1),
		MixedTotal:        both.total(),
		MixedFailedReads:  float64(failed),
		MixedLinkRate:     r.noise.Gbps,
		MixedLinkDelay:    microseconds(r.noise.Delay),
		MixedForeign:      100 * r.noise.Foreign,
		MixedSharedArenas: map[bool]float64{false: 2, true: 1}[r.o.SharedArena],
	}
	return row
}

// addShare tells the row as a share of what its way gives both directions together: twice a modelled link, or what the best bare loop
// over such calls reaches, whose copying both directions share.
func (r *mixedRun) addShare(row *MixedRow) error {
	ceiling, err := 2*linkGibps(r.o.Link), error(nil)
	if !r.o.Link.modelled() {
		ceiling, err = r.o.Ceilings.rate(r.o.Transport, r.o.Link, r.o.CallBytes)
	}
	row.Values[MixedCeiling], row.Values[MixedShare] = ceiling, percent(row.Values[MixedTotal], ceiling)
	return err
}
