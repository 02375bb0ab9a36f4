package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// whole is what ranges are compared with: whole objects through one arena under one lock per direction, as the reference did
// before it fetched ranges. It is no mode of a node; it is made of a node that has no peers and of a bare pipe to the owner.
//
// A get reads what is local from the node, with no lock of its own. For what is missing it takes the lock for gets and keeps it
// over all of: asking where the objects lie, the transfer of the whole objects into the arena, their install by one put
// from the arena into the node, and, beside it, the copies of the ranges asked for to the caller. A batch larger than the arena goes in
// several rounds under the same lock. Asking belongs under it: the reference took it out only with the change that this stands
// against. A put to the owner reserves, then takes the lock for puts over the copy into the arena and the transfer, and commits:
// its round trips lie outside, which is kinder than the reference's lock was. Nothing is copied twice, and the caller's memory
// is reached straight from the arena.
//
// With the shared arena there is one arena and one lock for both directions. With the node's locality off, as for bench mixed,
// it is the structure alone that is compared: the ranges asked for are fetched, not the objects, and nothing is installed.
type whole struct {
	ports.Pool // the node without peers; what is not defined below asks it, and it alone
	install    bool
	pipe       *pipe
	copier     ports.Copier
	gets, puts *lockedArena // the same one when it is shared
	stop       func() error // of the node
}

var _ ports.Pool = (*whole)(nil)

// lockedArena is flat memory of which one call at a time has all.
type lockedArena struct {
	held   chan struct{} // capacity 1: the lock, which a context can stop waiting for
	buffer *buffer
	region ports.HostRegion
}

func openLockedArena(bytes uint64) (*lockedArena, error) {
	b, err := openBuffer(bytes)
	if err != nil {
		return nil, err
	}
	clear(b.b) // so that no transfer pays for the first touch, as none of a node's arena does
	return &lockedArena{held: make(chan struct{}, 1), buffer: b, region: b.region()}, nil
}

func (a *lockedArena) lock(ctx context.Context) error {
	select {
	case a.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *lockedArena) unlock() { <-a.held }

// openWhole opens the comparison in node 0's place.
func openWhole(ctx context.Context, to way, spec *ClusterSpec, owner ports.PeerID) (*whole, error) {
	size := spec.Nodes[0]
	w := &whole{install: spec.Locality != domain.LocalityOff, copier: dram.NewCopier()}
	if spec.Copier != nil {
		w.copier = spec.Copier(w.copier)
	}
	alone := size
	alone.GetArena, alone.PutArena = 0, 0
	n, stop, err := openNode(ctx, nil, nodeID(0), spec, alone)
	if err != nil {
		return nil, err
	}
	w.Pool, w.stop = n.Pool, stop
	if w.gets, err = openLockedArena(size.GetArena); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	w.puts = w.gets
	if !spec.SharedArena {
		if w.puts, err = openLockedArena(size.PutArena); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	if w.pipe, err = openPipe(ctx, to, owner, namespace); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close ends what openWhole made, as far as it came.
func (w *whole) Close() error {
	var errs []error
	if w.pipe != nil {
		errs = append(errs, w.pipe.close())
	}
	errs = append(errs, w.stop())
	if w.gets != nil {
		errs = append(errs, w.gets.buffer.close())
	}
	if w.puts != nil && w.puts != w.gets {
		errs = append(errs, w.puts.buffer.close())
	}
	return errors.Join(errs...)
}

// Stats are the node's, with what the pipe moved.
func (w *whole) Stats() ports.Stats {
	s := w.Pool.Stats()
	for i, n := range w.pipe.counts() {
		s.Wire[i] += n
	}
	return s
}

// Get reads one whole object.
func (w *whole) Get(ctx context.Context, namespace, name string, b ports.HostRegion) ports.Result {
	g := ports.GetBatch{Namespace: namespace, Keys: []string{name}, End: []uint32{1}, Ranges: []domain.Range{{Len: b.Len()}},
		Regions: []ports.Memory{{Region: b}}}
	var out [1]ports.Result
	if err := w.BatchGetRanges(ctx, &g, out[:]); err != nil {
		return ports.Result{Status: ports.Invalid, Err: err}
	}
	return out[0]
}

// BatchGetRanges reads what is local from the node, and the rest as the type says.
func (w *whole) BatchGetRanges(ctx context.Context, g *ports.GetBatch, out []ports.Result) error {
	if err := w.Pool.BatchGetRanges(ctx, g, out); err != nil {
		return err
	}
	f := wholeFetch{w: w, ctx: ctx, g: g, out: out}
	for i := range out {
		if out[i].Status == ports.NotFound {
			f.missing = append(f.missing, i)
		}
	}
	if len(f.missing) > 0 {
		f.run()
	}
	return nil
}

// wholeFetch is the missing keys of one call.
type wholeFetch struct {
	w       *whole
	ctx     context.Context
	g       *ports.GetBatch
	out     []ports.Result
	missing []int // places of keys
	found   []located
}

func (f *wholeFetch) run() {
	if err := f.w.gets.lock(f.ctx); err != nil {
		f.fail(f.missing, ports.Cancelled, err)
		return
	}
	defer f.w.gets.unlock()
	f.skipLocal()
	if len(f.missing) == 0 || !f.locate(f.missing) {
		return
	}
	for lo := 0; lo < len(f.missing); {
		hi := f.roundEnd(lo)
		f.round(lo, hi)
		lo = hi
	}
}

// skipLocal leaves out what another call installed while this one waited for the lock.
func (f *wholeFetch) skipLocal() {
	var still []int
	for _, i := range f.missing {
		one, res := f.only(i), [1]ports.Result{}
		if err := f.w.Pool.BatchGetRanges(f.ctx, &one, res[:]); err == nil && res[0].Status == ports.Hit {
			f.out[i] = res[0]
			continue
		}
		still = append(still, i)
	}
	f.missing = still
}

// only is the call's i-th key as a call of its own.
func (f *wholeFetch) only(i int) ports.GetBatch {
	ranges := f.rangesOf(i)
	return ports.GetBatch{Namespace: f.g.Namespace, Keys: f.g.Keys[i : i+1], End: []uint32{uint32(len(ranges))}, Ranges: ranges, Regions: f.g.Regions}
}

func (f *wholeFetch) rangesOf(i int) []domain.Range {
	lo := uint32(0)
	if i > 0 {
		lo = f.g.End[i-1]
	}
	return f.g.Ranges[lo:f.g.End[i]]
}

// locate finds where keys lie at the owner. It reports false when the owner did not answer: all of them have failed.
func (f *wholeFetch) locate(keys []int) bool {
	found, err := f.w.pipe.locate(f.ctx, f.names(keys))
	if err != nil {
		f.fail(keys, unanswered(f.ctx), err)
		return false
	}
	f.found = found
	return true
}

// unanswered is what a control call without an answer amounts to.
func unanswered(ctx context.Context) ports.Status {
	if ctx.Err() != nil {
		return ports.Cancelled
	}
	return ports.PeerUnavailable
}

func (f *wholeFetch) names(keys []int) []string {
	names := make([]string, len(keys))
	for j, i := range keys {
		names[j] = f.g.Keys[i]
	}
	return names
}

func (f *wholeFetch) fail(keys []int, s ports.Status, err error) {
	for _, i := range keys {
		f.out[i] = ports.Result{Status: s, Err: err}
	}
}

// roundEnd is how many keys from lo on fit the arena together; one at least, so that one that is too large is told.
func (f *wholeFetch) roundEnd(lo int) int {
	var sum uint64
	for hi := lo; hi < len(f.missing); hi++ {
		for _, r := range f.runs(hi) {
			sum += roundUp(r.Len, domain.ArenaAlign)
		}
		if sum > f.w.gets.region.Len() {
			return max(hi, lo+1)
		}
	}
	return len(f.missing)
}

// runs is what is fetched of a missing key: the object, or the ranges asked for.
func (f *wholeFetch) runs(j int) []domain.Run {
	if f.w.install {
		return []domain.Run{{Len: f.found[j].layout.Size}}
	}
	var runs []domain.Run
	for _, r := range f.rangesOf(f.missing[j]) {
		runs = append(runs, domain.Run{Off: r.Off, Len: r.Len})
	}
	return runs
}

// round fetches, installs and copies out the keys [lo, hi). A lease that would end meanwhile is asked for again.
func (f *wholeFetch) round(lo, hi int) {
	keys := f.missing[lo:hi]
	for j := lo; j < hi; j++ {
		if !f.found[j].good(f.w.pipe.clock.Now()) {
			again, err := f.w.pipe.locate(f.ctx, f.names(keys))
			if err != nil {
				f.fail(keys, unanswered(f.ctx), err)
				return
			}
			copy(f.found[lo:hi], again)
			break
		}
	}
	var jobs []transferJob
	var of []int
	at := uint64(0)
	for j, i := range keys {
		l := &f.found[lo+j]
		var need uint64
		for _, r := range f.runs(lo + j) {
			need += roundUp(r.Len, domain.ArenaAlign)
		}
		switch size := l.layout.Size; {
		case l.status != ports.KeyHere:
			f.fail(keys[j:j+1], ports.NotFound, nil)
		case !inside(f.rangesOf(i), size):
			f.fail(keys[j:j+1], ports.Invalid, fmt.Errorf("range past the %d bytes of the object: %w", size, domain.ErrInvalid))
		case need > f.w.gets.region.Len():
			f.fail(keys[j:j+1], ports.TooLarge, fmt.Errorf("%d bytes of an object, arena of %d", need, f.w.gets.region.Len()))
		default:
			for _, r := range f.runs(lo + j) {
				jobs, of = append(jobs, transferJob{layout: l.layout, run: r, at: at}), append(of, lo+j)
				at += roundUp(r.Len, domain.ArenaAlign)
			}
		}
	}
	f.fetch(jobs, of)
}

func inside(ranges []domain.Range, size uint64) bool {
	for _, r := range ranges {
		if r.Off > size || r.Len > size-r.Off {
			return false
		}
	}
	return true
}

// fetch moves the jobs' objects into the arena, and on from there. of is their places in missing.
func (f *wholeFetch) fetch(jobs []transferJob, of []int) {
	errs, seen := f.w.pipe.transfer(ports.Read, ports.PurposeGet, f.w.gets.region, jobs)
	for _, j := range of {
		f.out[f.missing[j]] = ports.Result{Status: ports.Hit, Source: ports.FromArena, Size: f.found[j].layout.Size}
	}
	for k, j := range of {
		i := f.missing[j]
		switch {
		case errs[k] != nil:
			f.fail([]int{i}, ports.TransferFailed, errs[k])
		case seen[k] > f.found[j].until:
			f.fail([]int{i}, ports.Late, nil)
		default:
			f.out[i].Fetched += jobs[k].run.Len
		}
	}
	var good []int
	for k, j := range of {
		if f.out[f.missing[j]].Status == ports.Hit {
			good = append(good, k)
		}
	}
	// Both read the arena and nothing of each other, so neither waits for the other.
	_ = inParallel(2, func(i int) error {
		switch {
		case i == 0:
			f.copyOut(jobs, of, good)
		case f.w.install:
			f.installAll(jobs, of, good)
		}
		return nil
	})
}

// installAll makes the fetched objects local by one put. One that has no room, or is there already, is a hit all the same.
func (f *wholeFetch) installAll(jobs []transferJob, of, good []int) {
	put := ports.WholeBatch{Namespace: f.g.Namespace, Regions: []ports.Memory{{Region: f.w.gets.region}}}
	for _, k := range good {
		put.Keys = append(put.Keys, f.g.Keys[f.missing[of[k]]])
		put.Targets = append(put.Targets, ports.Target{Off: jobs[k].at, Len: jobs[k].layout.Size})
	}
	_ = f.w.BatchPut(f.ctx, &put, make([]ports.Result, len(put.Keys)))
}

func (f *wholeFetch) copyOut(jobs []transferJob, of, good []int) {
	var ops []ports.CopyOp
	var owner []int
	for _, k := range good {
		i := f.missing[of[k]]
		for _, r := range f.rangesOf(i) {
			if run := jobs[k].run; r.Off < run.Off || r.Off+r.Len > run.End() {
				continue // another job's
			}
			ops = append(ops, ports.CopyOp{Dst: f.g.Regions[r.Region].Region, DstOff: r.RegionOff, Src: f.w.gets.region, SrcOff: jobs[k].at + r.Off - jobs[k].run.Off, Len: r.Len})
			owner = append(owner, i)
		}
	}
	errs := make([]error, len(ops))
	f.w.copier.Copy(f.ctx, ops, errs)
	for j, err := range errs {
		if err != nil {
			f.out[owner[j]] = ports.Result{Status: ports.CopyFailed, Err: err}
		}
	}
}

// BatchPutRanges puts to the owner through the arena for puts, or into the node.
func (w *whole) BatchPutRanges(ctx context.Context, p *ports.PutBatch, out []ports.Result) error {
	if p.To == "" {
		return w.Pool.BatchPutRanges(ctx, p, out)
	}
	u := wholePut{w: w, ctx: ctx, p: p, out: out}
	return u.run()
}

// wholePut is one put to the owner. Whatever a row of it answers but "done" fails its key: the workloads put fresh keys.
type wholePut struct {
	w        *whole
	ctx      context.Context
	p        *ports.PutBatch
	out      []ports.Result
	versions []domain.Version
}

func (u *wholePut) run() error {
	reply, err := u.reserve()
	if err != nil {
		return u.failAll(unanswered(u.ctx), err)
	}
	if err := u.w.puts.lock(u.ctx); err != nil {
		return u.failAll(ports.Cancelled, err)
	}
	err = u.write(reply)
	u.w.puts.unlock()
	if err != nil {
		return u.failAll(ports.TransferFailed, err)
	}
	return u.commit()
}

func (u *wholePut) failAll(s ports.Status, err error) error {
	for i := range u.out {
		u.out[i] = ports.Result{Status: s, Err: err}
	}
	return nil
}

func (u *wholePut) reserve() (*ports.ReserveReply, error) {
	for range u.p.Keys {
		u.versions = append(u.versions, domain.Version{Hi: rand.Uint64(), Lo: rand.Uint64()})
	}
	ctx, cancel := context.WithTimeout(u.ctx, pipeOpBound)
	defer cancel()
	reply := &ports.ReserveReply{}
	err := u.w.pipe.writer.Reserve(ctx, u.w.pipe.to, &ports.ReserveRequest{Via: u.w.pipe.transport.Kind(), Keys: wireKeys(u.p.Keys), Versions: u.versions, Sizes: u.p.Sizes}, reply)
	if err != nil {
		return nil, err
	}
	for i, s := range reply.Status {
		if s != ports.Reserved {
			return nil, fmt.Errorf("reserve of key %q: status %d, want %d", u.p.Keys[i], s, ports.Reserved)
		}
	}
	return reply, nil
}

// write assembles objects in the arena and moves them, as many at a time as fit.
func (u *wholePut) write(reply *ports.ReserveReply) error {
	capacity := u.w.puts.region.Len()
	for lo := 0; lo < len(u.p.Keys); {
		var jobs []transferJob
		var ops []ports.CopyOp
		at := uint64(0)
		hi := lo
		for ; hi < len(u.p.Keys) && at+u.p.Sizes[hi] <= capacity; hi++ {
			pages := rowsOf(reply.PageEnd, hi)
			jobs = append(jobs, transferJob{at: at, token: reply.Tokens[hi], run: domain.Run{Len: u.p.Sizes[hi]},
				layout: domain.Layout{Pages: reply.Pages[pages[0]:pages[1]], PageSize: u.w.pipe.page, Size: u.p.Sizes[hi]}})
			ranges := rowsOf(u.p.End, hi)
			for _, r := range u.p.Ranges[ranges[0]:ranges[1]] {
				ops = append(ops, ports.CopyOp{Dst: u.w.puts.region, DstOff: at + r.Off, Src: u.p.Regions[r.Region].Region, SrcOff: r.RegionOff, Len: r.Len})
			}
			at += roundUp(u.p.Sizes[hi], domain.ArenaAlign)
		}
		if hi == lo {
			return fmt.Errorf("object of %d bytes, arena of %d", u.p.Sizes[lo], capacity)
		}
		errs := make([]error, len(ops))
		u.w.copier.Copy(u.ctx, ops, errs)
		moved, _ := u.w.pipe.transfer(ports.Write, ports.PurposePut, u.w.puts.region, jobs)
		if err := errors.Join(append(errs, moved...)...); err != nil {
			return err
		}
		lo = hi
	}
	return nil
}

// rowsOf is where row i of a column of ends begins and ends.
func rowsOf(ends []uint32, i int) [2]uint32 {
	if i == 0 {
		return [2]uint32{0, ends[0]}
	}
	return [2]uint32{ends[i-1], ends[i]}
}

func (u *wholePut) commit() error {
	req := ports.CommitRequest{Keys: wireKeys(u.p.Keys), Versions: u.versions, SumEnd: make([]uint32, len(u.p.Keys)), LenEnd: u.p.End}
	for _, r := range u.p.Ranges {
		req.PutLens = append(req.PutLens, r.Len)
	}
	ctx, cancel := context.WithTimeout(u.ctx, pipeOpBound)
	defer cancel()
	var status []ports.CommitStatus
	if err := u.w.pipe.writer.Commit(ctx, u.w.pipe.to, &req, &status); err != nil {
		return u.failAll(unanswered(u.ctx), err)
	}
	for i, s := range status {
		u.out[i] = ports.Result{Status: ports.Stored, Size: u.p.Sizes[i]}
		if s != ports.CommitDone {
			u.out[i] = ports.Result{Status: ports.TransferFailed, Err: fmt.Errorf("commit of key %q: status %d, want %d", u.p.Keys[i], s, ports.CommitDone)}
		}
	}
	return nil
}

// Remove removes from the node and from the owner.
func (w *whole) Remove(ctx context.Context, namespace string, names []string, out []ports.Removal) error {
	if err := w.Pool.Remove(ctx, namespace, names, out); err != nil {
		return err
	}
	status, err := w.pipe.remove(ctx, names)
	for i := range out {
		if err != nil {
			out[i].Unanswered = append(out[i].Unanswered, w.pipe.to.ID)
			continue
		}
		out[i].Found = out[i].Found || status[i] == ports.KeyHere
	}
	return nil
}
