package dram

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
)

// openOrSkip skips on a system without that backing only.
func openOrSkip(t testing.TB, cfg Config) *Medium {
	t.Helper()
	m, err := Open(cfg)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return m
}

func TestMediumKeepsThePortsContract(t *testing.T) {
	for _, backing := range []Backing{Anonymous, Memfd, HeapForTesting} {
		for _, cfg := range []Config{
			{Bytes: 4096, PageSize: 4096},
			{Bytes: 7 * 64 << 10, PageSize: 64 << 10, Buffers: 3},
			{Bytes: 11 * 1728, PageSize: 1728, Buffers: 2}, // a page that is no multiple of the processor's
			{Bytes: 13, PageSize: 1, Buffers: 13},
			{Bytes: 6<<20 + 4096, PageSize: 4096, HugePages: true},
		} {
			cfg.Backing = backing
			t.Run(fmt.Sprintf("%v/bytes=%d/page=%d/buffers=%d/huge=%t", backing, cfg.Bytes, cfg.PageSize, cfg.Buffers, cfg.HugePages),
				func(t *testing.T) {
					porttest.RunMedium(t, func(t *testing.T) ports.Medium { return openOrSkip(t, cfg) })
				})
		}
	}
}

func TestArenaIsOneBufferOfOnePage(t *testing.T) {
	porttest.RunMedium(t, func(t *testing.T) ports.Medium {
		m, err := OpenArena(100_000)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		require.NoError(t, err)
		require.Len(t, m.Buffers(), 1)
		require.EqualValues(t, 100_000, m.Buffers()[0].Len())
		require.EqualValues(t, 100_000, m.PageSize())
		return m
	})
}

func TestPagesAreDealtOutEvenly(t *testing.T) {
	m, err := Open(Config{Bytes: 110, PageSize: 10, Buffers: 4, Backing: HeapForTesting})
	require.NoError(t, err)
	var lens []uint64
	for _, r := range m.Buffers() {
		lens = append(lens, r.Len())
	}
	require.Equal(t, []uint64{30, 30, 30, 20}, lens)
	require.Equal(t, Stats{Bytes: 110}, m.Stats())
	require.NoError(t, m.Close())
}

func TestImpossibleCapacitiesNameValueAndLimit(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want []string
	}{
		{Config{PageSize: 4096}, []string{"capacity", ": 0,", "4096"}},
		{Config{Bytes: 4096}, []string{"page size", ": 0,", "1 or more"}},
		{Config{Bytes: 5000, PageSize: 4096}, []string{"capacity", "5000", "multiple", "4096"}},
		{Config{Bytes: 4095, PageSize: 4096}, []string{"capacity", "4095", "4096"}},
		{Config{Bytes: math.MaxUint64, PageSize: 1}, []string{"capacity", "18446744073709551615", "limit"}},
		{Config{Bytes: 1 << 63, PageSize: 1 << 20}, []string{"capacity", "9223372036854775808", "limit"}},
		{Config{Bytes: math.MaxUint64 - 4095, PageSize: 4096}, []string{"capacity", "18446744073709547520", "limit"}},
		{Config{Bytes: 8192, PageSize: math.MaxUint64}, []string{"capacity", "8192", "18446744073709551615"}},
		{Config{Bytes: 8192, PageSize: 4096, Buffers: 3}, []string{"buffers", "3", "limit 2"}},
		{Config{Bytes: 8192, PageSize: 4096, Buffers: -1}, []string{"buffers", "-1", "limit"}},
		{Config{Bytes: 1<<32 + 1, PageSize: 1}, []string{"pages of a buffer", "4294967297", "limit 4294967296"}},
		{Config{Bytes: 1<<34 + 4, PageSize: 1, Buffers: 4}, []string{"pages of a buffer", "4294967297", "limit 4294967296"}},
		{Config{Bytes: 4096, PageSize: 4096, Backing: 9}, []string{"backing", "9", "limit 2"}},
	} {
		t.Run(fmt.Sprintf("%+v", tt.cfg), func(t *testing.T) {
			m, err := Open(tt.cfg)
			require.Nil(t, m)
			require.ErrorIs(t, err, domain.ErrInvalid)
			for _, w := range tt.want {
				require.Contains(t, err.Error(), w)
			}
		})
	}
	_, err := OpenArena(0)
	require.ErrorIs(t, err, domain.ErrInvalid)
}

func TestMoreMemoryThanThereIsNamesWantedAndLimit(t *testing.T) {
	const wanted = 1 << 50
	for _, backing := range []Backing{Anonymous, Memfd} {
		_, err := Open(Config{Bytes: wanted, PageSize: 1 << 30, Backing: backing})
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		require.ErrorIs(t, err, ports.ErrNoSpace)
		require.Contains(t, err.Error(), fmt.Sprint(uint64(wanted)))
		require.Contains(t, err.Error(), "limit")
		require.True(t, strings.HasPrefix(err.Error(), "dram: "+backing.String()), err.Error())
	}
}

func TestCloseTwiceIsNoError(t *testing.T) {
	for _, backing := range []Backing{Anonymous, Memfd, HeapForTesting} {
		m := openOrSkip(t, Config{Bytes: 8192, PageSize: 4096, Buffers: 2, Backing: backing})
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())
		require.Len(t, m.Buffers(), 2)
	}
}
