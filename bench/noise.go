package bench

import (
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spanpool/spanpool/adapters/inproc"
)

// What a measurement may miss by before it is repeated (rules.md section 7).
const (
	maxForeign    = 0.10 // of the machine's processor time, by others
	maxRateMiss   = 0.05 // of the modelled rate
	maxDelayShare = 0.20 // of the modelled delay, or
	maxDelayMiss  = 25 * time.Microsecond
)

// Noise is what a measurement ran under.
type Noise struct {
	Gbps    float64       // reached by the slower direction of the modelled link; 0: no model of a rate, or nothing moved
	Delay   time.Duration // reached, once each way, as the mean over everything that was delayed; 0: no model of a delay, or nothing was
	Foreign float64       // share of the processors' time that others took; 0 where the system does not say
}

// quiet reports whether a measurement over the modelled link stands by itself.
func (n Noise) quiet(l LinkSpec) bool {
	delay := time.Duration(l.DelayUs) * time.Microsecond
	late := max(maxDelayMiss, time.Duration(maxDelayShare*float64(delay)))
	switch {
	case n.Foreign > maxForeign:
		return false
	case l.Gbps > 0 && n.Gbps > 0 && n.Gbps < (1-maxRateMiss)*l.Gbps:
		return false
	case delay > 0 && n.Delay > delay+late:
		return false
	}
	return true
}

// worse is the worse of both in every respect.
func (n Noise) worse(o Noise) Noise {
	w := Noise{Gbps: n.Gbps, Delay: max(n.Delay, o.Delay), Foreign: max(n.Foreign, o.Foreign)}
	if w.Gbps == 0 || o.Gbps > 0 && o.Gbps < w.Gbps {
		w.Gbps = o.Gbps
	}
	return w
}

// leastMeasured is the bytes below which a direction says nothing about the rate: its busy periods are a few turns.
const leastMeasured = 1 << 20

// linkNoise is what the directions of a modelled link reached. The delay is a mean over all of them: the few control messages
// that wake an idle machine are late by what the machine takes to wake, and say little about the link.
func linkNoise(l LinkSpec, reports []inproc.DirectionReport) (n Noise) {
	var late time.Duration
	var delayed uint64
	for _, r := range reports {
		if l.Gbps > 0 && r.Bytes >= leastMeasured && r.Busy > 0 {
			n = n.worse(Noise{Gbps: r.BytesPerSecond * 8 / 1e9})
		}
		late += r.MeanLate * time.Duration(r.Delayed)
		delayed += r.Delayed
	}
	if l.DelayUs > 0 && delayed > 0 {
		n.Delay = time.Duration(l.DelayUs)*time.Microsecond + late/time.Duration(delayed)
	}
	return n
}

// cpuTimes is processor time since some start, in ticks.
type cpuTimes struct{ all, busy, own uint64 }

// readCPU reads the machine's times, and those of this process and of some that it started. root is the root of the file system.
// The answer is false where the system does not say.
func readCPU(root fs.FS, started ...int) (c cpuTimes, ok bool) {
	stat, err := fs.ReadFile(root, "proc/stat")
	if err != nil {
		return c, false
	}
	own, err := fs.ReadFile(root, "proc/self/stat")
	if err != nil {
		return c, false
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	c, ok = parseCPU(line, string(own))
	for _, pid := range started {
		its, err := fs.ReadFile(root, fmt.Sprintf("proc/%d/stat", pid))
		more, told := parseCPU(line, string(its))
		if err != nil || !told {
			return c, false
		}
		c.own += more.own
	}
	return c, ok
}

// parseCPU reads the first line of /proc/stat and all of /proc/self/stat. Guests' time is part of user's and nice's there, and
// is not added again; what waits for a disk is idle.
func parseCPU(machine, process string) (c cpuTimes, ok bool) {
	f := strings.Fields(machine)
	if len(f) < 9 || f[0] != "cpu" {
		return c, false
	}
	for i, text := range f[1:9] { // user nice system idle iowait irq softirq steal
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return c, false
		}
		c.all += n
		if i != 3 && i != 4 {
			c.busy += n
		}
	}
	// The name of the program is in brackets and may hold spaces and brackets; the fields are counted from behind it.
	_, rest, found := cutLast(process, ")")
	f = strings.Fields(rest)
	if !found || len(f) < 13 {
		return c, false
	}
	for _, text := range f[11:13] { // utime stime
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return c, false
		}
		c.own += n
	}
	return c, true
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// foreign is the share of the machine's time between two readings that was neither idle nor ours.
func (c cpuTimes) foreign(before cpuTimes) float64 {
	all, busy, own := c.all-before.all, c.busy-before.busy, c.own-before.own
	if all == 0 || busy <= own {
		return 0
	}
	return math.Min(1, float64(busy-own)/float64(all))
}

// noiseMeter watches a measurement.
type noiseMeter struct {
	link   LinkSpec
	report func() []inproc.DirectionReport
	root   fs.FS
	own    []int // processes besides this one
	before cpuTimes
	known  bool
}

// startNoise begins a measurement on a cluster. A nil root says nothing about processors.
func startNoise(c *Cluster, l LinkSpec, root fs.FS) *noiseMeter {
	m := &noiseMeter{link: l, root: root}
	if c != nil && c.Link != nil {
		c.Link.ResetReport()
		m.report = c.Link.LinkReport
	}
	if root != nil {
		m.before, m.known = readCPU(root)
	}
	return m
}

// include takes a process that this one started for its own, from now on.
func (m *noiseMeter) include(pid int) {
	m.own = append(m.own, pid)
	if m.root != nil {
		m.before, m.known = readCPU(m.root, m.own...)
	}
}

func (m *noiseMeter) stop() Noise {
	var n Noise
	if m.report != nil {
		n = linkNoise(m.link, m.report())
	}
	if m.known {
		if now, ok := readCPU(m.root, m.own...); ok {
			n.Foreign = now.foreign(m.before)
		}
	}
	return n
}
