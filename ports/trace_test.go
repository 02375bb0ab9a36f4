package ports

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const traceText = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestATraceIsItsHeader(t *testing.T) {
	tr := ParseTrace(traceText)
	require.True(t, tr.Sampled)
	require.EqualValues(t, 0x4b, tr.ID[0])
	require.EqualValues(t, 0xb7, tr.Span[7])
	require.Equal(t, traceText, tr.String())
	tr.Sampled = false
	require.Equal(t, tr, ParseTrace(tr.String()))
	require.Equal(t, ParseTrace(traceText), ParseTrace("cc"+traceText[2:]+"-what-comes-later"), "a later version may say more")
}

func TestWhatIsNoTraceIsNone(t *testing.T) {
	for _, s := range []string{"", "00", traceText[:54], traceText + "-more", traceText + "0", "ff" + traceText[2:], "0x" + traceText[2:],
		"00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		"00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "cc" + traceText[2:] + "more"} {
		require.Zero(t, ParseTrace(s), "%q", s)
	}
}

func TestAContextCarriesItsTrace(t *testing.T) {
	require.Zero(t, TraceOf(t.Context()))
	require.Equal(t, t.Context(), WithTrace(t.Context(), Trace{}))
	require.Equal(t, ParseTrace(traceText), TraceOf(WithTrace(t.Context(), ParseTrace(traceText))))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = TraceOf(t.Context()) }))
}

// FuzzParseTrace: what was parsed says the same again.
func FuzzParseTrace(f *testing.F) {
	f.Add(traceText)
	f.Add("cc" + traceText[2:] + "-x")
	f.Fuzz(func(t *testing.T, s string) {
		if tr := ParseTrace(s); !tr.IsZero() {
			require.Equal(t, tr, ParseTrace(tr.String()))
		}
	})
}
