package app

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// counters are what Stats copies; each is moved where the thing happens.
type counters struct {
	getKeys, putKeys      [ports.NumStatuses]atomic.Uint64
	getSources            [ports.NumSources]atomic.Uint64
	outcomes              [ports.NumBatchKinds][ports.NumSources][ports.NumOutcomes]atomic.Uint64
	getCalls, putCalls    atomic.Uint64
	needed, duplicate     atomic.Uint64
	callerBytes           atomic.Uint64
	unverified            [ports.NumUnverified]atomic.Uint64
	corrupt               atomic.Uint64
	complained, unheard   atomic.Uint64
	complaints            [ports.NumComplaints]atomic.Uint64
	installedObjects      [domain.LocalByExtents + 1]atomic.Uint64
	installedBytes        [domain.LocalByExtents + 1]atomic.Uint64
	putBytes              atomic.Uint64
	installFailures       [ports.NumInstallFailures]atomic.Uint64
	downgrades            [ports.NumDowngrades]atomic.Uint64
	flightsJoined         atomic.Uint64
	pullQueued, pullDone  atomic.Uint64
	pullFailed, pullDrops atomic.Uint64
	pullDeduped           atomic.Uint64
	leasesRenewed         atomic.Uint64
	leasesStale           atomic.Uint64
	revokes               atomic.Uint64
}

func (c *counters) downgrade(d ports.Downgrade)           { c.downgrades[d].Add(1) }
func (c *counters) installFailure(f ports.InstallFailure) { c.installFailures[f].Add(1) }

func (c *counters) complaint(o ports.Complaint) { c.complaints[o].Add(1) }

func (c *counters) installed(by domain.Locality, size uint64) {
	c.installedObjects[by].Add(1)
	c.installedBytes[by].Add(size)
}

// keys counts what became of keys of a batch, by the way that their bytes went; FromNowhere: none moved.
func (c *counters) keys(kind ports.BatchKind, route ports.Source, s ports.Status, n int) {
	count := &c.getKeys
	if kind == ports.BatchPutRanges || kind == ports.BatchPutWhole {
		count = &c.putKeys
	}
	count[s].Add(uint64(n))
	c.outcomes[kind][route][s.Outcome()].Add(uint64(n))
}

// arrived counts bytes that crossed in time to be copied to a caller, by whether they were.
func (c *counters) arrived(bytes uint64, err error) {
	if err != nil {
		c.duplicate.Add(bytes)
		return
	}
	c.needed.Add(bytes)
}

func load(dst []uint64, src []atomic.Uint64) {
	for i := range src {
		dst[i] = src[i].Load()
	}
}

// observe tells of a batch that ends.
func (n *Node) observe(kind ports.BatchKind, began domain.Instant, moved *[ports.NumSources]uint64) {
	if n.p.Observer != nil {
		n.p.Observer.Batch(ports.BatchSample{Kind: kind, Took: n.now().Sub(began), Bytes: *moved})
	}
}

// Stats copies the node's counts.
func (n *Node) Stats() ports.Stats {
	c := &n.counters
	s := ports.Stats{
		GetCalls: c.getCalls.Load(), PutCalls: c.putCalls.Load(),
		NeededBytes: c.needed.Load(), DuplicateBytes: c.duplicate.Load(), CallerBytes: c.callerBytes.Load(), PutBytes: c.putBytes.Load(),
		CorruptRanges: c.corrupt.Load(), ComplaintsMade: c.complained.Load(), ComplaintsLost: c.unheard.Load(),
		FlightsJoined: c.flightsJoined.Load(),
		PullQueued:    c.pullQueued.Load(), PullDone: c.pullDone.Load(), PullFailed: c.pullFailed.Load(), PullDropped: c.pullDrops.Load(), PullDeduped: c.pullDeduped.Load(),
		LeasesRenewed: c.leasesRenewed.Load(), LeasesStale: c.leasesStale.Load(), Revokes: c.revokes.Load(),
	}
	load(s.UnverifiedBytes[:], c.unverified[:])
	load(s.Complaints[:], c.complaints[:])
	load(s.GetKeys[:], c.getKeys[:])
	load(s.PutKeys[:], c.putKeys[:])
	load(s.GetSources[:], c.getSources[:])
	for kind := range s.Outcomes {
		for route := range s.Outcomes[kind] {
			load(s.Outcomes[kind][route][:], c.outcomes[kind][route][:])
		}
	}
	load(s.InstalledObjects[:], c.installedObjects[:])
	load(s.InstalledBytes[:], c.installedBytes[:])
	load(s.InstallFailures[:], c.installFailures[:])
	load(s.Downgrades[:], c.downgrades[:])
	peers := n.peers.all()
	slices.SortFunc(peers, func(a, b *peer) int { return cmp.Compare(a.id, b.id) })
	for _, p := range peers {
		ps := p.stats()
		s.Peers = append(s.Peers, ps)
		for i, b := range ps.Wire {
			s.Wire[i] += b
		}
		s.DuplicateBytes += ps.Thrown[ports.PurposeGet] + ps.Thrown[ports.PurposePull]
	}
	for i, a := range n.arenas {
		if a == nil {
			continue
		}
		a.mu.Lock()
		s.ArenaWaits[i], s.ArenaUsed[i] = a.mu.waits, a.mu.slices.Used()
		s.ArenaWaiting[i], s.ArenaRounds[i] = uint64(a.mu.slices.Waiting()), a.mu.rounds
		a.mu.Unlock()
	}
	s.RevokesPending = n.revoker.pending()
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Sessions, s.Calls, s.Table = uint64(len(n.mu.sessions)), uint64(n.mu.calls), n.mu.table.Stats()
	if n.puller != nil {
		s.PullWaiting = n.puller.waitingLocked()
	}
	return s
}
