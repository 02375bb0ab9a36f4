package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// settleBound is how long a row waits for the pulls of its requests: far longer than any takes, so that only one that
// never ends meets it.
const settleBound = 60 * time.Second

// counts is what the reader has counted, and what offload has stored there by then.
type counts struct {
	wire       [ports.NumPurposes]uint64
	needed     uint64
	duplicate  uint64
	localWrite uint64
}

// settledCounts waits for the pulls under way and reads the counters while no put of offload is under way.
func (r *restoreRow) settledCounts(ctx context.Context) (counts, error) {
	done, err := waitUntil(ctx, settleBound, func() bool { return r.reader().Stats().PullWaiting == 0 })
	if err != nil {
		return counts{}, err
	}
	if !done {
		return counts{}, fmt.Errorf("%w: %d pulls still wait after %v", ErrFailed, r.reader().Stats().PullWaiting, settleBound)
	}
	defer r.offload.pause()()
	s := r.reader().Stats()
	c := counts{wire: s.Wire, needed: s.NeededBytes, duplicate: s.DuplicateBytes, localWrite: s.PutBytes - r.offload.storedAtReader()}
	for _, n := range s.InstalledBytes {
		c.localWrite += n
	}
	return c, nil
}

func (c counts) since(before counts) counts {
	for p := range c.wire {
		c.wire[p] -= before.wire[p]
	}
	c.needed -= before.needed
	c.duplicate -= before.duplicate
	c.localWrite -= before.localWrite
	return c
}

// checkSwitches fails a run whose switches did not do what they say.
func (r *restoreRow) checkSwitches(d counts) error {
	if r.o.NoPrefetch && d.wire[ports.PurposePull] != 0 {
		return fmt.Errorf("%w: --no-prefetch: wire_background_mib is %.2f (%d bytes), want 0", ErrFailed,
			toMiB(d.wire[ports.PurposePull]), d.wire[ports.PurposePull])
	}
	nothingInstalls := r.o.Locality == domain.LocalityOff || r.o.NoPrefetch && r.o.Locality == domain.LocalityPullOnly && !r.walk.Tiles()
	if nothingInstalls && d.localWrite != 0 {
		return fmt.Errorf("%w: local_write_mib is %.2f (%d bytes), want 0: by --locality and --no-prefetch nothing may become local",
			ErrFailed, toMiB(d.localWrite), d.localWrite)
	}
	return nil
}

// checkCounted fails a run whose wire figures are not of the bytes that came. Transports count what arrives; what became of it is
// counted by the node, and told by the results, without a look at their figures.
func (r *restoreRow) checkCounted(d counts) error {
	var short error
	if told := r.tally.fromPeers(); told > d.wire[ports.PurposeGet] {
		short = fmt.Errorf("%w: wire_range_mib is %.2f (%d bytes), and results tell of %d bytes from peers", ErrFailed,
			toMiB(d.wire[ports.PurposeGet]), d.wire[ports.PurposeGet], told)
	}
	if r.o.Fetch == FetchWhole {
		return short // it has a transfer of its own, which tells nothing else
	}
	return errors.Join(short, conserved(d.wire, d.needed, d.duplicate))
}

// conserved holds get + pull = needed + duplicate.
func conserved(wire [ports.NumPurposes]uint64, needed, duplicate uint64) error {
	if get, pull := wire[ports.PurposeGet], wire[ports.PurposePull]; get+pull != needed+duplicate {
		return fmt.Errorf("%w: wire: %d bytes came for callers and %d for the pull, but %d were needed and %d were duplicate", ErrFailed,
			get, pull, needed, duplicate)
	}
	return nil
}

func (r *restoreRow) figures(d counts) *Row {
	failed, _ := r.failures.counts()
	row := &Row{Verified: r.o.Verify, Pools: r.tally.poolRows()}
	row.Values = [NumColumns]float64{
		ColRanks:          float64(r.sets.ranks),
		ColLayers:         float64(r.o.Shape.Layers),
		ColGroup:          float64(r.o.Grouping.Size),
		ColPages:          float64(r.o.Pages),
		ColObjectKiB:      float64(r.o.Shape.ObjectBytes()) / 1024,
		ColRestoreP50:     milliseconds(r.restore.Percentile(50)),
		ColRestoreP95:     milliseconds(r.restore.Percentile(95)),
		ColTTFLP50:        microseconds(r.ttfl.Percentile(50)),
		ColTTFLP95:        microseconds(r.ttfl.Percentile(95)),
		ColStallP50:       milliseconds(r.stall.Percentile(50)),
		ColGetRate:        gibPerSecond(r.getBytes, r.getTime),
		ColPutRate:        r.offload.rate(r.windows),
		ColLocalHits:      r.tally.localHitPct(),
		ColRemoteCalls:    float64(r.tally.remoteCalls),
		ColRemoteKeys:     float64(r.tally.remoteKeys),
		ColRepeatRemote:   float64(r.tally.repeats),
		ColWireWhole:      toMiB(r.tally.wholeBytes),
		ColWireRange:      toMiB(d.wire[ports.PurposeGet]),
		ColLocalWrite:     toMiB(d.localWrite),
		ColWireBackground: toMiB(d.wire[ports.PurposePull]),
		ColWireDuplicate:  toMiB(d.duplicate),
		ColFailedReads:    float64(failed),
		ColLinkRate:       r.noise.Gbps,
		ColLinkDelay:      microseconds(r.noise.Delay),
		ColForeign:        100 * r.noise.Foreign,
	}
	return row
}
