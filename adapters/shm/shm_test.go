package shm_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/shm"
)

func TestOpenSaysThatItIsUnsupported(t *testing.T) {
	tr, err := shm.Open("/run/spanpool")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, `"/run/spanpool"`)
	require.Nil(t, tr)
}
