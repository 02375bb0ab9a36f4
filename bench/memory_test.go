package bench

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestAvailableMemoryIsNineTenthsOfTheTightestLimit(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	meminfo := file("MemTotal: 2000 kB\nMemAvailable:    1000 kB\n")
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  uint64
		known bool
	}{
		"nothing is readable": {fstest.MapFS{}, 0, false},
		"host":                {fstest.MapFS{"proc/meminfo": meminfo}, 1000 << 10, true},
		"garbage":             {fstest.MapFS{"proc/meminfo": file("MemAvailable: x kB\n")}, 0, false},
		"no limit":            {fstest.MapFS{"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": file("max\n")}, 1000 << 10, true},
		"cgroup v2": {fstest.MapFS{"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": file("500000\n"),
			"sys/fs/cgroup/memory.current": file("100000\n"), "sys/fs/cgroup/memory.stat": file("anon 1\ninactive_file 30000\n")}, 430_000, true},
		"own cgroup, its parent's limit": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/a/b\n"),
			"sys/fs/cgroup/a/memory.max": file("400000\n"), "sys/fs/cgroup/a/memory.current": file("500000\n")}, 0, true},
		"cgroup v1": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("4:memory:/x\n"),
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": file("300000\n")}, 300_000, true},
	} {
		got, known := AvailableMemory(c.files)
		require.Equal(t, c.known, known, name)
		require.Equal(t, uint64(memoryShare*float64(c.want)), got, name)
	}
}

func TestNeedsSaturate(t *testing.T) {
	require.Equal(t, ^uint64(0), times(1<<40, 1<<30))
	require.Equal(t, uint64(0), times(1<<40, 0, 1<<40))
	require.Equal(t, uint64(30), times(2, 3, 5))
	require.Equal(t, ^uint64(0), sumNeeds([]MemoryNeed{{"a", ^uint64(0)}, {"b", 2}}))
	require.NoError(t, checkMemory("row", []MemoryNeed{{"a", 1}, {"b", 2}}, 3))
	require.EqualError(t, checkMemory("row", []MemoryNeed{{"a", 2 << 20}, {"b", 1 << 20}}, 1<<20),
		"row needs 3.0 MiB of memory (a 2.0 MiB, b 1.0 MiB), limit 1.0 MiB by --max-memory")
}

func TestSizesAreParsed(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "7": 7, "2KiB": 2 << 10, "3MiB": 3 << 20, "4GiB": 4 << 30, "5TiB": 5 << 40,
		"18446744073709551615": ^uint64(0)} {
		got, err := ParseBytes(text)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1 GiB", "1GB", "18446744073709551616", "18014398509481984KiB"} {
		_, err := ParseBytes(text)
		require.ErrorContains(t, err, "size", text)
	}
}
