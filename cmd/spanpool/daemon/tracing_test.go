package daemon

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/spanpool/spanpool/adapters/telemetry/otlptest"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

const engineTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestATraceGoesFromTheEngineOverTheNodeToItsPeer: one trace, each span the child of the one that it was made for, and all of them at
// the collector when the nodes have stopped.
func TestATraceGoesFromTheEngineOverTheNodeToItsPeer(t *testing.T) {
	c, err := otlptest.Listen()
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	small := []string{"--secret-file", secretFile(t), "--dram-page-bytes", "4KiB", "--tracing-otlp", c.Addr()}
	run := func(args ...string) *Daemon {
		d, err := New(settingsOf(t, append(small, args...)...), Options{Log: io.Discard, Version: "v0"})
		require.NoError(t, err)
		require.NoError(t, d.Start(t.Context()))
		return d
	}
	a := run()
	b := run("--node-id", "b", "--peers", "a="+a.At.Control)
	require.Equal(t, ports.Stored, a.Node.Put(t.Context(), "ns", "k", ports.HostRegionOf(make([]byte, 1000))).Status)

	traced := b.Pool
	var out [1]ports.Result
	require.NoError(t, traced.BatchPut(t.Context(), &ports.WholeBatch{Namespace: "ns", Keys: []string{"given"}, To: "a",
		Targets: []ports.Target{{Len: 1000}}, Regions: []ports.Memory{{Region: ports.HostRegionOf(make([]byte, 1000))}}}, out[:]))
	require.Equal(t, ports.Stored, out[0].Status, "%v", out[0].Err)

	cc, err := grpc.NewClient("unix:"+b.At.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer cc.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), ports.TraceHeader, engineTrace), 10*time.Second)
	defer cancel()
	stream, err := enginev1.NewEngineClient(cc).Get(ctx, &enginev1.GetRequest{Namespace: []byte("ns"), Key: []byte("k")})
	require.NoError(t, err)
	reply, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, enginev1.KeyStatus_KEY_STATUS_HIT, reply.GetResult().GetStatus(), reply.GetResult().GetReason())
	require.NoError(t, cc.Close())
	require.NoError(t, b.Stop())
	require.NoError(t, a.Stop())

	engine := ports.ParseTrace(engineTrace)
	batch := spans(t, c, "b", "spanpool.get_whole")[0]
	require.Equal(t, engine.ID[:], batch.Trace)
	require.Equal(t, engine.Span[:], batch.Parent)
	var parents [][]byte
	for _, s := range spans(t, c, "a", "spanpool.peer.resolve") {
		require.Equal(t, engine.ID[:], s.Trace)
		parents = append(parents, s.Parent)
	}
	require.Contains(t, parents, batch.ID, "the peer's span is the child of the batch's")
	put := spans(t, c, "b", "spanpool.put_whole")[0]
	for _, name := range []string{"spanpool.peer.reserve", "spanpool.peer.commit"} {
		s := spans(t, c, "a", name)[0]
		require.Equal(t, put.Trace, s.Trace)
		require.Equal(t, put.ID, s.Parent)
	}
}

// spans is those of a node by a name, at least one.
func spans(t *testing.T, c *otlptest.Collector, node, name string) (found []otlptest.Span) {
	t.Helper()
	for _, s := range c.Spans() {
		if s.Node == node && s.Name == name {
			found = append(found, s)
		}
	}
	require.NotEmpty(t, found, "%s of %s among %v", name, node, c.Spans())
	return found
}

// TestACollectorThatIsDownCostsSpansOnly: a node starts, serves and stops without it, and says so in its log.
func TestACollectorThatIsDownCostsSpansOnly(t *testing.T) {
	var log logged
	d, err := New(settingsOf(t, "--tracing-otlp", "127.0.0.1:1"), Options{Log: &log})
	require.NoError(t, err)
	require.NoError(t, d.Start(t.Context()))
	var out [1]ports.Result
	require.NoError(t, d.Pool.BatchPut(t.Context(), &ports.WholeBatch{Namespace: "ns", Keys: []string{"k"},
		Targets: []ports.Target{{Len: 10}}, Regions: []ports.Memory{{Region: ports.HostRegionOf(make([]byte, 10))}}}, out[:]))
	require.Equal(t, ports.Stored, out[0].Status)
	require.NoError(t, d.Stop())
	require.Contains(t, log.String(), "spans were not taken by the collector")
	require.Contains(t, log.String(), "tracing.otlp=127.0.0.1:1")
}
