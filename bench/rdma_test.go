package bench

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/rdma"
	"github.com/spanpool/spanpool/ports"
)

func TestSweepsRefuseWhatCannotBeRun(t *testing.T) {
	good := RDMASweep{Sizes: []uint64{4096}, Depths: []int{1}, Time: time.Second}
	require.NoError(t, good.Check())
	for name, change := range map[string]func(*RDMASweep){
		"no size":     func(o *RDMASweep) { o.Sizes = nil },
		"no depth":    func(o *RDMASweep) { o.Depths = nil },
		"size 0":      func(o *RDMASweep) { o.Sizes = []uint64{0} },
		"size":        func(o *RDMASweep) { o.Sizes = []uint64{sweepMost + 1} },
		"depth 0":     func(o *RDMASweep) { o.Depths = []int{0} },
		"depth":       func(o *RDMASweep) { o.Depths = []int{sweepDepth + 1} },
		"in flight":   func(o *RDMASweep) { o.Sizes, o.Depths = []uint64{sweepMost}, []int{17} },
		"time":        func(o *RDMASweep) { o.Time = 0 },
		"a long time": func(o *RDMASweep) { o.Time = time.Hour },
	} {
		o := good
		change(&o)
		var option *OptionError
		require.ErrorAs(t, o.Check(), &option, name)
	}
}

func TestASweepWithoutADeviceSaysSo(t *testing.T) {
	if rdma.Built {
		t.Skip("this build may have a device; scripts/rdma/guest.sh runs the sweep on one")
	}
	o := RDMASweep{Sizes: []uint64{4096}, Depths: []int{1}, Time: time.Millisecond}
	require.ErrorIs(t, o.Run(t.Context(), nil), errors.ErrUnsupported)
}

func TestTheRowOfPerftestIsFound(t *testing.T) {
	const out = `---------------------------------------------------------------------------------------
                    RDMA_Read BW Test
 Dual-port       : OFF		Device         : mlx5_0
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             11733.33            11000.00		   0.176000
---------------------------------------------------------------------------------------
`
	got, why := parsePerftest([]byte(out))
	require.Empty(t, why)
	require.InDelta(t, 11.534, got, 0.001)
	_, why = parsePerftest([]byte("Couldn't connect"))
	require.NotEmpty(t, why)
}

// TestPerftestIsNotTriedOnWhenItsOwnersEndFails: its asker finds nobody to connect to.
func TestPerftestIsNotTriedOnWhenItsOwnersEndFails(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	const script = `#!/bin/sh
for last; do :; done
[ "$last" != 127.0.0.1 ] || { echo "Couldn't connect to 127.0.0.1"; exit 1; }
echo "unsupported transport"; exit 1
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ib_read_bw"), []byte(script), 0o700))
	_, why := perftest(t.Context(), &RDMASweep{}, ports.Read, 4096, 1)
	require.Contains(t, why, "unsupported transport")
}

func TestRowsOfASweepSayWhyPerftestIsNotBeside(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, WriteRDMARows(&b, []RDMARow{{Dir: "read", Bytes: 4096, Depth: 2, Ops: 10, Rate: 1.5, P50: time.Millisecond, P95: 2 * time.Millisecond, PerftestIs: "not installed"}}))
	require.Contains(t, b.String(), "1.500")
	require.Contains(t, b.String(), "1000.0")
	require.Contains(t, b.String(), "(not installed)")
}
