package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spanpool/spanpool/domain"
)

// Limits of options that nothing else bounds. They are arbitrary and far beyond sensible runs.
const (
	maxRanks     = 256
	maxPages     = 1 << 20
	maxRequests  = 1 << 20
	maxRuns      = 1 << 10
	maxFill      = 1 << 10
	maxCompute   = 10 * time.Second
	maxMiB       = 1 << 24
	minGbps      = 1e-6 // a kilobit a second
	maxGbps      = 100_000.0
	maxLinkDelay = 1_000_000 // microseconds

	// A walk is planned in memory before its bytes are counted, so its size has limits of its own.
	maxWalkRanges = 1 << 24
	maxWalkBytes  = 1 << 50
)

// ParseLocality reads the value of --locality.
func ParseLocality(text string) (domain.LocalityMode, error) {
	switch text {
	case "pull":
		return domain.LocalityPullOnly, nil
	case "off":
		return domain.LocalityOff, nil
	}
	return domain.LocalityFill, CheckAvailable("--locality", text, []string{"off", "pull", "fill"})
}

// Layerwise is the options of the layer-wise benchmark (rules.md section 7). The command line fills all of them; the fields
// are named after its flags.
type Layerwise struct {
	Ranks           []int // one row each
	Shape           Shape
	Grouping        Grouping
	Pages           int
	Requests        int
	ComputePerLayer time.Duration
	Compute         Compute
	OffloadRanks    int // negative: as many as ranks
	OffloadLocal    bool
	RangesPerCall   int
	ScratchMiB      int // 0: the arena routes are off
	PageBytes       uint64
	Locality        domain.LocalityMode
	NoPrefetch      bool
	NoChecksums     bool
	LocalOnly       bool
	SharedKeys      bool
	Register        bool // destinations with the reader, so that they can be read to directly
	Verify          bool
	Runs            int
	MediumMiB       int // 0: room for everything
	Fill            int // times the medium
	MaxMemory       uint64
	Transport       string
	Remotes         []Remote // in place of the other node
	Secret          []byte
	Link            LinkSpec
	GPU             *GPU // nil: all memory is the host's
	Fetch           FetchMode
	SharedArena     bool      // of the comparison
	Ceilings        *Ceilings // what figures are told as a share of; nil: of nothing
	Places          int       // goroutines that copy, generate, poison or check at once: the processors
	Root            fs.FS     // of the file system, to see what processor time others take; nil: not looked at

	Errors   io.Writer // a line for each wrong or failed read or put
	Progress *Progress // nil: nobody watches
}

// Check refuses options that cannot be run. Every error is an OptionError.
func (o *Layerwise) Check() error {
	if len(o.Ranks) == 0 {
		return badOption("--ranks", "", "want 1 or more numbers of ranks")
	}
	for _, n := range o.Ranks {
		if err := checkBetween("--ranks", n, 1, maxRanks); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		flag          string
		value, lo, hi int
	}{
		{"--layer-group", o.Grouping.Size, 1, maxLayerNumber + 1},
		{"--pages", o.Pages, 1, maxPages},
		{"--requests", o.Requests, 1, maxRequests},
		{"--compute-us-per-layer", int(o.ComputePerLayer / time.Microsecond), 0, int(maxCompute / time.Microsecond)},
		{"--offload-ranks", o.OffloadRanks, -1, maxRanks},
		{"--ranges-per-call", o.RangesPerCall, 1, domain.MaxCallRanges},
		{"--scratch-mib", o.ScratchMiB, 0, maxMiB},
		{"--medium-mib", o.MediumMiB, 0, maxMiB},
		{"--fill", o.Fill, 0, maxFill},
		{"--runs", o.Runs, 1, maxRuns},
		{"--link-delay-us", o.Link.DelayUs, 0, maxLinkDelay},
	} {
		if err := checkBetween(c.flag, c.value, c.lo, c.hi); err != nil {
			return err
		}
	}
	return o.checkTogether()
}

// checkTogether refuses options that are right alone.
func (o *Layerwise) checkTogether() error {
	if err := o.Link.check(); err != nil {
		return err
	}
	if err := checkTransport(o.Transport, o.Link, o.Remotes); err != nil {
		return err
	}
	if o.LocalOnly && len(o.Remotes) > 0 {
		return badOption("--peer", o.Remotes[0].ID, "with --local-only there is no peer")
	}
	if n := LargestPageRanges(o.Shape, o.Grouping); o.RangesPerCall < n {
		return badOption("--ranges-per-call", o.RangesPerCall, "a page of a group has %d ranges, and a call does not part them", n)
	}
	if n := o.Shape.Placements() * o.Pages; n > maxWalkRanges {
		return badOption("--pages", o.Pages, "a restore would have %d ranges, limit %d", n, maxWalkRanges)
	}
	if n := times(o.Shape.ObjectBytes(), uint64(o.Pages)); n > maxWalkBytes {
		return badOption("--pages", o.Pages, "a restore would have %d bytes, limit %d", n, uint64(maxWalkBytes))
	}
	if o.ScratchMiB == 0 && o.OffloadRanks != 0 && !o.OffloadLocal && !o.LocalOnly {
		return badOption("--scratch-mib", 0, "offload ranks put to the other node through the put arena; want 1 or more, --offload-ranks 0 or --offload-to local")
	}
	if err := o.checkGPU(); err != nil {
		return err
	}
	if err := o.checkComparison(); err != nil {
		return err
	}
	if o.PageBytes > domain.MaxObjectSize {
		return badOption("--page-bytes", o.PageBytes, "want at most %d", uint64(domain.MaxObjectSize))
	}
	if medium := uint64(o.MediumMiB) * mibBytes; medium > 0 && medium < o.pageBytes() {
		return badOption("--medium-mib", o.MediumMiB, "less than one page of %d bytes", o.pageBytes())
	}
	return nil
}

// checkComparison refuses what --fetch whole cannot mean, and what only it can.
func (o *Layerwise) checkComparison() error {
	switch {
	case o.Fetch == FetchRanged && o.SharedArena:
		return badOption("--shared-arena", true, "a node's arenas are apart; want --fetch whole, which can share one")
	case o.Fetch == FetchRanged:
		return nil
	case o.Register:
		return badOption("--register", true, "the comparison registers nothing; want --fetch ranged")
	case o.Transport == TransportSHM:
		return badOption("--fetch", "whole", "not available over shm: it reads and writes by one transport")
	case len(o.Remotes) > 0:
		return badOption("--fetch", "whole", "not available with --peer: it compares nodes of one process")
	case o.LocalOnly:
		return badOption("--fetch", "whole", "with --local-only nothing is fetched")
	case o.Locality != domain.LocalityFill:
		return badOption("--fetch", "whole", "whole objects are always installed, so --locality has no say; want its default")
	case o.ScratchMiB == 0:
		return badOption("--fetch", "whole", "want --scratch-mib 1 or more: everything goes through the arena")
	}
	return nil
}

// defaultPageBytes is the page of a medium for several kinds of object.
const defaultPageBytes = 64 << 10

// pageBytes is the medium's page: the object's size when there is one kind of object and nothing else was said.
func (o *Layerwise) pageBytes() uint64 {
	switch {
	case o.PageBytes > 0:
		return o.PageBytes
	case len(o.Shape.Pools) == 1:
		return o.Shape.ObjectBytes()
	}
	return defaultPageBytes
}

// Run runs a row for each number of ranks and gives each to emit as it is there. A row that does not fit into memory is
// refused and the others still run. The error wraps ErrFailed when a row failed or was refused; rows that failed are given
// to emit all the same, since they say how.
func (o *Layerwise) Run(ctx context.Context, open OpenCluster, emit func(Row)) error {
	if err := o.Check(); err != nil {
		return err
	}
	defer o.Progress.Clear()
	var errs []error
	for _, ranks := range o.Ranks {
		row, err := o.row(ctx, open, ranks)
		if err != nil {
			errs = append(errs, fmt.Errorf("row of %d ranks: %w", ranks, err))
		}
		if row != nil {
			emit(*row)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// row is the median of the runs. It is nil when no figures are there.
func (o *Layerwise) row(ctx context.Context, open OpenCluster, ranks int) (*Row, error) {
	var runs []Row
	for range o.Runs {
		r := newRestoreRow(o, ranks)
		if err := checkMemory("it", r.needs(), o.MaxMemory); err != nil {
			return nil, err
		}
		row, err := r.run(ctx, open)
		if row != nil {
			runs = append(runs, *row)
		}
		if err != nil {
			return lastRow(runs), err
		}
	}
	row := medianRow(runs)
	return &row, nil
}

// lastRow is the run that failed, as it is.
func lastRow(runs []Row) *Row {
	if len(runs) == 0 {
		return nil
	}
	return &runs[len(runs)-1]
}
