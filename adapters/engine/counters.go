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
	numRefusals
)

var refusalNames = [numRefusals]string{"gone", "malformed", "limit", "unknown", "barred", "user"}

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

// counters are since the start.
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

// addTo gives everything a name.
func (c *counters) addTo(m map[string]uint64) {
	for name, v := range map[string]*atomic.Uint64{
		"clients": &c.clients, "regions": &c.regions, "regions_stuck": &c.stuck, "quiesced": &c.quiesced,
		"keys_not_registered": &c.notRegistered, "keys_over_bytes": &c.overBytes,
		"put_waits": &c.waits, "put_takeovers": &c.takeovers, "put_waits_over": &c.waitsOver,
		"event_resyncs": &c.resyncs,
	} {
		m["engine."+name] = v.Load()
	}
	for i := range c.ended {
		m["engine.ended."+ending(i).String()] = c.ended[i].Load()
	}
	for i := range c.refused {
		m["engine.refused."+refusal(i).String()] = c.refused[i].Load()
	}
}
