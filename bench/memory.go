package bench

import (
	"bufio"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// memoryShare is how much of what is available a run may plan with by default; the rest is for the Go heap and for others.
const memoryShare = 0.9

// AvailableMemory is what a run may plan with by default: nine tenths of what host and cgroup leave. root is the root of the
// file system. What cannot be read sets no limit; with nothing readable the answer is false.
func AvailableMemory(root fs.FS) (uint64, bool) {
	left, known := memAvailable(root)
	for _, dir := range cgroupDirs(root) {
		if n, ok := cgroupLeft(root, dir); ok && (!known || n < left) {
			left, known = n, true
		}
	}
	return uint64(memoryShare * float64(left)), known
}

func memAvailable(root fs.FS) (uint64, bool) {
	kib, ok := readStat(root, "proc/meminfo", "MemAvailable:")
	return kib << 10, ok
}

// cgroupDirs is where this process's limits may be read: its own cgroup and all above it, in both versions of the controller.
func cgroupDirs(root fs.FS) []string {
	dirs := []string{"sys/fs/cgroup", "sys/fs/cgroup/memory"}
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		top := "sys/fs/cgroup"
		if f[1] != "" {
			top = path.Join(top, f[1])
		}
		for dir := path.Join(top, f[2]); len(dir) > len(top); dir = path.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// cgroupLeft counts file pages that nobody used lately as free: the kernel takes them back first.
func cgroupLeft(root fs.FS, dir string) (uint64, bool) {
	for _, v := range []struct{ limit, usage, reclaimable string }{
		{"memory.max", "memory.current", "inactive_file"},
		{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
	} {
		limit, ok := readNumber(root, path.Join(dir, v.limit))
		if !ok {
			continue
		}
		usage, _ := readNumber(root, path.Join(dir, v.usage))
		free, _ := readStat(root, path.Join(dir, "memory.stat"), v.reclaimable)
		usage -= min(usage, free)
		return limit - min(limit, usage), true
	}
	return 0, false
}

func readNumber(root fs.FS, name string) (uint64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// readStat reads the number behind a name in a file of "name number" lines.
func readStat(root fs.FS, name, field string) (uint64, bool) {
	f, err := root.Open(name)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if p := strings.Fields(sc.Text()); len(p) > 1 && p[0] == field {
			n, err := strconv.ParseUint(p[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// MemoryNeed is one thing that a row needs memory for.
type MemoryNeed struct {
	What  string
	Bytes uint64
}

// MemoryError says that a row was refused before anything was allocated or seeded.
type MemoryError struct {
	What  string
	Needs []MemoryNeed
	Limit uint64
}

func (e *MemoryError) Error() string {
	parts := make([]string, len(e.Needs))
	for i, n := range e.Needs {
		parts[i] = n.What + " " + mib(n.Bytes)
	}
	return fmt.Sprintf("%s needs %s of memory (%s), limit %s by --max-memory", e.What, mib(sumNeeds(e.Needs)), join(parts), mib(e.Limit))
}

// Is makes a row that did not fit a failed run: what was asked for is not whole.
func (e *MemoryError) Is(target error) bool { return target == ErrFailed }

// checkMemory refuses a row whose needs together are past the limit.
func checkMemory(what string, needs []MemoryNeed, limit uint64) error {
	if sumNeeds(needs) > limit {
		return &MemoryError{What: what, Needs: needs, Limit: limit}
	}
	return nil
}

// sumNeeds saturates: options near the limits must be refused, not wrap around to something small.
func sumNeeds(needs []MemoryNeed) uint64 {
	var sum uint64
	for _, n := range needs {
		if sum += n.Bytes; sum < n.Bytes {
			return ^uint64(0)
		}
	}
	return sum
}

// times multiplies and saturates.
func times(a uint64, factors ...uint64) uint64 {
	for _, b := range factors {
		if b != 0 && a > ^uint64(0)/b {
			return ^uint64(0)
		}
		a *= b
	}
	return a
}

const mibBytes = 1 << 20

func mib(n uint64) string { return strconv.FormatFloat(float64(n)/mibBytes, 'f', 1, 64) + " MiB" }

// ParseBytes reads a number of bytes with an optional suffix KiB, MiB, GiB or TiB.
func ParseBytes(text string) (uint64, error) {
	digits, shift := text, 0
	for i, suffix := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if d, ok := strings.CutSuffix(text, suffix); ok {
			digits, shift = d, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > ^uint64(0)>>shift {
		return 0, fmt.Errorf("size %q: want bytes below 2^64, or a number with KiB, MiB, GiB or TiB", text)
	}
	return n << shift, nil
}
