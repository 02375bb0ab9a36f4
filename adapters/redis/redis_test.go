package redis_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/redis"
)

func TestDialSaysThatItIsUnsupported(t *testing.T) {
	d, err := redis.Dial("127.0.0.1:6379")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, `"127.0.0.1:6379"`)
	require.Nil(t, d)
}
