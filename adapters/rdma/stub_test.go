//go:build !(linux && cgo && rdma)

package rdma

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABuildWithoutSaysSo(t *testing.T) {
	tr, err := Open(Config{Device: "mlx5_0"})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, `"mlx5_0"`)
	require.Nil(t, tr)
	_, err = Devices()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.False(t, Built)
}
