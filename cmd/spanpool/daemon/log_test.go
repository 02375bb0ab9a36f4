package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/telemetry"
	"github.com/spanpool/spanpool/ports"
)

// TestWarningsThatRepeatAreLimitedAndCounted: by their words, in a window, whatever their attributes are; what is no warning is not.
func TestWarningsThatRepeatAreLimitedAndCounted(t *testing.T) {
	var out bytes.Buffer
	held := &heldBack{}
	h := &limited{Handler: slog.NewTextHandler(&out, nil), held: held}
	at := time.Unix(1_000_000, 0)
	say := func(l slog.Level, message string, after time.Duration) {
		require.NoError(t, h.WithAttrs([]slog.Attr{slog.Duration("after", after)}).Handle(t.Context(), slog.NewRecord(at.Add(after), l, message, 0)))
	}
	for i := range 10 {
		say(slog.LevelWarn, "a peer is down", time.Duration(i)*time.Second)
		say(slog.LevelInfo, "noted", 0)
	}
	say(slog.LevelError, "another", 0)
	require.Equal(t, warningsPerWindow, strings.Count(out.String(), "a peer is down"))
	require.Equal(t, 10, strings.Count(out.String(), "noted"))
	require.Equal(t, 1, strings.Count(out.String(), "another"), "each message has a limit of its own")
	require.EqualValues(t, 10-warningsPerWindow, held.total.Load())

	out.Reset()
	say(slog.LevelWarn, "a peer is down", warningWindow)
	say(slog.LevelWarn, "a peer is down", warningWindow+time.Second)
	require.Equal(t, 1, strings.Count(out.String(), "held_back=7"))
	require.Equal(t, 2, strings.Count(out.String(), "a peer is down"))

	var shown uint64
	f := held.family()
	f.Read(nil, func(v uint64, _ ...string) { shown = v })
	require.EqualValues(t, 7, shown)
}

func TestWhatIsRememberedOfMessagesIsBounded(t *testing.T) {
	held := &heldBack{}
	for i := range 3 * maxMessages {
		held.admit(strings.Repeat("x", i), time.Unix(0, 0))
		require.LessOrEqual(t, len(held.mu.seen), maxMessages)
	}
}

// TestBatchesAreLoggedAtDebugOnly: above it the log stands nowhere near a batch.
func TestBatchesAreLoggedAtDebugOnly(t *testing.T) {
	tel, err := telemetry.New(telemetry.Config{Node: "a"})
	require.NoError(t, err)
	defer func() { require.NoError(t, tel.Close()) }()
	info := slog.New(slog.DiscardHandler)
	require.Same(t, tel.Observer(), observers(info, tel))
	require.Nil(t, observers(info, nil))

	var out bytes.Buffer
	debug := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, shown := range []*telemetry.Telemetry{tel, nil} {
		out.Reset()
		s := ports.BatchSample{Kind: ports.BatchGetRanges, Took: time.Millisecond}
		s.Bytes[ports.FromArena] = 42
		observers(debug, shown).Batch(s)
		require.Contains(t, out.String(), `level=DEBUG msg=batch kind=get_ranges took=1ms local=0 slot=0 direct=0 arena=42`)
	}
}
