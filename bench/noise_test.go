package bench

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/inproc"
)

func TestForeignTimeIsWhatIsNeitherIdleNorOurs(t *testing.T) {
	// user nice system idle iowait irq softirq steal guest guest_nice; guests are in user and nice already.
	before, ok := parseCPU("cpu  100 10 50 1000 40 1 2 3 90 9", "4242 (a (b) c) S 1 1 1 0 -1 0 1 0 0 0 60 20 7 8 20 0")
	require.True(t, ok)
	require.Equal(t, cpuTimes{all: 1206, busy: 166, own: 80}, before)
	now, ok := parseCPU("cpu  150 10 60 1130 50 1 2 3 120 9", "4242 (a (b) c) S 1 1 1 0 -1 0 1 0 0 0 100 25 7 8 20 0")
	require.True(t, ok)
	// 200 ticks of all, 60 of them busy, 45 ours.
	require.InDelta(t, 15.0/200, now.foreign(before), 1e-9)
	require.Zero(t, before.foreign(before), "no time has passed")
	require.Zero(t, cpuTimes{all: 10, busy: 3, own: 4}.foreign(cpuTimes{}), "own time is told later than the machine's")
}

func TestTimesThatCannotBeReadAreNotKnown(t *testing.T) {
	const machine, process = "cpu  1 2 3 4 5 6 7 8 9 10", "1 (x) S 1 1 1 0 -1 0 1 0 0 0 60 20 7 8"
	for name, c := range map[string]struct{ machine, process string }{
		"another line":       {"cpu0 1 2 3 4 5 6 7 8 9 10", process},
		"too few fields":     {"cpu  1 2 3 4", process},
		"no number":          {"cpu  1 2 x 4 5 6 7 8 9 10", process},
		"no name":            {machine, "1 x S 1"},
		"own ends early":     {machine, "1 (x) S 1 1 1"},
		"own time no number": {machine, "1 (x) S 1 1 1 0 -1 0 1 0 0 0 60 twenty 7 8"},
	} {
		_, ok := parseCPU(c.machine, c.process)
		require.False(t, ok, name)
	}
	_, ok := parseCPU(machine, process)
	require.True(t, ok)
	_, ok = readCPU(fstest.MapFS{"proc/stat": {Data: []byte(machine + "\ncpu0 1\n")}})
	require.False(t, ok)
	c, ok := readCPU(fstest.MapFS{"proc/stat": {Data: []byte(machine + "\ncpu0 1\n")}, "proc/self/stat": {Data: []byte(process)}})
	require.True(t, ok)
	require.EqualValues(t, 80, c.own)
}

func TestAMeasurementIsQuietWithinItsLimits(t *testing.T) {
	const us = time.Microsecond
	slow, fast := LinkSpec{Gbps: 16, DelayUs: 500}, LinkSpec{Gbps: 16, DelayUs: 50}
	for _, c := range []struct {
		name  string
		link  LinkSpec
		noise Noise
		want  bool
	}{
		{"nothing modelled, nothing foreign", LinkSpec{}, Noise{}, true},
		{"foreign at its limit", LinkSpec{}, Noise{Foreign: 0.10}, true},
		{"foreign past its limit", LinkSpec{}, Noise{Foreign: 0.101}, false},
		{"rate at its limit", fast, Noise{Gbps: 15.2, Delay: 50 * us}, true},
		{"rate past its limit", fast, Noise{Gbps: 15.19, Delay: 50 * us}, false},
		{"nothing moved", fast, Noise{}, true},
		{"a short delay may miss by 25 us", fast, Noise{Gbps: 16, Delay: 75 * us}, true},
		{"and no more", fast, Noise{Gbps: 16, Delay: 76 * us}, false},
		{"a long delay may miss by a fifth", slow, Noise{Gbps: 16, Delay: 600 * us}, true},
		{"and no more than that", slow, Noise{Gbps: 16, Delay: 601 * us}, false},
		{"a rate alone", LinkSpec{Gbps: 16}, Noise{Gbps: 16, Delay: 0}, true},
	} {
		require.Equal(t, c.want, c.noise.quiet(c.link), c.name)
	}
}

func TestTheLinkIsJudgedByItsSlowerDirectionAndItsMeanDelay(t *testing.T) {
	const ms, us = time.Millisecond, time.Microsecond
	reports := []inproc.DirectionReport{
		{Bytes: 2 << 20, Busy: ms, BytesPerSecond: 1.9e9, Delayed: 3, MeanLate: 10 * us},
		{Bytes: 2 << 20, Busy: ms, BytesPerSecond: 1.8e9, Delayed: 1, MeanLate: 30 * us},
		{Bytes: 1000, Busy: ms, BytesPerSecond: 1e6, Delayed: 0, MeanLate: 0},
	}
	n := linkNoise(LinkSpec{Gbps: 16, DelayUs: 50}, reports)
	require.InDelta(t, 14.4, n.Gbps, 1e-9, "the direction of a few bytes says nothing")
	require.Equal(t, 65*us, n.Delay, "three by 10 and one by 30")
	require.Equal(t, Noise{}, linkNoise(LinkSpec{}, reports), "nothing is modelled")
	require.Equal(t, Noise{Gbps: 14.4, Delay: 9, Foreign: 0.2}, Noise{Gbps: 15, Delay: 9, Foreign: 0.1}.worse(Noise{Gbps: 14.4, Delay: 8, Foreign: 0.2}))
	require.Equal(t, Noise{Gbps: 15}, Noise{}.worse(Noise{Gbps: 15}), "no rate is not the worst one")
	require.Equal(t, Noise{Gbps: 15}, Noise{Gbps: 15}.worse(Noise{}))
}
