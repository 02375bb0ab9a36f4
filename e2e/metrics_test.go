package e2e_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMetricsOfServedNodesMove: a page without counts, a put and a get over sockets, and the page that says so.
func TestMetricsOfServedNodesMove(t *testing.T) {
	p := newPool(t, []string{"a", "b"})
	a, b := p.nodes["a"], p.nodes["b"]
	for _, line := range []string{`spanpool_put_keys_total{status="stored"} 0`, `spanpool_get_keys_total{status="hit"} 0`, `spanpool_install_failures_total{reason="lease"} 0`} {
		require.Contains(t, a.metrics(t), "\n"+line+"\n")
	}
	object := content("k", 0, 1_000_000)
	a.mustPut(t, "k", object)
	b.mustGet(t, "k", object)
	require.Contains(t, a.metrics(t), "\n"+`spanpool_put_keys_total{status="stored"} 1`+"\n")
	page := b.metrics(t)
	for _, line := range []string{`spanpool_get_keys_total{status="hit"} 1`, `spanpool_wire_bytes_total{purpose="get"} 1e+06`,
		`spanpool_peer_wire_bytes_total{peer="a",purpose="get",transport="tcp"} 1e+06`, `spanpool_installed_bytes_total{way="slot"} 1e+06`, `spanpool_peer_up{peer="a"} 1`} {
		require.Contains(t, page, "\n"+line+"\n")
	}
	a.kill(t)
	p.eventually(func() bool { return strings.Contains(b.metrics(t), "\n"+`spanpool_peer_up{peer="a"} 0`+"\n") }, "the peer stays up")
	require.Contains(t, b.metrics(t), "\n"+`spanpool_peer_wire_bytes_total{peer="a",purpose="get",transport="tcp"} 1e+06`+"\n", "what crossed stays counted")
}

// metrics is the page that a node shows to Prometheus.
func (n *node) metrics(t *testing.T) string {
	t.Helper()
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get("http://" + n.http + "/metrics")
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, http.StatusOK, r.StatusCode)
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(b)
}
