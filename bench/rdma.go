package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/rdma"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// TransportRDMA runs a workload over the first RDMA device that is up, by its loopback. Sockets carry the control plane.
const TransportRDMA = "rdma"

// emulated is the patience with devices that are emulated on a busy machine. It makes no run slower whose device answers.
const emulated = 20 * time.Second

func openRDMA() (ports.Transport, error) {
	return rdma.Open(rdma.Config{Clock: boottime.New(), DialTimeout: emulated, ControlTimeout: emulated})
}

func patient(transport string, c app.Config) app.Config {
	if transport == TransportRDMA {
		c.DialTimeout, c.ControlTimeout, c.TransferTimeout, c.ArenaWait, c.CallTimeout = emulated, emulated, emulated, emulated, 3*emulated
		c.PeerLease = emulated / 2
	}
	return c
}

// RDMASweep is the options of a sweep over sizes and depths: one link, one buffer, no node.
type RDMASweep struct {
	From, To string        // devices of the asker and of the owner; empty: the first that is up
	Sizes    []uint64      // bytes of an op
	Depths   []int         // ops in flight
	Time     time.Duration // of a figure
	Perftest bool          // run perftest's programs beside, where they are installed
}

// RDMARow is what one size, depth and direction reached.
type RDMARow struct {
	Dir        string
	Bytes      uint64
	Depth      int
	Ops        int
	Rate       float64 // GB/s: 10^9 bytes
	P50, P95   time.Duration
	Perftest   float64 // GB/s of ib_read_bw or ib_write_bw at that size and depth; 0: not run
	PerftestIs string  // why it was not
}

const (
	sweepMost  = 64 << 20 // bytes of an op
	sweepDepth = 1 << 10
	sweepRoom  = 1 << 30 // bytes in flight
)

// Check refuses options that cannot be run. Every error is an OptionError.
func (o *RDMASweep) Check() error {
	if len(o.Sizes) == 0 || len(o.Depths) == 0 {
		return badOption("--sizes", "", "want 1 or more sizes, and 1 or more depths")
	}
	for _, s := range o.Sizes {
		if s == 0 || s > sweepMost {
			return badOption("--sizes", s, "want 1 to %d bytes", sweepMost)
		}
	}
	for _, d := range o.Depths {
		if d < 1 || d > sweepDepth {
			return badOption("--depths", d, "want 1 to %d", sweepDepth)
		}
	}
	if most := slices.Max(o.Sizes) * uint64(slices.Max(o.Depths)); most > sweepRoom {
		return badOption("--depths", slices.Max(o.Depths), "with %d bytes an op that is %d in flight; want at most %d", slices.Max(o.Sizes), most, sweepRoom)
	}
	if o.Time <= 0 || o.Time > time.Minute {
		return badOption("--time", o.Time, "want more than 0 and at most 1m")
	}
	return nil
}

// Run measures, and gives each row to emit as it is there. Every op is of right bytes, or the run fails.
func (o *RDMASweep) Run(ctx context.Context, emit func(RDMARow) error) (err error) {
	if err := o.Check(); err != nil {
		return err
	}
	s := &sweep{o: o, clock: boottime.New(), room: slices.Max(o.Sizes) * uint64(slices.Max(o.Depths))}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return err
	}
	for _, dir := range []ports.Direction{ports.Read, ports.Write} {
		for _, size := range o.Sizes {
			for _, depth := range o.Depths {
				row, err := s.measure(ctx, dir, size, depth)
				if err == nil {
					if o.Perftest {
						row.Perftest, row.PerftestIs = perftest(ctx, o, dir, size, depth)
					}
					err = emit(row)
				}
				if err != nil {
					return fmt.Errorf("%s of %d bytes, %d in flight: %w", directionNames[dir], size, depth, err)
				}
			}
		}
	}
	return nil
}

var directionNames = [2]string{"read", "write"}

// sweep is two transports of this process, a link from one to the other, and a buffer at each.
type sweep struct {
	o           *RDMASweep
	clock       boottime.Clock
	room        uint64
	mine, yours *dram.Medium
	from, to    *rdma.Transport
	link        ports.Link
	token       ports.GrantToken
}

func (s *sweep) open(ctx context.Context) (err error) {
	for _, m := range []**dram.Medium{&s.mine, &s.yours} {
		if *m, err = dram.Open(dram.Config{Bytes: s.room, PageSize: s.room}); err != nil {
			return err
		}
	}
	if s.from, err = rdma.Open(rdma.Config{Clock: s.clock, Device: s.o.From, DialTimeout: emulated, ControlTimeout: emulated}); err != nil {
		return err
	}
	if s.to, err = rdma.Open(rdma.Config{Clock: s.clock, Device: s.o.To}); err != nil {
		return err
	}
	if err = s.to.Expose(0, s.yours.Buffers()[0]); err != nil {
		return err
	}
	if _, err = s.from.Register(s.mine.Buffers()[0]); err != nil {
		return err
	}
	self := ports.Peer{ID: "asker", Incarnation: 1}
	if _, s.token, err = s.to.Grant(self, s.room, []domain.PageRef{{}}); err != nil {
		return err
	}
	p, err := s.from.Offer(ctx, "owner")
	if err != nil {
		return err
	}
	answer, err := s.to.Answer(ctx, self, p.Bytes())
	if err != nil {
		return errors.Join(err, p.Close())
	}
	s.link, err = p.Link(ctx, answer)
	return err
}

func (s *sweep) close() error {
	var errs []error
	if s.link != nil {
		errs = append(errs, s.link.Close())
	}
	for _, t := range []*rdma.Transport{s.from, s.to} {
		if t != nil {
			errs = append(errs, t.Close())
		}
	}
	if errors.Join(errs...) != nil {
		return errors.Join(errs...) // memory that a device may touch stays
	}
	for _, m := range []*dram.Medium{s.mine, s.yours} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// measure keeps depth ops in flight for the time of a figure. Op i has its own piece of both buffers.
func (s *sweep) measure(ctx context.Context, dir ports.Direction, size uint64, depth int) (RDMARow, error) {
	src, dst := s.yours.Buffers()[0].(ports.HostRegion).Bytes(), s.mine.Buffers()[0].(ports.HostRegion).Bytes()
	if dir == ports.Write {
		src, dst = dst, src
	}
	n := size * uint64(depth)
	content.Fill(src[:n], n, 0)
	content.Poison(dst[:n])
	batches := make([]ports.Batch, depth)
	began := make([]domain.Instant, depth)
	q := ports.NewCompletions()
	post := func(i uint64) error {
		began[i] = s.clock.Now()
		batches[i].Ops[0].Deadline = began[i].Add(time.Minute)
		return s.link.Submit(&batches[i], q)
	}
	for i := range uint64(depth) {
		batches[i] = ports.Batch{Ops: []ports.Op{{Tag: i, Count: 1, Dir: dir, Purpose: []ports.Purpose{ports.PurposeGet, ports.PurposePut}[dir], Grant: s.token}},
			Segments: []ports.Segment{{RemoteOff: i * size, Local: s.mine.Buffers()[0], LocalOff: i * size, Len: size}}}
	}
	start := s.clock.Now()
	end := start.Add(s.o.Time)
	for i := range uint64(depth) {
		if err := post(i); err != nil {
			return RDMARow{}, err
		}
	}
	var took []time.Duration
	var done []ports.Completion
	last := start
	for flying := depth; flying > 0; {
		var err error
		if done, err = q.Take(ctx, time.Minute, done[:0]); err != nil || len(done) == 0 {
			return RDMARow{}, errors.Join(err, errors.New("ops do not complete"))
		}
		for _, c := range done {
			flying--
			if c.Err != nil {
				return RDMARow{}, c.Err
			}
			took = append(took, c.At.Sub(began[c.Tag]))
			last = c.At
			if c.At < end {
				if err := post(c.Tag); err != nil {
					return RDMARow{}, err
				}
				flying++
			}
		}
	}
	if at := content.Check(dst[:n], n, 0); at >= 0 {
		return RDMARow{}, fmt.Errorf("%w: byte %d is wrong", ErrFailed, at)
	}
	slices.Sort(took)
	return RDMARow{Dir: directionNames[dir], Bytes: size, Depth: depth, Ops: len(took), Rate: float64(size) * float64(len(took)) / float64(last.Sub(start)),
		P50: took[len(took)/2], P95: took[len(took)*95/100], PerftestIs: "not asked for"}, nil
}

// WriteRDMARows prints the rows as a table.
func WriteRDMARows(w io.Writer, rows []RDMARow) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "dir\tbytes\tdepth\tops\tgb_s\tus_p50\tus_p95\tperftest_gb_s")
	for _, r := range rows {
		beside := fmt.Sprintf("%.3f", r.Perftest)
		if r.Perftest == 0 {
			beside = "- (" + r.PerftestIs + ")"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.3f\t%.1f\t%.1f\t%s\n", r.Dir, r.Bytes, r.Depth, r.Ops, r.Rate, float64(r.P50)/1e3, float64(r.P95)/1e3, beside)
	}
	return t.Flush()
}
