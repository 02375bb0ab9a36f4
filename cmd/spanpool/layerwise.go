package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/bench"
)

// layerwiseFlags is what the command line says before it is made into options.
type layerwiseFlags struct {
	o          bench.Layerwise
	layers     int
	layerBytes uint64
	pools      string
	preset     string
	computeUs  int
	compute    string
	offloadTo  string
	locality   string
	fetch      string
	maxMemory  string
	remotes    remoteFlags
	output     string

	gpu         gpuFlags
	medium      string
	destination string

	// What the reference or a later release has, so that it is refused by name.
	checksum string
}

func newLayerwise(env environment) *cobra.Command {
	f := &layerwiseFlags{}
	c := &cobra.Command{
		Use:   "layerwise",
		Short: "Restore objects layer group by layer group, as an engine does, and count the bytes",
		Long: `Two nodes run in this process. One holds every object; at the other, ranks restore them layer group by layer
group: a loader fetches group g+1 while a forward thread computes group g. Offload ranks put whole pages meanwhile.
Every byte is verified; a failed or wrong read makes the exit status 1.

` + remoteHelp + `

Columns:
` + bench.ColumnMeanings() + `
Presets:
` + presetLines(),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, env) },
	}
	f.define(c, env)
	return c
}

func presetLines() string {
	var b strings.Builder
	for _, p := range bench.Presets {
		fmt.Fprintf(&b, "  %-22s --pools '%s'\n", p.Name, p.Pools)
	}
	return b.String()
}

func (f *layerwiseFlags) define(c *cobra.Command, env environment) {
	s := c.Flags()
	s.SortFlags = false
	s.IntSliceVar(&f.o.Ranks, "ranks", []int{1, 2, 4, 8}, "ranks that restore at once; a row for each number")
	s.IntVar(&f.layers, "layers", 61, "layers of the model; with pools: at least what they name, which is the default then")
	s.IntVar(&f.o.Grouping.Size, "layer-group", 8, "layers of a group")
	s.Uint64Var(&f.layerBytes, "layer-bytes", 73728, "bytes of a layer of a page, without --pools")
	s.StringVar(&f.pools, "pools", "", "pools as name:layers:layer_bytes[:first/stride | :l1,l2,...], joined by ';' (default none)")
	s.StringVar(&f.preset, "preset", "", "a model's pools: "+strings.Join(bench.PresetNames(), ", ")+" (default none)")
	s.IntVar(&f.o.Pages, "pages", 64, "pages of a request")
	s.IntVar(&f.o.Requests, "requests", 3, "measured requests of a rank, after one that warms up")
	s.IntVar(&f.computeUs, "compute-us-per-layer", 150, "microseconds that the forward thread computes a layer")
	s.StringVar(&f.compute, "compute", "sleep", "how it computes: sleep, spin")
	s.IntVar(&f.o.OffloadRanks, "offload-ranks", -1, "ranks that put whole pages all the while; -1: as many as --ranks")
	s.StringVar(&f.offloadTo, "offload-to", "remote", "where they put them: local, remote")
	s.IntVar(&f.o.RangesPerCall, "ranges-per-call", 8192, "the most ranges of a call")
	s.IntVar(&f.o.ScratchMiB, "scratch-mib", 256, "MiB of each arena of the reader; 0 turns the arena routes off")
	s.Uint64Var(&f.o.PageBytes, "page-bytes", 0, "page of the media; 0: the object with one pool, else 65536 (default 0)")
	s.BoolVar(&f.o.NoPrefetch, "no-prefetch", false, "switch the background pull off (default false)")
	s.BoolVar(&f.o.Grouping.Interleave, "interleave-groups", false, "deal layers round-robin to the groups, so that nothing is adjacent (default false)")
	s.BoolVar(&f.o.Verify, "verify", true, "check every byte; false marks the rows")
	s.BoolVar(&f.o.LocalOnly, "local-only", false, "seed everything at the reader, without a peer: the floor (default false)")
	s.StringVar(&f.o.Transport, "transport", "inproc", "between the nodes: inproc, tcp, rdma, shm (reads; writes by tcp)")
	f.remotes.define(s)
	s.StringVar(&f.fetch, "fetch", "ranged", "how the reader fetches: ranged, or, to compare with, whole objects under one lock a direction: whole")
	s.StringVar(&f.locality, "locality", "fill", "how far reads make objects local: off, pull, fill")
	s.StringVar(&f.output, "output", "table", "table, csv, json")
	s.IntVar(&f.o.Runs, "runs", 1, "runs of a row, of which each figure is the median")
	s.IntVar(&f.o.MediumMiB, "medium-mib", 0, "MiB of the reader's medium; 0: room for every set and four times those in flight (default 0)")
	s.StringVar(&f.medium, "medium", "dram", "the media: dram, hbm")
	s.StringVar(&f.destination, "destination", "host", "where ranks read to: host, gpu")
	f.gpu.define(s)
	s.BoolVar(&f.o.SharedKeys, "shared-keys", false, "all ranks read the same keys (default false)")
	s.BoolVar(&f.o.Register, "register", false, "register the ranks' destinations with the reader, so that it can read straight into them (default false)")
	s.BoolVar(&f.o.SharedArena, "shared-arena", false, "with --fetch whole: one arena and one lock for gets and puts (default false)")
	s.Float64Var(&f.o.Link.Gbps, "link-gbps", 0, "Gbit/s of the modelled link; 0: not modelled (default 0)")
	s.IntVar(&f.o.Link.DelayUs, "link-delay-us", 0, "microseconds of delay of the modelled link, each way (default 0)")
	s.StringVar(&f.checksum, "checksum", "on", "whether puts make checksums and gets verify by them: off, on; of this process's nodes")
	s.IntVar(&f.o.Fill, "fill", 0, "put this many times the reader's medium before the run (default 0)")
	s.StringVar(&f.maxMemory, "max-memory", "", "what a row may need, as bytes or with KiB, MiB, GiB; none: nine tenths of what is available (default none)")
}

// run makes options of the flags, runs, and prints.
func (f *layerwiseFlags) run(c *cobra.Command, env environment) (err error) {
	format, err := f.options(c, env)
	if err != nil {
		return err
	}
	if f.o.GPU != nil {
		defer func() { err = errors.Join(err, f.o.GPU.Close()) }()
	}
	f.o.Errors, f.o.Progress = c.ErrOrStderr(), progress(c.ErrOrStderr(), env)
	env.raiseProc(2*env.cores + f.spinning())
	f.o.Ceilings = &bench.Ceilings{MaxMemory: f.o.MaxMemory, Places: env.cores}
	var rows []bench.Row
	err = f.o.Run(c.Context(), env.open, func(r bench.Row) { rows = append(rows, r) })
	if werr := bench.WriteRows(c.OutOrStdout(), format, rows); err == nil {
		err = werr
	}
	return err
}

// spinning is how many threads keep a processor busy besides those that copy.
func (f *layerwiseFlags) spinning() int {
	if f.o.Compute == bench.ComputeSpin {
		return slices.Max(f.o.Ranks)
	}
	return 0
}

func (f *layerwiseFlags) options(c *cobra.Command, env environment) (format bench.Format, err error) {
	if err := f.checkNames(); err != nil {
		return "", err
	}
	if format, err = bench.ParseFormat(f.output); err != nil {
		return "", err
	}
	if f.o.Locality, err = bench.ParseLocality(f.locality); err != nil {
		return "", err
	}
	if f.o.Remotes, f.o.Secret, err = f.remotes.parse(); err != nil {
		return "", err
	}
	if f.o.MaxMemory, err = memoryLimit(f.maxMemory, env); err != nil {
		return "", err
	}
	if f.o.Compute, err = bench.ParseCompute(f.compute); err != nil {
		return "", err
	}
	if f.o.ComputePerLayer, err = bench.ComputeTime(f.computeUs); err != nil {
		return "", err
	}
	if f.o.OffloadLocal, err = f.offloadsLocal(c); err != nil {
		return "", err
	}
	if f.o.Fetch, err = bench.ParseFetch(f.fetch); err != nil {
		return "", err
	}
	f.o.NoChecksums = f.checksum == "off"
	f.o.Places, f.o.Root = env.cores, machine()
	if f.o.Shape, err = f.shape(c); err != nil {
		return "", err
	}
	if err := f.o.Check(); err != nil {
		return format, err
	}
	return format, f.openGPU(c)
}

// openGPU opens a runtime where something lies on a device, and looks again at what that asks for.
func (f *layerwiseFlags) openGPU(c *cobra.Command) error {
	g := &bench.GPU{Ordinal: f.gpu.ordinal, Medium: f.medium == "hbm", Destination: f.destination == "gpu"}
	flag, value := "--medium", f.medium
	if !g.Medium {
		flag, value = "--destination", f.destination
	}
	if !g.Medium && !g.Destination {
		return f.gpu.refuse(c.Flags())
	}
	var err error
	if g.Runtime, err = f.gpu.open(); err != nil {
		return &bench.OptionError{Flag: flag, Value: value, Want: err.Error()}
	}
	f.o.GPU = g
	if err = f.o.Check(); err != nil {
		f.o.GPU = nil
		return errors.Join(err, g.Close())
	}
	return nil
}

// offloadsLocal refuses a peer to put to where there is none.
func (f *layerwiseFlags) offloadsLocal(c *cobra.Command) (bool, error) {
	if f.o.LocalOnly && f.offloadTo == "remote" && c.Flags().Changed("offload-to") {
		return false, &bench.OptionError{Flag: "--offload-to", Value: f.offloadTo, Want: "with --local-only there is no peer"}
	}
	return f.offloadTo == "local" || f.o.LocalOnly, nil
}

// checkNames refuses names that are unknown or whose machinery is not there yet.
func (f *layerwiseFlags) checkNames() error {
	for _, n := range []struct {
		flag, value      string
		available, later []string
	}{
		{"--medium", f.medium, []string{"dram", "hbm"}, nil},
		{"--destination", f.destination, []string{"host", "gpu"}, nil},
		{"--offload-to", f.offloadTo, []string{"local", "remote"}, nil},
		{"--checksum", f.checksum, checksumModes, nil},
	} {
		if err := bench.CheckAvailable(n.flag, n.value, n.available, n.later...); err != nil {
			return err
		}
	}
	return nil
}

// shape is the preset's, that of --pools, or one pool of --layers and --layer-bytes.
func (f *layerwiseFlags) shape(c *cobra.Command) (bench.Shape, error) {
	flag, spec := "--pools", f.pools
	if f.preset != "" {
		if f.pools != "" {
			return bench.Shape{}, &bench.OptionError{Flag: "--preset", Value: f.preset, Want: "--pools is given too, want one of them"}
		}
		p, err := bench.FindPreset(f.preset)
		if err != nil {
			return bench.Shape{}, err
		}
		flag, spec = "--preset", p.Pools
	}
	layers := f.layers
	if spec == "" {
		flag, spec = "--layers and --layer-bytes", fmt.Sprintf("kv:%d:%d", f.layers, f.layerBytes)
	} else {
		if c.Flags().Changed("layer-bytes") {
			return bench.Shape{}, &bench.OptionError{Flag: "--layer-bytes", Value: fmt.Sprint(f.layerBytes), Want: flag + " says the layers' bytes already"}
		}
		if !c.Flags().Changed("layers") {
			layers = 0 // as many as the pools name
		}
	}
	pools, err := bench.ParsePools(spec)
	if err != nil {
		return bench.Shape{}, &bench.OptionError{Flag: flag, Value: spec, Want: err.Error()}
	}
	shape, err := bench.NewShape(layers, pools)
	if err != nil {
		return bench.Shape{}, &bench.OptionError{Flag: "--layers", Value: fmt.Sprint(f.layers), Want: err.Error()}
	}
	return shape, nil
}
