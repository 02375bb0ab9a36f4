package hip_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// nowhere is no runtime's path, so that these hold in builds with and without GPU support, and on hosts with a GPU.
const nowhere = "/nowhere/libgpu.so"

// refusing copies nothing.
type refusing struct{}

func (refusing) Copy(_ context.Context, _ []ports.CopyOp, errs []error) {
	for i := range errs {
		errs[i] = errors.ErrUnsupported
	}
}

func TestARuntimeThatCannotBeHadSaysWhy(t *testing.T) {
	r, err := hip.Open(hip.Config{Library: nowhere, Host: refusing{}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Nil(t, r)
}

func TestImpossibleConfigurationsNameValueAndLimit(t *testing.T) {
	for _, tt := range []struct {
		cfg  hip.Config
		want []string
	}{
		{hip.Config{}, []string{"none", "needed"}},
		{hip.Config{Vendor: "metal"}, []string{"metal", "auto", "hip", "cuda"}},
		{hip.Config{Deadline: -time.Second}, []string{"-1s", "more than 0"}},
		{hip.Config{Threads: -1}, []string{"threads", "64"}},
		{hip.Config{Threads: 65}, []string{"65", "64"}},
		{hip.Config{BounceBytes: 4095}, []string{"4095", "4096"}},
		{hip.Config{BounceBytes: math.MaxUint64}, []string{"18446744073709551615", "1073741824"}},
	} {
		tt.cfg.Library = nowhere
		if tt.cfg != (hip.Config{Library: nowhere}) {
			tt.cfg.Host = refusing{}
		}
		_, err := hip.Open(tt.cfg)
		require.ErrorIs(t, err, domain.ErrInvalid, "%+v", tt.cfg)
		for _, w := range tt.want {
			require.ErrorContains(t, err, w)
		}
	}
}
