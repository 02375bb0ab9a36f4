package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

const (
	journalEvents = 16_384 // kept for readers that lag or come back
	eventsMessage = 512    // events of a message: names of 512 bytes fit
	maxReaders    = 32
)

// name is an object's.
type name struct{ namespace, key string }

// event is an object that came or went.
type event struct {
	name
	kind enginev1.EventKind
}

// Journal is a Directory that notes what its node announces and withdraws, and passes it on. It keeps the names of all that is here, and
// the last events. A node calls it with a lock held, so it never waits: a reader that is too slow begins again from a snapshot.
//
// A snapshot is taken in pieces, from the last name to the first. A name that goes is replaced by the last one, which was visited before;
// one that comes is put behind the last, where no piece looks again, and has an event after the snapshot's sequence. So whoever applies
// the events after that sequence to the snapshot knows what is here. (From the first to the last, a name could be moved to a place that
// was visited already, and be missed.)
type Journal struct {
	ports.Directory

	mu struct {
		sync.Mutex
		sequence uint64           // of the last event
		last     []event          // a ring: event n is at (n-1) % journalEvents
		here     []name           // in no order
		at       map[name]int     // in here
		readers  map[*reader]bool // who wait
	}
}

// reader is one stream of events.
type reader struct {
	wake chan struct{} // capacity 1: "there may be events"
}

// NewJournal makes a journal in front of a directory.
func NewJournal(d ports.Directory) *Journal {
	j := &Journal{Directory: d}
	j.mu.last = make([]event, 0, journalEvents)
	j.mu.at = make(map[name]int)
	j.mu.readers = make(map[*reader]bool)
	return j
}

// Announce notes that an object has come.
func (j *Journal) Announce(namespace, key string, v domain.Version) {
	j.note(event{name{namespace, key}, enginev1.EventKind_EVENT_KIND_ADD})
	j.Directory.Announce(namespace, key, v)
}

// Withdraw notes that an object has gone.
func (j *Journal) Withdraw(namespace, key string, v domain.Version) {
	j.note(event{name{namespace, key}, enginev1.EventKind_EVENT_KIND_REMOVE})
	j.Directory.Withdraw(namespace, key, v)
}

func (j *Journal) note(e event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	i, here := j.mu.at[e.name]
	switch {
	case e.kind == enginev1.EventKind_EVENT_KIND_ADD && !here:
		j.mu.at[e.name] = len(j.mu.here)
		j.mu.here = append(j.mu.here, e.name)
	case e.kind == enginev1.EventKind_EVENT_KIND_REMOVE && here:
		end := len(j.mu.here) - 1
		j.mu.here[i] = j.mu.here[end]
		j.mu.at[j.mu.here[i]] = i
		j.mu.here[end] = name{}
		j.mu.here = j.mu.here[:end]
		delete(j.mu.at, e.name)
	default:
		return // nothing that a reader does not know
	}
	j.mu.sequence++
	if len(j.mu.last) < journalEvents {
		j.mu.last = append(j.mu.last, e)
	} else {
		j.mu.last[(j.mu.sequence-1)%journalEvents] = e
	}
	for r := range j.mu.readers {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// events counts what was noted.
func (j *Journal) events() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.sequence
}

// read appends the events after a sequence, at most a message of them; ok is false when they are not all there any more.
func (j *Journal) read(after uint64, dst []event) (events []event, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if after > j.mu.sequence || j.mu.sequence-after > uint64(len(j.mu.last)) {
		return dst, false
	}
	for n := after + 1; n <= j.mu.sequence && len(dst) < eventsMessage; n++ {
		dst = append(dst, j.mu.last[(n-1)%journalEvents])
	}
	return dst, true
}

// piece appends names of a snapshot from below a place, and returns where the next one goes on; 0 is the end.
func (j *Journal) piece(below int, dst []name) ([]name, int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	hi := min(below, len(j.mu.here))
	lo := max(0, hi-eventsMessage)
	return append(dst, j.mu.here[lo:hi]...), lo
}

// begin is where a snapshot begins.
func (j *Journal) begin() (sequence uint64, below int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.sequence, len(j.mu.here)
}

func (j *Journal) enter(r *reader) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.mu.readers) >= maxReaders {
		return limit("readers of events", len(j.mu.readers)+1, maxReaders)
	}
	j.mu.readers[r] = true
	return nil
}

func (j *Journal) leave(r *reader) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.mu.readers, r)
}

// telling is one stream under way.
type telling struct {
	s      *calls
	j      *Journal
	req    *enginev1.EventsRequest
	stream grpc.ServerStreamingServer[enginev1.EventsReply]
	after  uint64
	events []event
	names  []name
}

// Events tells which objects come and go, until the caller ends it or the node stops.
func (s *calls) Events(req *enginev1.EventsRequest, stream grpc.ServerStreamingServer[enginev1.EventsReply]) error {
	if s.Journal == nil {
		return statusOf(fmt.Errorf("no events: %w", errors.ErrUnsupported))
	}
	r := &reader{wake: make(chan struct{}, 1)}
	if err := s.Journal.enter(r); err != nil {
		return s.failed(err)
	}
	defer s.Journal.leave(r)
	t := &telling{s: s, j: s.Journal, req: req, stream: stream, after: req.GetSequence()}
	if req.GetBoot() != uint64(s.Self.Incarnation) {
		if err := t.snapshot(); err != nil {
			return err
		}
	}
	for {
		if err := t.catchUp(); err != nil {
			return err
		}
		select {
		case <-r.wake:
		case <-stream.Context().Done():
			return statusOf(context.Cause(stream.Context()))
		case <-s.stopped.Done():
			return statusOf(fmt.Errorf("the node is stopping: %w", ports.ErrClosed))
		}
	}
}

// catchUp sends what there is.
func (t *telling) catchUp() error {
	for {
		var ok bool
		if t.events, ok = t.j.read(t.after, t.events[:0]); !ok {
			if err := t.snapshot(); err != nil {
				return err
			}
			continue
		}
		if len(t.events) == 0 {
			return nil
		}
		m := &enginev1.EventsReply{Boot: uint64(t.s.Self.Incarnation)}
		for i, e := range t.events {
			if t.wants(e.name) {
				m.Events = append(m.Events, &enginev1.Event{Sequence: t.after + uint64(i) + 1, Kind: e.kind, Namespace: []byte(e.namespace), Key: []byte(e.key)})
			}
		}
		t.after += uint64(len(t.events))
		m.Sequence = t.after
		if err := t.stream.Send(m); err != nil {
			return err
		}
	}
}

// snapshot sends what is here.
func (t *telling) snapshot() error {
	t.s.count.resyncs.Add(1)
	sequence, below := t.j.begin()
	m := &enginev1.EventsReply{Boot: uint64(t.s.Self.Incarnation), Resync: true}
	for below > 0 {
		t.names, below = t.j.piece(below, t.names[:0])
		for _, n := range t.names {
			if t.wants(n) {
				m.Events = append(m.Events, &enginev1.Event{Kind: enginev1.EventKind_EVENT_KIND_ADD, Namespace: []byte(n.namespace), Key: []byte(n.key)})
			}
		}
		if err := t.stream.Send(m); err != nil {
			return err
		}
		m = &enginev1.EventsReply{Boot: uint64(t.s.Self.Incarnation)}
		select {
		case <-t.s.stopped.Done():
			return statusOf(fmt.Errorf("the node is stopping: %w", ports.ErrClosed))
		default:
		}
	}
	t.after = sequence
	m.Sequence, m.SnapshotEnd = sequence, true
	return t.stream.Send(m)
}

func (t *telling) wants(n name) bool {
	return t.req.Namespace == nil || string(t.req.GetNamespace()) == n.namespace
}
