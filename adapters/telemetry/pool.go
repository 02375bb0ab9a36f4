package telemetry

import (
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// The values of labels. Those that an operation cannot take have no series: a get does not end as stored, and no hit comes from
// nowhere.
var (
	getStatuses = namesOf(ports.NumStatuses, ports.Status.String, ports.StatusNone, ports.Stored, ports.Exists, ports.Conflict)
	putStatuses = namesOf(ports.NumStatuses, ports.Status.String, ports.StatusNone, ports.Hit, ports.NotFound, ports.TooLarge, ports.Late, ports.Corrupt)
	sources     = namesOf(ports.NumSources, ports.Source.String, ports.FromNowhere)
	unverified  = namesOf(ports.NumUnverified, ports.Unverified.String)
	complaints  = namesOf(ports.NumComplaints, ports.Complaint.String)
	failures    = namesOf(ports.NumInstallFailures, ports.InstallFailure.String)
	downgrades  = namesOf(ports.NumDowngrades, ports.Downgrade.String)
	states      = namesOf(domain.SlotDoomed+1, domain.SlotState.String, domain.SlotFree)
	purposes    = []string{ports.PurposeGet: "get", ports.PurposePull: "pull", ports.PurposePut: "put"}
	ways        = []string{domain.LocalBySlot: "slot", domain.LocalFromArena: "arena", domain.LocalByPull: "pull", domain.LocalByExtents: "extents"}
	causes      = []string{domain.DoomAbort: "abort", domain.DoomDeadline: "deadline", domain.DoomEvicted: "evicted", domain.DoomPressure: "pressure",
		domain.DoomCleared: "cleared", domain.DoomRemoved: "removed", domain.DoomLost: "lost", domain.DoomVersionGone: "version_gone",
		domain.DoomCorrupt: "corrupt", domain.DoomFailed: "failed"}
	arenas      = []string{"get", "put"}
	getOutcomes = [ports.NumOutcomes]string{ports.OutcomeDone: "hit", ports.OutcomeFailed: "failed"}
	putOutcomes = [ports.NumOutcomes]string{ports.OutcomeDone: "stored", ports.OutcomeExists: "exists", ports.OutcomeFailed: "failed"}
)

// poolFamilies is everything in ports.Stats.
func poolFamilies() []Family {
	var all []Family
	for _, of := range [][]Family{callFamilies(), byteFamilies(), localFamilies(), pullFamilies(), arenaFamilies(), tableFamilies(), peerFamilies()} {
		all = append(all, of...)
	}
	return all
}

func callFamilies() []Family {
	return []Family{
		{Name: "get.calls", Help: "Calls that ask for whole objects or for ranges.", Read: one(func(s *ports.Stats) uint64 { return s.GetCalls })},
		{Name: "put.calls", Help: "Calls that store whole objects or ranges.", Read: one(func(s *ports.Stats) uint64 { return s.PutCalls })},
		{Name: "get.keys", Help: "Keys that gets asked for, by what became of each.", Labels: []string{"status"},
			Read: each(getStatuses, func(s *ports.Stats) []uint64 { return s.GetKeys[:] })},
		{Name: "put.keys", Help: "Keys that puts gave, by what became of each.", Labels: []string{"status"},
			Read: each(putStatuses, func(s *ports.Stats) []uint64 { return s.PutKeys[:] })},
		{Name: "get.hits", Help: "Keys of gets that were hits, by the way their bytes came.", Labels: []string{"source"},
			Read: each(sources, func(s *ports.Stats) []uint64 { return s.GetSources[:] })},
		{Name: "get.outcomes", Help: "Keys of gets by form of the call, way of their bytes (of a failure: the last that was tried), and outcome.",
			Labels: []string{"mode", "route", "outcome"}, Read: outcomes(getKinds, getOutcomes)},
		{Name: "put.outcomes", Help: "Keys of puts by form of the call, way of their bytes (nowhere: none moved), and outcome.",
			Labels: []string{"mode", "route", "outcome"}, Read: outcomes(putKinds, putOutcomes)},
		{Name: "flights.joined", Help: "Times a call waited for a fetch of another one instead of fetching the same bytes.",
			Read: one(func(s *ports.Stats) uint64 { return s.FlightsJoined })},
		{Name: "downgrades", Help: "Times a key took a lesser route than it could have, or an attempt was repeated.", Labels: []string{"reason"},
			Read: each(downgrades, func(s *ports.Stats) []uint64 { return s.Downgrades[:] })},
		{Name: "leases.renewed", Help: "Peers' leases that were renewed.", Read: one(func(s *ports.Stats) uint64 { return s.LeasesRenewed })},
		{Name: "leases.stale", Help: "Renewals that were refused: the lease had ended, or the object was gone.",
			Read: one(func(s *ports.Stats) uint64 { return s.LeasesStale })},
		{Name: "sessions", Kind: Gauge, Help: "Read sessions that are open.", Read: one(func(s *ports.Stats) uint64 { return s.Sessions })},
		{Name: "calls.in_progress", Kind: Gauge, Help: "Calls in progress, given up ones that are not quiet yet included.",
			Read: one(func(s *ports.Stats) uint64 { return s.Calls })},
	}
}

// outcomes reads what became of the keys of a direction. A place that nothing can take has no series.
func outcomes(kinds [2]ports.BatchKind, names [ports.NumOutcomes]string) func(*ports.Stats, Emit) {
	return func(s *ports.Stats, emit Emit) {
		for m, kind := range kinds {
			for route, of := range s.Outcomes[kind] {
				for o, v := range of {
					if names[o] != "" && ports.CanEnd(kind, ports.Source(route), ports.Outcome(o)) {
						emit(v, modes[m], ports.Source(route).String(), names[o])
					}
				}
			}
		}
	}
}

func byteFamilies() []Family {
	return []Family{
		{Name: "wire", Unit: Bytes, Help: "Bytes that crossed for this node's calls, counted in the transports.", Labels: []string{"purpose"},
			Read: each(purposes, func(s *ports.Stats) []uint64 { return s.Wire[:] })},
		{Name: "needed", Unit: Bytes, Help: "Bytes that crossed and became a new extent here or went to a caller.",
			Read: one(func(s *ports.Stats) uint64 { return s.NeededBytes })},
		{Name: "duplicate", Unit: Bytes, Help: "Bytes that crossed and were held already, or were thrown away.",
			Read: one(func(s *ports.Stats) uint64 { return s.DuplicateBytes })},
		{Name: "caller", Unit: Bytes, Help: "Bytes that gets copied into callers' memory.", Read: one(func(s *ports.Stats) uint64 { return s.CallerBytes })},
		{Name: "unverified", Unit: Bytes, Help: "Bytes of hits that were checked against no sum, by why they were not.", Labels: []string{"reason"},
			Read: each(unverified, func(s *ports.Stats) []uint64 { return s.UnverifiedBytes[:] })},
		{Name: "corrupt.ranges", Help: "Ranges, as they were put, whose bytes did not match their sum, here or when they came here.",
			Read: one(func(s *ports.Stats) uint64 { return s.CorruptRanges })},
		{Name: "complaints.made", Help: "Times that an owner was told that its bytes did not match.", Read: one(func(s *ports.Stats) uint64 { return s.ComplaintsMade })},
		{Name: "complaints.lost", Help: "Complaints that the owner did not answer.", Read: one(func(s *ports.Stats) uint64 { return s.ComplaintsLost })},
		{Name: "complaints", Help: "Complaints of peers about copies here, by what became of the copy.", Labels: []string{"outcome"},
			Read: each(complaints, func(s *ports.Stats) []uint64 { return s.Complaints[:] })},
		{Name: "put", Unit: Bytes, Help: "Bytes of objects that puts committed on this node.", Read: one(func(s *ports.Stats) uint64 { return s.PutBytes })},
	}
}

func localFamilies() []Family {
	return []Family{
		{Name: "installed.objects", Help: "Fetched objects that became local, by the way they did.", Labels: []string{"way"},
			Read: each(ways, func(s *ports.Stats) []uint64 { return s.InstalledObjects[:] })},
		{Name: "installed", Unit: Bytes, Help: "Bytes of fetched objects that became local, by the way they did.", Labels: []string{"way"},
			Read: each(ways, func(s *ports.Stats) []uint64 { return s.InstalledBytes[:] })},
		{Name: "install.failures", Help: "Objects that should have become local and did not.", Labels: []string{"reason"},
			Read: each(failures, func(s *ports.Stats) []uint64 { return s.InstallFailures[:] })},
	}
}

func pullFamilies() []Family {
	return []Family{
		{Name: "pull.queued", Help: "Pulls that were asked for: those that are done, that failed, that were dropped, and that wait.",
			Read: one(func(s *ports.Stats) uint64 { return s.PullQueued })},
		{Name: "pull.done", Help: "Pulls that ended well.", Read: one(func(s *ports.Stats) uint64 { return s.PullDone })},
		{Name: "pull.failed", Help: "Pulls that failed.", Read: one(func(s *ports.Stats) uint64 { return s.PullFailed })},
		{Name: "pull.dropped", Help: "Pulls that were not accepted, for the queue was full.", Read: one(func(s *ports.Stats) uint64 { return s.PullDropped })},
		{Name: "pull.deduped", Help: "Pulls of an object that was queued, under way, or local by then.",
			Read: one(func(s *ports.Stats) uint64 { return s.PullDeduped })},
		{Name: "pull.waiting", Kind: Gauge, Help: "Pulls that are queued or under way.", Read: one(func(s *ports.Stats) uint64 { return s.PullWaiting })},
	}
}

func arenaFamilies() []Family {
	direction := []string{"direction"}
	return []Family{
		{Name: "arena.waits", Help: "Requests for room in an arena that had to wait.", Labels: direction,
			Read: each(arenas, func(s *ports.Stats) []uint64 { return s.ArenaWaits[:] })},
		{Name: "arena.rounds", Help: "Requests for room in an arena: one per round of a call.", Labels: direction,
			Read: each(arenas, func(s *ports.Stats) []uint64 { return s.ArenaRounds[:] })},
		{Name: "arena.used", Unit: Bytes, Kind: Gauge, Help: "Bytes of an arena that are given out.", Labels: direction,
			Read: each(arenas, func(s *ports.Stats) []uint64 { return s.ArenaUsed[:] })},
		{Name: "arena.waiting", Kind: Gauge, Help: "Requests for room in an arena that wait.", Labels: direction,
			Read: each(arenas, func(s *ports.Stats) []uint64 { return s.ArenaWaiting[:] })},
		{Name: "revokes", Help: "Times that a peer's right to write here was taken back, as each commit does.",
			Read: one(func(s *ports.Stats) uint64 { return s.Revokes })},
		{Name: "revokes.pending", Kind: Gauge, Help: "Slots whose pages stay out until their writer is fenced.",
			Read: one(func(s *ports.Stats) uint64 { return s.RevokesPending })},
	}
}

func tableFamilies() []Family {
	return []Family{
		{Name: "pages", Kind: Gauge, Help: "Pages of the medium.", Read: one(func(s *ports.Stats) uint64 { return s.Table.PagesTotal })},
		{Name: "pages.free", Kind: Gauge, Help: "Pages that no slot has.", Read: one(func(s *ports.Stats) uint64 { return s.Table.PagesFree })},
		{Name: "pages.held", Kind: Gauge, Help: "Pages of objects that exists found and holds.", Read: one(func(s *ports.Stats) uint64 { return s.Table.HeldPages })},
		{Name: "slots", Kind: Gauge, Help: "Slots by state.", Labels: []string{"state"},
			Read: each(states, func(s *ports.Stats) []uint64 { return s.Table.Slots[:] })},
		{Name: "slot.pages", Kind: Gauge, Help: "Pages of slots by the slot's state.", Labels: []string{"state"},
			Read: each(states, func(s *ports.Stats) []uint64 { return s.Table.Pages[:] })},
		{Name: "pins", Kind: Gauge, Help: "Pins over all slots.", Read: one(func(s *ports.Stats) uint64 { return s.Table.Pins })},
		{Name: "dooms", Help: "Slots that were doomed.", Labels: []string{"cause"},
			Read: each(causes, func(s *ports.Stats) []uint64 { return s.Table.Doomed[:] })},
	}
}

// peerFamilies are of the peers that the node knows. The reasons of refusals and failures are text and so no labels: ctl peers shows
// them.
func peerFamilies() []Family {
	peer := []string{"peer"}
	return []Family{
		{Name: "peer.up", Kind: Gauge, Help: "1 while there is a link to the peer.", Labels: peer,
			Read: eachPeer(func(p *ports.PeerStats, emit Emit) { emit(flag(p.Transport != ""), string(p.Peer.ID)) })},
		{Name: "peer.breaker_open", Kind: Gauge, Help: "1 while the peer is left out, for it failed a moment ago.", Labels: peer,
			Read: eachPeer(func(p *ports.PeerStats, emit Emit) { emit(flag(p.Down), string(p.Peer.ID)) })},
		{Name: "peer.failing", Kind: Gauge, Help: "1 while the last dial of the peer or call to it has failed.", Labels: peer,
			Read: eachPeer(func(p *ports.PeerStats, emit Emit) { emit(flag(p.Failure != nil), string(p.Peer.ID)) })},
		{Name: "peer.link", Kind: Gauge, Help: "1 for the transport of the link by which the node reads from the peer, and writes to it.",
			Labels: []string{"peer", "direction", "transport"},
			Read: eachPeer(func(p *ports.PeerStats, emit Emit) {
				if p.Transport != "" {
					emit(1, string(p.Peer.ID), "read", string(p.Transport))
				}
				if p.Writes != "" {
					emit(1, string(p.Peer.ID), "write", string(p.Writes))
				}
			})},
		{Name: "peer.links_lost", Help: "Links that ended while the peer stayed connected by another transport.", Labels: []string{"peer", "transport"},
			Read: eachPeer(func(p *ports.PeerStats, emit Emit) {
				for _, t := range p.Transports {
					emit(t.Lost, string(p.Peer.ID), string(t.Kind))
				}
			})},
		{Name: "peer.transports_refused", Kind: Gauge, Help: "Transports that are preferred to those in use and could not be taken.", Labels: peer,
			Read: eachPeer(func(p *ports.PeerStats, emit Emit) { emit(uint64(len(p.Refused)), string(p.Peer.ID)) })},
		{Name: "peer.wire", Unit: Bytes, Help: "Bytes that crossed between this node and the peer for this node's calls.", Labels: []string{"peer", "transport", "purpose"},
			Read: eachPeer(func(p *ports.PeerStats, emit Emit) {
				for _, t := range p.Transports {
					for i, purpose := range purposes {
						emit(t.Wire[i], string(p.Peer.ID), string(t.Kind), purpose)
					}
				}
			})},
		{Name: "peer.thrown", Unit: Bytes, Help: "Bytes among those that came for transfers which had failed, were given up, or were too late.", Labels: []string{"peer", "purpose"},
			Read: eachPeer(func(p *ports.PeerStats, emit Emit) {
				for i, purpose := range purposes {
					emit(p.Thrown[i], string(p.Peer.ID), purpose)
				}
			})},
	}
}

func eachPeer(read func(p *ports.PeerStats, emit Emit)) func(*ports.Stats, Emit) {
	return func(s *ports.Stats, emit Emit) {
		for i := range s.Peers {
			read(&s.Peers[i], emit)
		}
	}
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
