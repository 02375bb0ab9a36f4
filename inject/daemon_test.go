package inject

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/ports"
)

func TestADaemonsPartsAreItsNodesPorts(t *testing.T) {
	medium, err := dram.Open(dram.Config{Bytes: 1 << 20, PageSize: 4 << 10})
	require.NoError(t, err)
	defer func() { require.NoError(t, medium.Close()) }()
	made := 0
	n, stop, err := Daemon(app.Config{ID: "a", Incarnation: 7}, Parts{Medium: medium, Copier: func(c ports.Copier) ports.Copier { made++; return c }})
	require.NoError(t, err)
	require.Equal(t, ports.Peer{ID: "a", Incarnation: 7}, n.Self())
	require.Equal(t, 1, made)
	require.Equal(t, uint64(256), n.Stats().Table.PagesTotal)
	require.Equal(t, ports.Stored, n.Put(t.Context(), "", "k", ports.HostRegionOf([]byte("v"))).Status)
	stop()
	require.ErrorIs(t, n.Close(), ports.ErrClosed)
	require.Equal(t, byte('v'), medium.Buffers()[0].(ports.HostRegion).Bytes()[0], "the parts are the caller's to close")
}

func TestADaemonThatIsRefusedStartsNothing(t *testing.T) {
	_, _, err := Daemon(app.Config{}, Parts{})
	require.ErrorContains(t, err, "ID")
}
