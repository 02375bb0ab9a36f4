package ports

import (
	"context"
	"encoding/hex"
	"fmt"
)

// Trace is a place in a trace, as W3C Trace Context has it. The zero value is none. It goes with a context from whoever calls a Pool
// to the control calls that the batch makes, and there to the peer.
type Trace struct {
	ID      [16]byte
	Span    [8]byte // what is done next is a child of it
	Sampled bool    // somebody keeps the spans
}

// IsZero reports whether there is no trace.
func (t Trace) IsZero() bool { return t.ID == [16]byte{} || t.Span == [8]byte{} }

// TraceHeader is the name under which protocols with headers carry a Trace.
const TraceHeader = "traceparent"

// String is the value of that header.
func (t Trace) String() string {
	flags := 0
	if t.Sampled {
		flags = 1
	}
	return fmt.Sprintf("00-%x-%x-%02x", t.ID, t.Span, flags)
}

// ParseTrace reads a header's value. What is not one, and what names no span, is no trace: a caller that traces badly is served all
// the same.
func ParseTrace(s string) Trace {
	const form = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	var t Trace
	var flags [1]byte
	if len(s) < len(form) || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" || s[:2] == "00" && len(s) > len(form) || len(s) > len(form) && s[55] != '-' {
		return Trace{}
	}
	var version [1]byte
	for _, part := range []struct {
		into []byte
		text string
	}{{version[:], s[:2]}, {t.ID[:], s[3:35]}, {t.Span[:], s[36:52]}, {flags[:], s[53:55]}} {
		if _, err := hex.Decode(part.into, []byte(part.text)); err != nil {
			return Trace{}
		}
	}
	if t.Sampled = flags[0]&1 == 1; t.IsZero() {
		return Trace{}
	}
	return t
}

type traceKey struct{}

// WithTrace makes a context whose control calls carry t. One that is none leaves the context as it is.
func WithTrace(ctx context.Context, t Trace) context.Context {
	if t.IsZero() {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceOf is the trace of a context; zero when it has none.
func TraceOf(ctx context.Context) Trace {
	t, _ := ctx.Value(traceKey{}).(Trace)
	return t
}
