//go:build !linux

package tcp

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListenSaysThatItIsUnsupported(t *testing.T) {
	tr, err := Listen(Config{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Nil(t, tr)
}
