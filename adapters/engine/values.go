package engine

import (
	"slices"
	"strings"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// statuses and sources are what the wire calls ours; both sides have names of their own, so that either may be renumbered.
var (
	statuses = [ports.NumStatuses]enginev1.KeyStatus{
		ports.Hit: enginev1.KeyStatus_KEY_STATUS_HIT, ports.Stored: enginev1.KeyStatus_KEY_STATUS_STORED,
		ports.Exists: enginev1.KeyStatus_KEY_STATUS_EXISTS, ports.Conflict: enginev1.KeyStatus_KEY_STATUS_CONFLICT,
		ports.NotFound: enginev1.KeyStatus_KEY_STATUS_NOT_FOUND, ports.Invalid: enginev1.KeyStatus_KEY_STATUS_INVALID,
		ports.TooLarge: enginev1.KeyStatus_KEY_STATUS_TOO_LARGE, ports.NoSpace: enginev1.KeyStatus_KEY_STATUS_NO_SPACE,
		ports.Busy: enginev1.KeyStatus_KEY_STATUS_BUSY, ports.Late: enginev1.KeyStatus_KEY_STATUS_LATE,
		ports.Corrupt: enginev1.KeyStatus_KEY_STATUS_CORRUPT, ports.TransferFailed: enginev1.KeyStatus_KEY_STATUS_TRANSFER_FAILED,
		ports.CopyFailed: enginev1.KeyStatus_KEY_STATUS_COPY_FAILED, ports.PeerUnavailable: enginev1.KeyStatus_KEY_STATUS_PEER_UNAVAILABLE,
		ports.NotRegistered: enginev1.KeyStatus_KEY_STATUS_NOT_REGISTERED, ports.Refused: enginev1.KeyStatus_KEY_STATUS_REFUSED,
		ports.Cancelled: enginev1.KeyStatus_KEY_STATUS_CANCELLED,
	}
	sources = [ports.NumSources]enginev1.Source{
		ports.FromLocal: enginev1.Source_SOURCE_LOCAL, ports.FromSlot: enginev1.Source_SOURCE_SLOT,
		ports.FromDirect: enginev1.Source_SOURCE_DIRECT, ports.FromArena: enginev1.Source_SOURCE_ARENA,
	}
	purposes = [ports.NumPurposes]string{ports.PurposeGet: "get", ports.PurposePull: "pull", ports.PurposePut: "put"}
	ways     = [domain.LocalByExtents + 1]string{domain.LocalNot: "not", domain.LocalBySlot: "slot", domain.LocalFromArena: "arena",
		domain.LocalByPull: "pull", domain.LocalByExtents: "extents"}
	causes = [domain.NumDoomCauses]string{domain.DoomAbort: "abort", domain.DoomDeadline: "deadline", domain.DoomEvicted: "evicted",
		domain.DoomPressure: "pressure", domain.DoomCleared: "cleared", domain.DoomRemoved: "removed", domain.DoomLost: "lost",
		domain.DoomVersionGone: "version_gone", domain.DoomCorrupt: "corrupt", domain.DoomFailed: "failed"}
	states = [domain.SlotDoomed + 1]string{domain.SlotFree: "free", domain.SlotPending: "pending", domain.SlotFilling: "filling",
		domain.SlotCommitted: "committed", domain.SlotDoomed: "doomed"}
)

func resultOf(r ports.Result) *enginev1.Result {
	out := &enginev1.Result{Status: statuses[r.Status], Source: sources[r.Source], Verified: r.Verified, Size: r.Size, Fetched: r.Fetched, Joined: r.Joined}
	if r.Err != nil {
		out.Reason = r.Err.Error()
	}
	return out
}

// counts gives everything that a node counts a name.
func counts(s ports.Stats) map[string]uint64 {
	m := map[string]uint64{
		"get_calls": s.GetCalls, "put_calls": s.PutCalls,
		"needed_bytes": s.NeededBytes, "duplicate_bytes": s.DuplicateBytes, "caller_bytes": s.CallerBytes, "put_bytes": s.PutBytes,
		"flights_joined": s.FlightsJoined,
		"corrupt_ranges": s.CorruptRanges, "complaints_made": s.ComplaintsMade, "complaints_lost": s.ComplaintsLost,
		"pull.queued": s.PullQueued, "pull.done": s.PullDone, "pull.failed": s.PullFailed, "pull.dropped": s.PullDropped, "pull.deduped": s.PullDeduped,
		"leases.renewed": s.LeasesRenewed, "leases.stale": s.LeasesStale,
		"arena.waits.get": s.ArenaWaits[0], "arena.waits.put": s.ArenaWaits[1], "arena.rounds.get": s.ArenaRounds[0], "arena.rounds.put": s.ArenaRounds[1],
		"revokes":         s.Revokes,
		"now.pull_queued": s.PullWaiting, "now.arena_used.get": s.ArenaUsed[0], "now.arena_used.put": s.ArenaUsed[1],
		"now.arena_waiting.get": s.ArenaWaiting[0], "now.arena_waiting.put": s.ArenaWaiting[1], "now.revokes_pending": s.RevokesPending,
		"now.sessions": s.Sessions, "now.calls": s.Calls, "now.pages": s.Table.PagesTotal, "now.pages_free": s.Table.PagesFree,
		"now.pages_held": s.Table.HeldPages, "now.pins": s.Table.Pins,
	}
	each(m, "get_keys.", s.GetKeys[:], ports.Status.String)
	each(m, "put_keys.", s.PutKeys[:], ports.Status.String)
	each(m, "get_sources.", s.GetSources[:], ports.Source.String)
	each(m, "wire_bytes.", s.Wire[:], purposeName)
	each(m, "unverified_bytes.", s.UnverifiedBytes[:], ports.Unverified.String)
	each(m, "complaints.", s.Complaints[:], ports.Complaint.String)
	each(m, "installed_objects.", s.InstalledObjects[:], func(w domain.Locality) string { return ways[w] })
	each(m, "installed_bytes.", s.InstalledBytes[:], func(w domain.Locality) string { return ways[w] })
	each(m, "install_failures.", s.InstallFailures[:], ports.InstallFailure.String)
	each(m, "downgrades.", s.Downgrades[:], ports.Downgrade.String)
	each(m, "doomed.", s.Table.Doomed[:], func(c domain.DoomCause) string { return causes[c] })
	each(m, "now.slots.", s.Table.Slots[:], func(st domain.SlotState) string { return states[st] })
	return m
}

func purposeName(p ports.Purpose) string { return purposes[p] }

func each[T ~uint8](m map[string]uint64, prefix string, values []uint64, name func(T) string) {
	for i, v := range values {
		m[prefix+name(T(i))] = v
	}
}

func peers(all []ports.PeerStats) []*enginev1.PeerState {
	var out []*enginev1.PeerState
	for _, p := range all {
		s := &enginev1.PeerState{Node: string(p.Peer.ID), Incarnation: uint64(p.Peer.Incarnation), Transport: string(p.Transport),
			WriteTransport: string(p.Writes), Down: p.Down, WireBytes: make(map[string]uint64)}
		if p.Failure != nil {
			s.Failure = p.Failure.Error()
		}
		for _, r := range p.Refused {
			s.Refusals = append(s.Refusals, &enginev1.Refusal{Transport: string(r.Kind), Reason: r.Reason})
		}
		each(s.WireBytes, "", p.Wire[:], purposeName)
		for _, t := range p.Transports {
			ts := &enginev1.TransportState{Transport: string(t.Kind), WireBytes: make(map[string]uint64), Lost: t.Lost}
			each(ts.WireBytes, "", t.Wire[:], purposeName)
			s.Transports = append(s.Transports, ts)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *enginev1.PeerState) int { return strings.Compare(a.GetNode(), b.GetNode()) })
	return out
}
