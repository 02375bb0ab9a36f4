package rdma_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/rdma"
)

func TestOpenSaysThatItIsUnsupported(t *testing.T) {
	tr, err := rdma.Open("mlx5_0")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, `"mlx5_0"`)
	require.Nil(t, tr)
}
