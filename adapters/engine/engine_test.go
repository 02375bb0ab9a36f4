package engine_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/engine"
)

func TestListenSaysThatItIsUnsupported(t *testing.T) {
	s, err := engine.Listen("/run/spanpool/engine.sock", nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, `"/run/spanpool/engine.sock"`)
	require.Nil(t, s)
}
