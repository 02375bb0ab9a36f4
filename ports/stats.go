package ports

import "github.com/spanpool/spanpool/domain"

// InstallFailure is why an object that should have become local did not.
type InstallFailure uint8

// The reasons.
const (
	InstallSlotRefused   InstallFailure = iota // no pages for a slot
	InstallCommitRefused                       // cleared meanwhile, or another writer was first
	InstallArenaFailed                         // the copy from the arena failed
	InstallQueueFull                           // the pull's queue was full
	InstallPeerFailed                          // the peer failed or has it no more
	InstallLease                               // the lease was over before the bytes came
	InstallCorrupt                             // its bytes did not match their sums
	NumInstallFailures
)

var installFailureNames = [NumInstallFailures]string{"slot_refused", "commit_refused", "arena_failed", "queue_full", "peer_failed", "lease", "corrupt"}

func (f InstallFailure) String() string { return installFailureNames[f] }

// Unverified is why bytes of a hit were checked against no sum.
type Unverified uint8

// The reasons.
const (
	UnverifiedOff     Unverified = iota // checksums are switched off here
	UnverifiedNoSums                    // the object has none: its writer or its holder makes or sends none
	UnverifiedPartial                   // of a put-range that was not read whole
	UnverifiedDevice                    // they passed no memory of the host
	NumUnverified
)

var unverifiedNames = [NumUnverified]string{"off", "no_sums", "partial", "device"}

func (u Unverified) String() string { return unverifiedNames[u] }

// Complaint is what became of a peer's complaint about a copy here.
type Complaint uint8

// The outcomes.
const (
	ComplaintDropped Complaint = iota // the copy is bad: dropped
	ComplaintKept                     // the copy is good, so the wire or the peer is not
	ComplaintGone                     // the copy was gone already, or has no sums to be held to
	NumComplaints
)

var complaintNames = [NumComplaints]string{"dropped", "kept", "gone"}

func (c Complaint) String() string { return complaintNames[c] }

// Downgrade is why a key took a lesser route than it could have, or an attempt was repeated.
type Downgrade uint8

// The reasons.
const (
	DowngradeNoSlot        Downgrade = iota // the medium had no pages for a filling slot: next route
	DowngradeOtherVersion                   // the filling slot is of another version: next route
	DowngradeArenaOff                       // the arena is switched off: no space
	DowngradeTooLarge                       // a span larger than the arena
	DowngradeLate                           // bytes came after their lease: fetched again
	DowngradeNextHolder                     // a peer failed: next holder
	DowngradeReset                          // a link was reset: read again on a new one
	DowngradeVersionSwitch                  // the version is gone: from nothing on another one
	DowngradeHoldRefused                    // exists found it, but the holds are full
	DowngradeTransport                      // a transport was refused at hello: next one
	DowngradeLinkLost                       // a link ended while another to the same peer lives: that one serves
	DowngradeBreakerOpen                    // a peer was left out since it failed a moment ago
	DowngradeArenaTimeout                   // no slice within the bound
	DowngradeHugePages                      // huge pages were asked for and not to be had
	DowngradeNamespaces                     // a peer put into more namespaces than it may make this node remember: refused
	DowngradeUnreached                      // the link does not reach the pool's or the caller's memory: by the arena
	NumDowngrades
)

var downgradeNames = [NumDowngrades]string{"no_slot", "other_version", "arena_off", "too_large", "late", "next_holder", "reset", "version_switch",
	"hold_refused", "transport", "link_lost", "breaker_open", "arena_timeout", "huge_pages", "namespaces", "unreached"}

func (d Downgrade) String() string { return downgradeNames[d] }

// Stats is a copy of what a node counts since its start; gauges say so.
type Stats struct {
	GetKeys    [NumStatuses]uint64 // keys of gets by status
	PutKeys    [NumStatuses]uint64
	GetSources [NumSources]uint64                             // hits by source
	Outcomes   [NumBatchKinds][NumSources][NumOutcomes]uint64 // keys of gets and puts by mode, route and outcome
	GetCalls   uint64
	PutCalls   uint64

	Wire            [NumPurposes]uint64   // bytes, counted in the transports
	NeededBytes     uint64                // crossed and became a new extent here, or went to a caller
	DuplicateBytes  uint64                // crossed and landed on an extent that was held already, or were thrown away; get + pull = needed + duplicate
	CallerBytes     uint64                // copied into callers' memory
	UnverifiedBytes [NumUnverified]uint64 // of hits, by why no sum was checked
	CorruptRanges   uint64                // put-ranges whose bytes were seen not to match, here or as they came here
	ComplaintsMade  uint64                // to owners of such bytes
	ComplaintsLost  uint64                // of these: the owner did not answer
	Complaints      [NumComplaints]uint64 // of peers about copies here, by what became of each

	InstalledObjects [domain.LocalByExtents + 1]uint64 // by the way in which they became local
	InstalledBytes   [domain.LocalByExtents + 1]uint64
	PutBytes         uint64 // committed here by puts
	InstallFailures  [NumInstallFailures]uint64
	Downgrades       [NumDowngrades]uint64

	FlightsJoined uint64

	PullQueued  uint64 // asked for; = done + dropped + failed + waiting
	PullDone    uint64
	PullFailed  uint64
	PullDropped uint64 // the queue was full
	PullDeduped uint64 // asked for while queued or under way, or local by the time it was run
	PullWaiting uint64 // gauge: queued or under way

	LeasesRenewed uint64
	LeasesStale   uint64

	ArenaWaits     [2]uint64 // get, put: requests that had to wait
	ArenaUsed      [2]uint64 // gauge
	ArenaWaiting   [2]uint64 // gauge
	ArenaRounds    [2]uint64
	Revokes        uint64
	RevokesPending uint64 // gauge: pages that stay out until their writer is fenced

	Sessions uint64 // gauge
	Calls    uint64 // gauge: in progress, abandoned ones that are being drained included
	Table    domain.TableStats
	Peers    []PeerStats
}

// PeerStats is what a node knows of a peer.
type PeerStats struct {
	Peer      Peer
	Transport TransportKind // by which reads go; empty: no link
	Writes    TransportKind // by which puts go; empty: no link that can write
	Refused   []Refusal     // why the transports that are preferred to these are not in use
	Down      bool          // the breaker is open
	Failure   error         // why the last dial or control call failed; nil since a hello that succeeded
	Wire      [NumPurposes]uint64
	Thrown    [NumPurposes]uint64 // of Wire, what came for ops that did not complete well

	Transports []TransportStats // each of this node's, in the order of preference; their Wire add up to the peer's
}

// TransportStats is what the links of one transport to a peer have done.
type TransportStats struct {
	Kind TransportKind
	Wire [NumPurposes]uint64
	Lost uint64 // links that ended while the peer stayed connected by another transport
}

// Outcome is what became of a key, in short; its status says it in full.
type Outcome uint8

// The outcomes.
const (
	OutcomeDone   Outcome = iota // a hit, or stored
	OutcomeExists                // put: nothing was written
	OutcomeFailed
	NumOutcomes
)

var outcomeNames = [NumOutcomes]string{"done", "exists", "failed"}

func (o Outcome) String() string { return outcomeNames[o] }

// Outcome is what a status amounts to.
func (s Status) Outcome() Outcome {
	switch s {
	case Hit, Stored:
		return OutcomeDone
	case Exists:
		return OutcomeExists
	}
	return OutcomeFailed
}

// CanEnd reports whether a key of such a batch can have that outcome by that route: gets do not exist, slots are of fetches, what is
// done went by some route, and what exists by none.
func CanEnd(k BatchKind, route Source, o Outcome) bool {
	get := k == BatchGetRanges || k == BatchGetWhole
	switch {
	case get && o == OutcomeExists, !get && route == FromSlot:
		return false
	case o == OutcomeDone:
		return route != FromNowhere
	case o == OutcomeExists:
		return route == FromNowhere
	}
	return true
}
