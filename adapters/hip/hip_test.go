package hip_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip"
)

func TestConstructorsSayThatTheyAreUnsupported(t *testing.T) {
	m, err := hip.OpenMedium(3, 1<<20, 1<<16)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "1048576 bytes on device 3")
	require.Nil(t, m)

	c, err := hip.OpenCopier()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Nil(t, c)
}
