// Package otlptest is a collector that takes spans by OTLP over gRPC and keeps them, for tests of what is traced.
package otlptest

import (
	"context"
	"net"
	"sync"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// Span is a span that came, and the node that it came from.
type Span struct {
	Node, Name        string
	Trace, ID, Parent []byte
}

// Collector keeps the spans that it is sent. Safe for parallel use.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer
	server *grpc.Server
	addr   string
	done   chan error

	mu struct {
		sync.Mutex
		spans []Span
	}
}

// Listen starts a collector on loopback. Close must be called.
func Listen() (*Collector, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &Collector{server: grpc.NewServer(), addr: l.Addr().String(), done: make(chan error, 1)}
	collectorv1.RegisterTraceServiceServer(c.server, c)
	go func() { c.done <- c.server.Serve(l) }()
	return c, nil
}

// Addr is where it listens.
func (c *Collector) Addr() string { return c.addr }

// Close ends it, and returns why it had ended before.
func (c *Collector) Close() error {
	c.server.Stop()
	return <-c.done
}

// Spans is what has come, in its order.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.mu.spans...)
}

// Export is OTLP's call.
func (c *Collector) Export(_ context.Context, in *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range in.GetResourceSpans() {
		var node string
		for _, a := range from.GetResource().GetAttributes() {
			if a.GetKey() == "service.instance.id" {
				node = a.GetValue().GetStringValue()
			}
		}
		for _, of := range from.GetScopeSpans() {
			for _, s := range of.GetSpans() {
				c.mu.spans = append(c.mu.spans, Span{node, s.GetName(), s.GetTraceId(), s.GetSpanId(), s.GetParentSpanId()})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}
