package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// told is a directory that counts what was passed on.
type told struct {
	ports.Directory
	mu        sync.Mutex
	announced int
	withdrawn int
}

func (d *told) Announce(string, string, domain.Version) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.announced++
}

func (d *told) Withdraw(string, string, domain.Version) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.withdrawn++
}

// TestASnapshotAndTheEventsAfterItAreWhatIsHere changes the journal between the pieces of a snapshot, which are small here by having
// many names.
func TestASnapshotAndTheEventsAfterItAreWhatIsHere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := NewJournal(&told{})
		n := rapid.IntRange(0, 3*eventsMessage).Draw(t, "names")
		for i := range n {
			j.Announce("ns", fmt.Sprint(i), domain.Version{})
		}
		change := func() {
			for range rapid.IntRange(0, 40).Draw(t, "changes") {
				key := fmt.Sprint(rapid.IntRange(0, n+20).Draw(t, "key"))
				if rapid.Bool().Draw(t, "come") {
					j.Announce("ns", key, domain.Version{})
				} else {
					j.Withdraw("ns", key, domain.Version{})
				}
			}
		}
		after, below := j.begin()
		known := map[name]bool{}
		for below > 0 {
			change()
			var names []name
			names, below = j.piece(below, nil)
			for _, x := range names {
				known[x] = true
			}
		}
		change()
		for {
			events, ok := j.read(after, nil)
			if !ok {
				t.Fatalf("event %d is gone after %d", after+1, j.events())
			}
			if len(events) == 0 {
				break
			}
			for _, e := range events {
				if e.kind == enginev1.EventKind_EVENT_KIND_ADD {
					known[e.name] = true
				} else {
					delete(known, e.name)
				}
			}
			after += uint64(len(events))
		}
		if len(known) != len(j.mu.here) {
			t.Fatalf("%d names are known, %d are here", len(known), len(j.mu.here))
		}
		for _, x := range j.mu.here {
			if !known[x] {
				t.Fatalf("%v is here and not known", x)
			}
		}
	})
}

// follow reads events into a channel until the test ends or it is cancelled.
func follow(t *testing.T, rpc enginev1.EngineClient, req *enginev1.EventsRequest) (<-chan *enginev1.EventsReply, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := rpc.Events(ctx, req)
	require.NoError(t, err)
	out := make(chan *enginev1.EventsReply)
	var wg sync.WaitGroup
	wg.Go(func() { received(ctx, stream, out) })
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	return out, cancel
}

// received closes out at the stream's end.
func received(ctx context.Context, stream grpc.ServerStreamingClient[enginev1.EventsReply], out chan<- *enginev1.EventsReply) {
	defer close(out)
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		select {
		case out <- m:
		case <-ctx.Done():
			return
		}
	}
}

// next is one message.
func next(t *testing.T, from <-chan *enginev1.EventsReply) *enginev1.EventsReply {
	t.Helper()
	select {
	case m, ok := <-from:
		require.True(t, ok, "the stream has ended")
		return m
	case <-time.After(20 * time.Second):
		require.FailNow(t, "no event came")
		return nil
	}
}

func TestEventsGoOnWhereAStreamBroke(t *testing.T) {
	below := &told{}
	j := NewJournal(below)
	rpc, s, _ := served(t, &pool{}, Config{Journal: j})
	j.Announce("ns", "a", domain.Version{})
	j.Announce("other", "b", domain.Version{})
	ns := &enginev1.EventsRequest{Namespace: []byte("ns")}
	stream, cancel := follow(t, rpc, ns)
	first, last := next(t, stream), (*enginev1.EventsReply)(nil)
	require.True(t, first.GetResync())
	require.Len(t, first.GetEvents(), 1, "of its namespace")
	require.Equal(t, "a", string(first.GetEvents()[0].GetKey()))
	for last = first; !last.GetSnapshotEnd(); last = next(t, stream) {
	}
	require.EqualValues(t, 2, last.GetSequence())
	j.Withdraw("ns", "a", domain.Version{})
	m := next(t, stream)
	require.EqualValues(t, 3, m.GetSequence())
	require.Equal(t, enginev1.EventKind_EVENT_KIND_REMOVE, m.GetEvents()[0].GetKind())
	require.EqualValues(t, 3, m.GetEvents()[0].GetSequence())
	cancel()

	j.Withdraw("ns", "never here", domain.Version{})
	j.Announce("ns", "c", domain.Version{})
	again, _ := follow(t, rpc, &enginev1.EventsRequest{Namespace: []byte("ns"), Boot: 7, Sequence: 3})
	m = next(t, again)
	require.False(t, m.GetResync())
	require.EqualValues(t, 4, m.GetEvents()[0].GetSequence())
	require.Equal(t, "c", string(m.GetEvents()[0].GetKey()))

	for i := range journalEvents {
		j.Announce("other", fmt.Sprint(i), domain.Version{})
	}
	late, _ := follow(t, rpc, &enginev1.EventsRequest{Boot: 7, Sequence: 3})
	require.True(t, next(t, late).GetResync(), "what came after is not all there any more")
	future, _ := follow(t, rpc, &enginev1.EventsRequest{Boot: 7, Sequence: 1 << 40})
	require.True(t, next(t, future).GetResync())
	elsewhere, _ := follow(t, rpc, &enginev1.EventsRequest{Boot: 8, Sequence: 4})
	require.True(t, next(t, elsewhere).GetResync(), "another start")
	require.EqualValues(t, []int{3 + journalEvents, 2}, []int{below.announced, below.withdrawn}, "all of it is passed on")
	counts := s.calls.counted()
	require.EqualValues(t, 4, counts["engine.event_resyncs"])
	require.EqualValues(t, 4+journalEvents, counts["engine.events"])
}

func TestAJournalHasSoManyReaders(t *testing.T) {
	j := NewJournal(&told{})
	for range maxReaders {
		require.NoError(t, j.enter(&reader{}))
	}
	require.ErrorIs(t, j.enter(&reader{}), ports.ErrRefused)
	rpc, _, _ := served(t, &pool{}, Config{})
	stream, err := rpc.Events(t.Context(), &enginev1.EventsRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.Unimplemented, status.Code(err))
}

// TestAStopEndsTheStreams: a reader would go on for ever.
func TestAStopEndsTheStreams(t *testing.T) {
	rpc, s, _ := served(t, &pool{}, Config{Journal: NewJournal(&told{})})
	stream, _ := follow(t, rpc, &enginev1.EventsRequest{})
	require.True(t, next(t, stream).GetSnapshotEnd())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, s.Stop(ctx))
	_, open := <-stream
	require.False(t, open)
}
