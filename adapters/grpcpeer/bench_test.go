package grpcpeer

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// BenchmarkResolve is one round trip of a resolve, beside the bare unary call of gRPC with the same two messages, ready made: what a
// call costs at least, and what it costs as columns of ports.
func BenchmarkResolve(b *testing.B) {
	for _, keys := range []int{1, 32, 1024} {
		for _, pages := range []int{1, 69} {
			shape := fmt.Sprintf("keys=%d/pages=%d", keys, pages)
			b.Run("as=port/"+shape, func(b *testing.B) { benchmarkPort(b, keys, pages) })
			b.Run("as=unary/"+shape, func(b *testing.B) { benchmarkUnary(b, keys, pages) })
		}
	}
}

func benchmarkPort(b *testing.B, keys, pages int) {
	srv := &porttest.FakeServer{}
	srv.Use(manyPages(pages))
	n := listen(b, "127.0.0.1:0", testConfig("owner", 2, testSecret), quiet{srv})
	c := newClient(b, testConfig("asker", 1, testSecret, Member{"owner", n.addr}))
	req, out := resolveOf(keys), &ports.ResolveReply{}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Resolve(context.Background(), n.self, req, out); err != nil {
			b.Fatal(err)
		}
	}
}

// quiet forgets what was called, so that the books do not grow.
type quiet struct{ *porttest.FakeServer }

func (q quiet) Resolve(ctx context.Context, from ports.Peer, req *ports.ResolveRequest, out *ports.ResolveReply) error {
	defer q.TakeCalls()
	return q.FakeServer.Resolve(ctx, from, req, out)
}

func benchmarkUnary(b *testing.B, keys, pages int) {
	var reply ports.ResolveReply
	require.NoError(b, manyPages(pages).Resolve(context.Background(), ports.Peer{}, resolveOf(keys), &reply))
	answer := must(resolveReplyOut(&reply))
	request := must(resolveOut(sampleEnds, resolveOf(keys)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "bare", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Call",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return answer, decode(&peerv1.ResolveRequest{})
		}}}}, struct{}{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	b.Cleanup(func() { s.Stop(); require.NoError(b, <-done) })
	cc, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, cc.Close()) })
	b.ReportAllocs()
	for b.Loop() {
		var out proto.Message = &peerv1.ResolveReply{}
		if err := cc.Invoke(context.Background(), "/bare/Call", request, out); err != nil {
			b.Fatal(err)
		}
	}
}
