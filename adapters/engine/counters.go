package engine

import "sync/atomic"

// refusal is why a call was refused as a whole.
type refusal uint8

const (
	refusedGone      refusal = iota // another boot, or a client that is gone
	refusedMalformed                // columns that do not fit each other, packets that say nothing
	refusedLimit                    // more than a limit
	refusedUnknown                  // a session, handle or region that is not there
	refusedBarred                   // quiesced before it came
	refusedUser                     // another user
	refusedEnded                    // its time was over, or its caller or Quiesce ended it
	refusedFailed                   // the node could not; the reason is the caller's to log
	numRefusals
)

var refusalNames = [numRefusals]string{"gone", "malformed", "limit", "unknown", "barred", "user", "ended", "failed"}

func (r refusal) String() string { return refusalNames[r] }

// ending is why a client was let go.
type ending uint8

const (
	endedClosed     ending = iota // its connection closed: it ended, or died
	endedUnattached               // it never attached
	endedStop                     // the node stops
	numEndings
)

var endingNames = [numEndings]string{"closed", "unattached", "stop"}

func (e ending) String() string { return endingNames[e] }

// counters are since the start, of clients that say hello; of calls without one, only what is refused for bytes in flight.
type counters struct {
	clients, regions atomic.Uint64
	ended            [numEndings]atomic.Uint64
	refused          [numRefusals]atomic.Uint64
	stuck            atomic.Uint64 // regions that a transport could not let go of
	quiesced         atomic.Uint64
	notRegistered    atomic.Uint64 // keys
	overBytes        atomic.Uint64 // keys that were busy, or refused, for bytes in flight
	waits            atomic.Uint64 // keys of puts that waited for another writer
	takeovers        atomic.Uint64 // of these: stored after that writer failed
	waitsOver        atomic.Uint64 // of these: still busy at the end
	resyncs          atomic.Uint64 // of readers of events
}

// Counts is what a socket did since its start, by name; maps are the caller's.
type Counts struct {
	Refused map[string]uint64 // calls and packets that were refused as a whole, by reason
	Ended   map[string]uint64 // clients that were let go, by why
	Events  map[string]uint64 // what else happens to clients, their regions and keys

	Clients     uint64 // now
	RegionBytes uint64 // now, of all clients' regions
}

// Counts has every name from the start.
func (s *Server) Counts() Counts { return s.calls.counts() }

func (s *calls) counts() Counts {
	c := s.count
	out := Counts{Refused: make(map[string]uint64, numRefusals), Ended: make(map[string]uint64, numEndings), Events: map[string]uint64{
		"clients": c.clients.Load(), "regions": c.regions.Load(), "regions_stuck": c.stuck.Load(), "quiesced": c.quiesced.Load(),
		"keys_not_registered": c.notRegistered.Load(), "keys_over_bytes": c.overBytes.Load(),
		"put_waits": c.waits.Load(), "put_takeovers": c.takeovers.Load(), "put_waits_over": c.waitsOver.Load(),
		"event_resyncs": c.resyncs.Load(), "events": 0,
	}}
	for i := range c.ended {
		out.Ended[ending(i).String()] = c.ended[i].Load()
	}
	for i := range c.refused {
		out.Refused[refusal(i).String()] = c.refused[i].Load()
	}
	if s.Journal != nil {
		out.Events["events"] = s.Journal.events()
	}
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	out.Clients, out.RegionBytes = uint64(len(s.clients.mu.byID)), s.clients.mu.mapped
	return out
}
