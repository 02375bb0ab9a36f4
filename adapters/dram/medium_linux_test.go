package dram

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

func TestMemoryIsPopulatedAtOpen(t *testing.T) {
	for _, cfg := range []Config{
		{Bytes: 1 << 20, PageSize: 4096, Buffers: 2},
		{Bytes: 1 << 20, PageSize: 4096, Buffers: 2, Backing: Memfd},
		{Bytes: 4 << 20, PageSize: 4096, HugePages: true},
	} {
		m := openOrSkip(t, cfg)
		for _, r := range m.Buffers() {
			require.Zero(t, absentPages(t, r.(ports.HostRegion).Bytes()), "%+v", cfg)
		}
		require.NoError(t, m.Close())
	}
}

// absentPages reads pagemap: bit 63 of a page's entry says that it is there.
func absentPages(t *testing.T, b []byte) int {
	f, err := os.Open("/proc/self/pagemap")
	require.NoError(t, err)
	defer f.Close()
	page := os.Getpagesize()
	entries := make([]byte, (len(b)+page-1)/page*8)
	_, err = f.ReadAt(entries, int64(addrOf(b))/int64(page)*8)
	require.NoError(t, err)
	absent := 0
	for i := 7; i < len(entries); i += 8 {
		if entries[i]&0x80 == 0 {
			absent++
		}
	}
	return absent
}

func TestHugePagesAreHadOrCounted(t *testing.T) {
	huge := hugePagesOf(os.DirFS("/"))
	asked := Config{Bytes: 4 * huge.transparentSize, PageSize: 4096, HugePages: true, Buffers: 2}
	m := openOrSkip(t, asked)
	got := m.Stats()
	if kernelHasHugePages(t, huge.transparentSize) {
		require.NotZero(t, got.HugeBytes)
		require.Zero(t, addrOf(m.Buffers()[1].(ports.HostRegion).Bytes())%huge.transparentSize)
	} else {
		require.Zero(t, got.HugeBytes)
	}
	require.Equal(t, got.HugeBytes == asked.Bytes, got.HugePageFallbacks == 0, "%+v", got)
	require.NoError(t, m.Close())

	tooSmall := openOrSkip(t, Config{Bytes: 4096, PageSize: 4096, HugePages: true})
	require.Equal(t, Stats{Bytes: 4096, HugePageFallbacks: 1}, tooSmall.Stats())
	require.NoError(t, tooSmall.Close())

	notAsked := openOrSkip(t, Config{Bytes: 4 << 20, PageSize: 4096})
	require.Zero(t, notAsked.Stats().HugePageFallbacks)
	require.NoError(t, notAsked.Close())
}

// kernelHasHugePages asks without the code under test: they may be switched off, or memory too fragmented.
func kernelHasHugePages(t *testing.T, size uint64) bool {
	b, err := unix.Mmap(-1, 0, int(4*size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(b)) }()
	middle := b[size : 3*size] // in a mapping of its own, since the advice splits it off
	if unix.Madvise(middle, unix.MADV_HUGEPAGE) != nil {
		return false
	}
	require.NoError(t, unix.Madvise(middle, unix.MADV_POPULATE_WRITE))
	return hugeBytesAt(addrOf(middle), 2*size) > 0
}

// TestMemfdWithoutReservedHugePagesFallsBack asks for more than the pool has.
func TestMemfdWithoutReservedHugePagesFallsBack(t *testing.T) {
	huge := hugePagesOf(os.DirFS("/"))
	if huge.reservedFree > 64<<20 {
		t.Skipf("the pool of huge pages has %d bytes: the test would have to fill it", huge.reservedFree)
	}
	bytes := huge.reservedFree + huge.reservedSize
	m := openOrSkip(t, Config{Bytes: bytes, PageSize: 4096, HugePages: true, Backing: Memfd})
	defer m.Close()
	shmem, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if strings.Contains(string(shmem), "[never]") {
		require.Equal(t, Stats{Bytes: bytes, HugePageFallbacks: 1}, m.Stats())
	}
	require.EqualValues(t, bytes, m.Buffers()[0].Len())
}

// TestMemfdOfReservedHugePages runs where an administrator has set some aside (vm.nr_hugepages).
func TestMemfdOfReservedHugePages(t *testing.T) {
	huge := hugePagesOf(os.DirFS("/"))
	if huge.reservedFree < 2*huge.reservedSize {
		t.Skip("unsupported here: the host has reserved no huge pages")
	}
	bytes := huge.reservedSize + 4096
	m := openOrSkip(t, Config{Bytes: bytes, PageSize: 4096, HugePages: true, Backing: Memfd})
	require.Equal(t, Stats{Bytes: bytes, HugeBytes: bytes}, m.Stats())
	require.NoError(t, m.Close())
	require.Equal(t, huge.reservedFree, hugePagesOf(os.DirFS("/")).reservedFree)
}

func TestFileOfARegionIsItsMemory(t *testing.T) {
	m := openOrSkip(t, Config{Bytes: 5 * 1728, PageSize: 1728, Buffers: 2, Backing: Memfd})
	for i, r := range m.Buffers() {
		h := r.(ports.HostRegion)
		require.NotNil(t, h.File())
		content.Fill(h.Bytes(), uint64(i), 0)
		b := make([]byte, h.Len())
		n, err := unix.Pread(int(h.File().FD), b, int64(h.File().Off))
		require.NoError(t, err)
		require.Equal(t, len(b), n)
		require.Equal(t, -1, content.Check(b, uint64(i), 0))

		b[0] ^= 1
		_, err = unix.Pwrite(int(h.File().FD), b[:1], int64(h.File().Off))
		require.NoError(t, err)
		require.Equal(t, b[0], h.Bytes()[0])
	}
	fd := m.Buffers()[0].(ports.HostRegion).File().FD
	require.NoError(t, m.Close())
	_, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
	require.ErrorIs(t, err, unix.EBADF, "Close left the file open")
}

func TestMemfdCannotBeCutShort(t *testing.T) {
	m := openOrSkip(t, Config{Bytes: 8192, PageSize: 4096, Backing: Memfd})
	defer m.Close()
	fd := int(m.Buffers()[0].(ports.HostRegion).File().FD)
	require.ErrorIs(t, unix.Ftruncate(fd, 4096), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 1<<20), unix.EPERM)
}

func TestCloseUnmaps(t *testing.T) {
	for _, backing := range []Backing{Anonymous, Memfd} {
		m := openOrSkip(t, Config{Bytes: 1 << 20, PageSize: 4096, Backing: backing})
		b := m.Buffers()[0].(ports.HostRegion).Bytes()
		require.NoError(t, unix.Madvise(b, unix.MADV_NORMAL))
		require.NoError(t, m.Close())
		require.ErrorIs(t, unix.Madvise(b, unix.MADV_NORMAL), unix.ENOMEM, "%v is mapped still", backing)
	}
}

// TestOverrunOfABufferFaults looks at the guards through a copy, which survives them.
func TestOverrunOfABufferFaults(t *testing.T) {
	m := openOrSkip(t, Config{Bytes: 8192, PageSize: 4096, Buffers: 2})
	defer m.Close()
	b := m.Buffers()[0].(ports.HostRegion).Bytes()
	for _, off := range []int{-1, len(b)} {
		beyond := ports.HostRegionOf(bytesAt(addrOf(b)+uint64(off), 1))
		require.ErrorAs(t, copyByte(ports.HostRegionOf(b), beyond), new(*FaultError), "read at %d", off)
		require.ErrorAs(t, copyByte(beyond, ports.HostRegionOf(b)), new(*FaultError), "write at %d", off)
	}
}

func copyByte(dst, src ports.Region) error {
	errs := make([]error, 1)
	NewCopier().Copy(context.Background(), []ports.CopyOp{{Dst: dst, Src: src, Len: 1}}, errs)
	return errs[0]
}

// TestMemoryThatVanishesFailsItsOpAlone: a client cuts its file short while its memory is copied.
func TestMemoryThatVanishesFailsItsOpAlone(t *testing.T) {
	page := os.Getpagesize()
	fd, err := unix.MemfdCreate("client", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, int64(2*page)))
	mem, err := unix.Mmap(fd, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()
	content.Fill(mem, 1, 0)
	require.NoError(t, unix.Ftruncate(fd, int64(page)))

	client, ours := ports.HostRegionOf(mem), ports.HostRegionOf(make([]byte, 3*page))
	content.Poison(ours.Bytes())
	errs := make([]error, 4)
	NewCopier().Copy(t.Context(), []ports.CopyOp{
		{Dst: ours, Src: client, Len: uint64(page)},
		{Dst: ours, Src: client, DstOff: uint64(page), SrcOff: uint64(page), Len: 8},
		{Dst: client, Src: ours, DstOff: uint64(page), Len: 8},
		{Dst: ours, Src: client, DstOff: uint64(2 * page), Len: uint64(page)},
	}, errs)
	require.NoError(t, errs[0])
	require.ErrorAs(t, errs[1], new(*FaultError))
	require.ErrorAs(t, errs[2], new(*FaultError))
	require.NoError(t, errs[3])
	require.Equal(t, -1, content.Check(ours.Bytes()[:page], 1, 0))
	require.Equal(t, -1, content.Check(ours.Bytes()[2*page:], 1, 0))
}

func TestOnlyFaultsAreRecovered(t *testing.T) {
	require.Panics(t, func() { NewCopier().Copy(t.Context(), make([]ports.CopyOp, 2), make([]error, 1)) })
}

const meminfo = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    800 kB\nHugePages_Total:  9\nHugePages_Free:  5\nHugePages_Rsvd: 2\nHugepagesize: 2048 kB\n"

const (
	mountV2     = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1     = "33 25 0:30 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
	mountV1Cpu  = "34 25 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	mountV1Part = "33 25 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)

func TestCapacityIsCheckedAgainstHostAndCgroups(t *testing.T) {
	const kib = 1 << 10
	for _, tt := range []struct {
		name  string
		files map[string]string
		left  uint64 // the least that any limit leaves; one byte more is refused
		by    string
	}{
		{"no cgroup", nil, 800 * kib, "MemAvailable"},
		{"v2, own", map[string]string{
			"proc/self/mountinfo": mountV2, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "614400\n", "sys/fs/cgroup/a/b/memory.current": "204800\n",
		}, 400 * kib, "/sys/fs/cgroup/a/b/memory.max"},
		{"v2, pages of files that nobody used lately are free", map[string]string{
			"proc/self/mountinfo": mountV2, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "614400\n", "sys/fs/cgroup/a/memory.current": "204800\n",
			"sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 102400\nactive_file 7\n",
		}, 500 * kib, "/sys/fs/cgroup/a/memory.max"},
		{"v2, a parent is tighter", map[string]string{
			"proc/self/mountinfo": mountV2, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "1\n",
			"sys/fs/cgroup/a/memory.max": "307200\n", "sys/fs/cgroup/a/memory.current": "102400\n",
		}, 200 * kib, "/sys/fs/cgroup/a/memory.max"},
		{"v2, seen from inside of a container", map[string]string{
			"proc/self/mountinfo": mountV2, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "102400\n", "sys/fs/cgroup/memory.current": "0\n",
		}, 100 * kib, "/sys/fs/cgroup/memory.max"},
		{"v2, over its limit already", map[string]string{
			"proc/self/mountinfo": mountV2, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "102400\n", "sys/fs/cgroup/memory.current": "202400\n",
		}, 0, "/sys/fs/cgroup/memory.max"},
		{"v2, wider than the host", map[string]string{
			"proc/self/mountinfo": mountV2, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "99999999\n", "sys/fs/cgroup/a/memory.current": "1\n",
		}, 800 * kib, "MemAvailable"},
		{"v1", map[string]string{
			"proc/self/mountinfo": mountV1Cpu + mountV1, "proc/self/cgroup": "5:cpu:/other\n4:memory:/x\n0::/\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "409600\n", "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "204800\n",
			"sys/fs/cgroup/memory/x/memory.stat":         "inactive_file 1\ntotal_inactive_file 102400\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
		}, 300 * kib, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes"},
		{"v1, a container that sees its part of the tree", map[string]string{
			"proc/self/mountinfo": mountV1Part, "proc/self/cgroup": "4:cpuset,memory:/docker/abc/inner\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "204800\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
			"sys/fs/cgroup/memory/inner/memory.limit_in_bytes": "102400\n", "sys/fs/cgroup/memory/inner/memory.usage_in_bytes": "0\n",
		}, 100 * kib, "/sys/fs/cgroup/memory/inner/memory.limit_in_bytes"},
		{"both versions, v1 has the controller", map[string]string{
			"proc/self/mountinfo": mountV2 + mountV1, "proc/self/cgroup": "4:memory:/x\n0::/y\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "102400\n", "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "0\n",
		}, 100 * kib, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes"},
		{"garbage limits nothing", map[string]string{
			"proc/self/mountinfo": "x - cgroup2\n - \n" + mountV2, "proc/self/cgroup": "::\nnope\n0::/a\n",
			"sys/fs/cgroup/a/memory.max": "many\n",
		}, 800 * kib, "MemAvailable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := fstest.MapFS{"proc/meminfo": {Data: []byte(meminfo)}}
			for name, text := range tt.files {
				host[name] = &fstest.MapFile{Data: []byte(text)}
			}
			require.NoError(t, checkRoom(host, tt.left))
			err := checkRoom(host, tt.left+1)
			require.ErrorIs(t, err, ports.ErrNoSpace)
			require.Contains(t, err.Error(), tt.by)
		})
	}
	require.NoError(t, checkRoom(fstest.MapFS{}, 1<<62), "what cannot be read sets no limit")
}

func TestHugePagesOfTheHostAreRead(t *testing.T) {
	require.Equal(t, hugePages{transparentSize: 4 << 20, reservedSize: 2 << 20, reservedFree: 6 << 20}, hugePagesOf(fstest.MapFS{
		"proc/meminfo": {Data: []byte(meminfo)},
		"sys/kernel/mm/transparent_hugepage/hpage_pmd_size": {Data: []byte("4194304\n")},
	}))
	require.Equal(t, hugePages{transparentSize: 2 << 20, reservedSize: 2 << 20}, hugePagesOf(fstest.MapFS{}))
}

func TestHugeBytesAreThoseOfTheMappingsWithin(t *testing.T) {
	const smaps = `1000-3000 rw-p 00000000 00:00 0 [heap]
AnonHugePages:        64 kB
3000-5000 rw-p 00000000 00:00 0
Rss:                   8 kB
AnonHugePages:         2 kB
ShmemPmdMapped:        3 kB
Private_Hugetlb:       4 kB
VmFlags: rd wr hg
5000-6000 rw-s 00000000 00:01 5 /memfd:spanpool (deleted)
Shared_Hugetlb:        8 kB
6000-8000 rw-p 00000000 00:00 0
AnonHugePages:       128 kB
`
	require.EqualValues(t, 17<<10, hugeBytesIn(strings.NewReader(smaps), 0x3000, 0x6000))
	require.Zero(t, hugeBytesIn(strings.NewReader(smaps), 0x8000, 0x9000))
}

func TestTheLimitIsTheSmallestOne(t *testing.T) {
	host := fstest.MapFS{"proc/meminfo": {Data: []byte(meminfo)}, "proc/self/mountinfo": {Data: []byte(mountV2)}, "proc/self/cgroup": {Data: []byte("0::/a/b\n")},
		"sys/fs/cgroup/a/memory.max": {Data: []byte("409600\n")}, "sys/fs/cgroup/a/b/memory.max": {Data: []byte("614400\n")}}
	bytes, what := limitOf(host)
	require.EqualValues(t, 400<<10, bytes)
	require.Equal(t, "/sys/fs/cgroup/a/memory.max", what)
	delete(host, "proc/self/cgroup")
	delete(host, "proc/self/mountinfo")
	bytes, what = limitOf(host)
	require.Greater(t, bytes, uint64(800<<10), "the host's memory, of which so much is left")
	require.Contains(t, what, "meminfo")
	bytes, _ = limitOf(fstest.MapFS{})
	require.Zero(t, bytes)
}
