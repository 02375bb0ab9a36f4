package bench

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/engine"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/ports"
)

// swaps is a copier that puts the bytes of two ops of a batch into each other's places, now and then.
type swaps struct {
	ports.Copier
	on bool
}

func (s *swaps) Copy(ctx context.Context, ops []ports.CopyOp, errs []error) {
	if last := len(ops) - 1; s.on && last > 0 && ops[0].Len == ops[last].Len {
		ops[0].SrcOff, ops[last].SrcOff, ops[0].Src, ops[last].Src = ops[last].SrcOff, ops[0].SrcOff, ops[last].Src, ops[0].Src
	}
	s.Copier.Copy(ctx, ops, errs)
}

func TestTheEngineBenchmarkChecksWhatItReads(t *testing.T) {
	medium, err := dram.Open(dram.Config{Bytes: 8 << 20, PageSize: 4 << 10})
	require.NoError(t, err)
	defer func() { require.NoError(t, medium.Close()) }()
	copier := &swaps{Copier: dram.NewCopier()}
	n, err := app.New(app.Config{ID: "n"}, app.Ports{Clock: boottime.New(), Medium: medium, Copier: copier})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	socket := filepath.Join(t.TempDir(), "s")
	server, err := engine.Listen(socket, engine.Config{Pool: n, Self: n.Self()})
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	defer func() {
		require.NoError(t, server.Stop(context.Background()))
		require.NoError(t, <-served)
	}()
	o := &Engine{Socket: socket, Runs: 2, MaxMemory: 1 << 30, shapes: []engineShape{{"large", 4, 5, 8_192, 2, false}, {"small", 16, 4, 1_728, 2, false}, {"lists", 16, 4, 1_728, 2, true}}}
	var rows []EngineRow
	require.NoError(t, o.Run(t.Context(), func(r EngineRow) error { rows = append(rows, r); return nil }))
	require.Len(t, rows, 3)
	for i, r := range rows {
		require.EqualValues(t, []int{8, 32, 32}[i], r.Ranges)
		require.Positive(t, r.Call)
		require.Positive(t, r.Loop)
		require.Positive(t, r.Share)
	}
	for _, f := range []Format{Table, CSV, JSON} {
		var out bytes.Buffer
		require.NoError(t, WriteEngineRows(&out, f, rows))
		require.Contains(t, out.String(), "extra_pct")
	}
	copier.on = true
	require.ErrorContains(t, o.Run(t.Context(), func(EngineRow) error { return nil }), "wrong bytes")
	require.Error(t, (&Engine{Socket: socket}).Check(), "no runs")
	require.ErrorContains(t, (&Engine{Runs: 1}).Run(t.Context(), nil), `--socket "": want a path`)
}
