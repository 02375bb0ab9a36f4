package ports_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

func TestABatchThatContradictsItselfIsRefused(t *testing.T) {
	segments := make([]ports.Segment, 3)
	for name, tt := range map[string]struct {
		op  ports.Op
		bad bool
	}{
		"all segments":      {ports.Op{Count: 3}, false},
		"the last, none":    {ports.Op{First: 3}, false},
		"a write":           {ports.Op{First: 1, Count: 2, Dir: ports.Write, Purpose: ports.PurposePut}, false},
		"one too many":      {ports.Op{First: 1, Count: 3}, true},
		"a sum that wraps":  {ports.Op{First: math.MaxUint32, Count: 2}, true},
		"no such purpose":   {ports.Op{Purpose: ports.NumPurposes}, true},
		"no such direction": {ports.Op{Dir: ports.Write + 1}, true},
	} {
		err := (&ports.Batch{Ops: []ports.Op{{Count: 1}, tt.op}, Segments: segments}).Check()
		require.Equal(t, tt.bad, err != nil, name)
		if tt.bad {
			require.ErrorIs(t, err, domain.ErrInvalid, name)
			require.ErrorContains(t, err, "op 1", name)
		}
	}
}
