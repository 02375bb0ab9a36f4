package dram

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/spanpool/spanpool/ports"
)

// room is what one limit leaves.
type room struct {
	what  string
	limit uint64
	left  uint64
}

// checkRoom refuses what the host or a cgroup of this process (its parents' limits included) cannot give: memory that is
// populated past those is answered by a kill, not by an error. What cannot be read sets no limit. host is the root of the
// file system.
func checkRoom(host fs.FS, wanted uint64) error {
	rooms := cgroupRooms(host)
	if r, ok := hostRoom(host); ok {
		rooms = append(rooms, r)
	}
	for _, r := range rooms {
		if wanted > r.left {
			return fmt.Errorf("%w: wanted %d bytes, %d left of the limit %d (%s)", ports.ErrNoSpace, wanted, r.left, r.limit, r.what)
		}
	}
	return nil
}

// Limit is the most memory that this process can have: its cgroup's limit, or that of one above it, or the host's memory. 0 when none
// can be read. What others of the same cgroup have lies within it, too.
func Limit() (bytes uint64, what string) { return limitOf(os.DirFS("/")) }

func limitOf(host fs.FS) (bytes uint64, what string) {
	rooms := cgroupRooms(host)
	if r, ok := hostRoom(host); ok {
		rooms = append(rooms, r)
	}
	for _, r := range rooms {
		if bytes == 0 || r.limit < bytes {
			bytes, what = r.limit, r.what
		}
	}
	return bytes, what
}

func hostRoom(host fs.FS) (room, bool) {
	info := readTable(host, "proc/meminfo")
	left, ok := info["MemAvailable:"]
	return room{what: "MemAvailable of MemTotal in /proc/meminfo", limit: info["MemTotal:"] << 10, left: left << 10}, ok
}

// controller names the files of one version of the memory controller.
type controller struct{ fsType, option, limit, usage, reclaimable string }

var (
	cgroupV1 = controller{"cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	cgroupV2 = controller{"cgroup2", "", "memory.max", "memory.current", "inactive_file"}
)

// cgroupRooms looks at this process's cgroup and at each one above it, up to where the controller is mounted. A host may
// have both versions mounted, with the memory controller in either.
func cgroupRooms(host fs.FS) []room {
	own := ownCgroups(host)
	var rooms []room
	mounts, _ := fs.ReadFile(host, "proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		m, c, ok := parseMount(line)
		if !ok {
			continue
		}
		// In a container the mount shows a part of the tree, and the process's path may or may not be relative to it.
		rel, ok := strings.CutPrefix(own[c.fsType], m.root)
		if !ok {
			rel = "/"
		}
		for dir := path.Join(m.point, rel); ; dir = path.Dir(dir) {
			if r, ok := c.roomAt(host, dir); ok {
				rooms = append(rooms, r)
			}
			if len(dir) <= len(m.point) {
				break
			}
		}
	}
	return rooms
}

type mount struct{ root, point string }

// parseMount reads a line of mountinfo: 36 35 98:0 /root /point opts [fields] - type source options.
func parseMount(line string) (mount, controller, bool) {
	before, after, ok := strings.Cut(line, " - ")
	b, a := strings.Fields(before), strings.Fields(after)
	if !ok || len(b) < 5 || len(a) < 3 {
		return mount{}, controller{}, false
	}
	m := mount{root: strings.TrimSuffix(b[3], "/"), point: b[4]}
	switch {
	case a[0] == cgroupV2.fsType:
		return m, cgroupV2, true
	case a[0] == cgroupV1.fsType && strings.Contains(","+a[2]+",", ","+cgroupV1.option+","):
		return m, cgroupV1, true
	}
	return mount{}, controller{}, false
}

// ownCgroups reads the process's path under each version: "0::/path" and "4:memory:/path".
func ownCgroups(host fs.FS) map[string]string {
	own := map[string]string{}
	text, _ := fs.ReadFile(host, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		if f[0] == "0" && f[1] == "" {
			own[cgroupV2.fsType] = f[2]
		}
		if strings.Contains(","+f[1]+",", ","+cgroupV1.option+",") {
			own[cgroupV1.fsType] = f[2]
		}
	}
	return own
}

// roomAt counts file pages that nobody used lately as free: the kernel takes them back before it refuses.
func (c controller) roomAt(host fs.FS, dir string) (room, bool) {
	dir = strings.TrimPrefix(dir, "/")
	limit, ok := readNumber(host, path.Join(dir, c.limit))
	if !ok {
		return room{}, false // "max", or the root of the tree
	}
	usage, _ := readNumber(host, path.Join(dir, c.usage))
	usage -= min(usage, readTable(host, path.Join(dir, "memory.stat"))[c.reclaimable])
	return room{what: "/" + path.Join(dir, c.limit), limit: limit, left: limit - min(limit, usage)}, true
}

func readNumber(host fs.FS, name string) (uint64, bool) {
	text, err := fs.ReadFile(host, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// readTable reads lines of a name and a number, as in meminfo and memory.stat.
func readTable(host fs.FS, name string) map[string]uint64 {
	table := map[string]uint64{}
	text, _ := fs.ReadFile(host, name)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
			table[f[0]] = n
		}
	}
	return table
}

// hugePages is what the host has of them. Sizes are never 0.
type hugePages struct {
	transparentSize uint64
	reservedSize    uint64
	reservedFree    uint64 // bytes of the pool that nobody has or was promised
}

func hugePagesOf(host fs.FS) hugePages {
	const usual = 2 << 20
	h := hugePages{transparentSize: usual, reservedSize: usual}
	if n, ok := readNumber(host, "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"); ok && n > 0 {
		h.transparentSize = n
	}
	info := readTable(host, "proc/meminfo")
	if n := info["Hugepagesize:"] << 10; n > 0 {
		h.reservedSize = n
	}
	free := info["HugePages_Free:"]
	h.reservedFree = (free - min(free, info["HugePages_Rsvd:"])) * h.reservedSize
	return h
}

// hugeBytesAt is how much of the n mapped bytes at addr lies on huge pages, as the kernel counts it; 0 when it does not say.
func hugeBytesAt(addr, n uint64) uint64 {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0
	}
	defer f.Close()
	return hugeBytesIn(f, addr, addr+n)
}

// hugeBytesIn adds up the mappings of smaps that lie within [lo, hi).
func hugeBytesIn(smaps io.Reader, lo, hi uint64) uint64 {
	var sum uint64
	inside := false
	for sc := bufio.NewScanner(smaps); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 2 {
			continue
		}
		if from, to, ok := parseSpan(f[0]); ok {
			inside = lo <= from && to <= hi
			continue
		}
		switch f[0] {
		case "AnonHugePages:", "ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:":
			if kib, err := strconv.ParseUint(f[1], 10, 64); err == nil && inside {
				sum += kib << 10
			}
		}
	}
	return sum
}

// parseSpan reads "7f0000000000-7f0000200000".
func parseSpan(s string) (lo, hi uint64, ok bool) {
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		return 0, 0, false
	}
	lo, err1 := strconv.ParseUint(a, 16, 64)
	hi, err2 := strconv.ParseUint(b, 16, 64)
	return lo, hi, err1 == nil && err2 == nil
}
