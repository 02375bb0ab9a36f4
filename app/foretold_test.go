package app

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
)

// TestOnlyASumThatWasMadeAndIsTheForetoldOneMatches: a sum may be 0, as that of an op without one is.
func TestOnlyASumThatWasMadeAndIsTheForetoldOneMatches(t *testing.T) {
	for _, tt := range []struct {
		name  string
		due   foretold
		done  ports.Completion
		match bool
	}{
		{"the same", foretold{7, true}, ports.Completion{Sum: 7, Summed: true}, true},
		{"the same, of 0", foretold{0, true}, ports.Completion{Summed: true}, true},
		{"another", foretold{7, true}, ports.Completion{Sum: 6, Summed: true}, false},
		{"none was made", foretold{0, true}, ports.Completion{}, false},
		{"none is known", foretold{}, ports.Completion{Summed: true}, false},
		{"of an op that failed", foretold{7, true}, ports.Completion{Sum: 7, Summed: true, Err: ports.ErrReset}, false},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.match, tt.due.matches(&tt.done)) })
	}
}
