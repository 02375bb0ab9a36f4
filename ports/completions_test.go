package ports_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

func tags(cs []ports.Completion) []uint64 {
	var out []uint64
	for _, c := range cs {
		out = append(out, c.Tag)
	}
	return out
}

func TestTakeReturnsWhatWasPostedInOrderAndOnce(t *testing.T) {
	q := ports.NewCompletions()
	failed := errors.New("failed")
	posted := []ports.Completion{{Tag: 7, At: 1}, {Tag: 7, At: 2, Err: failed}, {Tag: 1, At: domain.Instant(3)}}
	for _, c := range posted {
		q.Post(c)
	}
	require.Equal(t, 3, q.Len())
	got, err := q.Take(t.Context(), 0, nil)
	require.NoError(t, err)
	require.Equal(t, posted, got)
	require.Zero(t, q.Len())
	got, err = q.Take(t.Context(), 0, got)
	require.NoError(t, err)
	require.Equal(t, posted, got, "a Take that found nothing returns what dst held")
}

func TestTakeAppends(t *testing.T) {
	q := ports.NewCompletions()
	q.Post(ports.Completion{Tag: 2})
	got, err := q.Take(t.Context(), time.Hour, []ports.Completion{{Tag: 1}})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2}, tags(got))
}

func TestTakeOfNoTimeDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ports.NewCompletions()
		began := time.Now()
		for _, atMost := range []time.Duration{0, -time.Second} {
			got, err := q.Take(t.Context(), atMost, nil)
			require.NoError(t, err)
			require.Empty(t, got)
		}
		require.Equal(t, began, time.Now())
	})
}

func TestTakeWaitsForAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ports.NewCompletions()
		for range 3 { // the timer is reused
			began := time.Now()
			got, err := q.Take(t.Context(), 3*time.Second, nil)
			require.NoError(t, err)
			require.Empty(t, got)
			require.Equal(t, 3*time.Second, time.Since(began))
		}
	})
}

func TestTakeReturnsAtThePost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ports.NewCompletions()
		began := time.Now()
		time.AfterFunc(time.Second, func() { q.Post(ports.Completion{Tag: 5}) })
		got, err := q.Take(t.Context(), time.Hour, nil)
		require.NoError(t, err)
		require.Equal(t, []uint64{5}, tags(got))
		require.Equal(t, time.Second, time.Since(began))
	})
}

// TestAWakeUpThatIsLeftOverIsNoCompletion: what was taken without waiting leaves its wake-up in the channel.
func TestAWakeUpThatIsLeftOverIsNoCompletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ports.NewCompletions()
		q.Post(ports.Completion{Tag: 1})
		_, err := q.Take(t.Context(), 0, nil)
		require.NoError(t, err)
		began := time.Now()
		got, err := q.Take(t.Context(), time.Minute, nil)
		require.NoError(t, err)
		require.Empty(t, got)
		require.Equal(t, time.Minute, time.Since(began))
	})
}

func TestAnEndedTimeBoundsTheNextTakeNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ports.NewCompletions()
		time.AfterFunc(time.Second, func() { q.Post(ports.Completion{Tag: 1}) })
		_, err := q.Take(t.Context(), 2*time.Second, nil) // armed, and stopped after a second
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		began := time.Now()
		_, err = q.Take(t.Context(), 10*time.Second, nil)
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}

func TestTheContextEndsTheWaitWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := ports.NewCompletions()
		cause := errors.New("the caller left")
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		time.AfterFunc(time.Second, func() { cancel(cause) })
		got, err := q.Take(ctx, time.Hour, []ports.Completion{{Tag: 9}})
		require.ErrorIs(t, err, cause)
		require.Equal(t, []uint64{9}, tags(got))
		require.Equal(t, time.Second, time.Since(began))
	})
}

// TestNothingIsLostWhenTheContextEnds posts at the instant of the end, on both sides of it, and again afterwards.
func TestNothingIsLostWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 {
			q := ports.NewCompletions()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			var posters sync.WaitGroup
			for tag := range uint64(4) {
				posters.Go(func() {
					time.Sleep(time.Second)
					q.Post(ports.Completion{Tag: tag})
				})
			}
			got, err := q.Take(ctx, time.Hour, nil)
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			posters.Wait()
			got, err = q.Take(t.Context(), 0, got)
			require.NoError(t, err)
			require.ElementsMatch(t, []uint64{0, 1, 2, 3}, tags(got))
			cancel()
		}
	})
}

// endsAsItIsPosted ends, and has a completion posted, between the look at the queue and the wait.
type endsAsItIsPosted struct {
	context.Context
	q *ports.Completions
}

func (c endsAsItIsPosted) Done() <-chan struct{} {
	c.q.Post(ports.Completion{Tag: 4})
	return c.Context.Done()
}

func TestWhatIsPostedAsTheContextEndsIsTaken(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // both ends of the wait are ready: which one is seen is drawn
		q := ports.NewCompletions()
		got, err := q.Take(endsAsItIsPosted{ctx, q}, time.Hour, nil)
		require.Equal(t, []uint64{4}, tags(got), "%v", err)
	}
}

func TestWhatWaitsIsTakenThoughTheContextHasEnded(t *testing.T) {
	q := ports.NewCompletions()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.Post(ports.Completion{Tag: 3})
	got, err := q.Take(ctx, time.Hour, nil)
	require.NoError(t, err)
	require.Equal(t, []uint64{3}, tags(got))
	_, err = q.Take(ctx, time.Hour, got)
	require.ErrorIs(t, err, context.Canceled)
}

func TestEveryPostOfManyPostersIsTakenOnce(t *testing.T) {
	const posters, each = 4, 2000
	q := ports.NewCompletions()
	var wg sync.WaitGroup
	for p := range uint64(posters) {
		wg.Go(func() {
			for i := range uint64(each) {
				q.Post(ports.Completion{Tag: p*each + i})
			}
		})
	}
	seen := make([]int, posters*each)
	last := make([]int64, posters)
	for i := range last {
		last[i] = -1
	}
	var buf []ports.Completion
	for n := 0; n < posters*each; {
		got, err := q.Take(t.Context(), 10*time.Second, buf[:0])
		require.NoError(t, err)
		require.NotEmpty(t, got, "%d of %d came", n, posters*each)
		for _, c := range got {
			seen[c.Tag]++
			p, i := c.Tag/each, int64(c.Tag%each)
			require.Less(t, last[p], i, "posts of one goroutine stay in order")
			last[p] = i
		}
		n += len(got)
		buf = got
	}
	wg.Wait()
	require.Zero(t, q.Len())
	for tag, n := range seen {
		require.Equal(t, 1, n, "tag %d", tag)
	}
}

func TestCompletionsAllocateNothingInSteadyState(t *testing.T) {
	q := ports.NewCompletions()
	buf := make([]ports.Completion, 0, 64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	batch := func() {
		for tag := range uint64(64) {
			q.Post(ports.Completion{Tag: tag})
		}
		got, err := q.Take(ctx, time.Second, buf[:0])
		if err != nil || len(got) != 64 {
			t.Fatal(err, len(got))
		}
	}
	batch()
	require.Zero(t, testing.AllocsPerRun(100, batch))
	require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = q.Take(ctx, time.Microsecond, buf[:0]) }), "a bounded wait")
}

func BenchmarkCompletions(b *testing.B) {
	q := ports.NewCompletions()
	buf := make([]ports.Completion, 0, 32)
	b.ReportAllocs()
	for b.Loop() {
		for tag := range uint64(32) {
			q.Post(ports.Completion{Tag: tag})
		}
		_, _ = q.Take(b.Context(), time.Second, buf[:0])
	}
}
