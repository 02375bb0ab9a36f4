package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spanpool/spanpool/client"
)

// The forms in which ctl prints.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// print writes a value as JSON, or its columns and rows as a table.
func (f *ctl) print(w io.Writer, value any, columns []string, rows [][]string) error {
	if f.output == outputJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range append([][]string{columns}, rows...) {
		for i, cell := range r {
			if cell == "" {
				r[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// hex is an incarnation as logs and files show it.
func hex(n uint64) string { return fmt.Sprintf("%016x", n) }

func (f *ctl) newStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say what the node is and what it counted; names under \"now.\" are gauges",
		Args:  noArgs,
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node *client.Node, _ []string) error {
			r, err := node.Status(ctx)
			if err != nil {
				return err
			}
			out := struct {
				Node        string            `json:"node"`
				Incarnation string            `json:"incarnation"`
				Version     string            `json:"version"`
				Uptime      string            `json:"uptime"`
				Warnings    []string          `json:"warnings"`
				Counts      map[string]uint64 `json:"counts"`
			}{r.GetNode(), hex(r.GetIncarnation()), r.GetVersion(), time.Duration(r.GetUptimeNanos()).Round(time.Millisecond).String(),
				append([]string{}, r.GetWarnings()...), r.GetCounts()}
			rows := [][]string{{"incarnation", out.Incarnation}, {"version", out.Version}, {"uptime", out.Uptime}}
			for _, w := range out.Warnings {
				rows = append(rows, []string{"warning", w})
			}
			for _, name := range slices.Sorted(maps.Keys(out.Counts)) {
				if n := out.Counts[name]; n > 0 {
					rows = append(rows, []string{name, fmt.Sprint(n)})
				}
			}
			return f.print(c.OutOrStdout(), out, []string{"node", out.Node}, rows)
		}),
	}
}

// peerState is what is printed of a peer.
type peerState struct {
	Node        string            `json:"node"`
	Incarnation string            `json:"incarnation"`
	Transport   string            `json:"transport"`       // of reads
	Writes      string            `json:"write_transport"` // of puts
	Down        bool              `json:"down"`
	Failure     string            `json:"failure,omitempty"`
	Refused     map[string]string `json:"refused,omitempty"`
	Wire        map[string]uint64 `json:"wire_bytes"`
	Transports  []transportState  `json:"transports"`
}

// transportState is what is printed of a transport to a peer.
type transportState struct {
	Transport string            `json:"transport"`
	Wire      map[string]uint64 `json:"wire_bytes"`
	Lost      uint64            `json:"lost,omitempty"`
}

func (f *ctl) newPeers() *cobra.Command {
	return &cobra.Command{
		Use:   "peers",
		Short: "Say how the node stands with each peer, and why a peer or a transport is not used",
		Long: `Say how the node stands with each peer, and why a peer or a transport is not used. That is what its last call or dial
found: nobody is asked anew, so a peer that failed since shows as up until something is asked of it.`,
		Args: noArgs,
		RunE: f.withNode(func(ctx context.Context, c *cobra.Command, node *client.Node, _ []string) error {
			peers, err := node.Peers(ctx)
			if err != nil {
				return err
			}
			out := []peerState{}
			var rows [][]string
			for _, p := range peers {
				s := peerState{Node: p.GetNode(), Incarnation: hex(p.GetIncarnation()), Transport: p.GetTransport(), Writes: p.GetWriteTransport(),
					Down: p.GetDown(), Failure: p.GetFailure(), Wire: p.GetWireBytes(), Transports: []transportState{}}
				why := []string{}
				if s.Failure != "" {
					why = append(why, s.Failure)
				}
				for _, r := range p.GetRefusals() {
					if s.Refused == nil {
						s.Refused = make(map[string]string)
					}
					s.Refused[r.GetTransport()] = r.GetReason()
					why = append(why, "no "+r.GetTransport()+": "+r.GetReason())
				}
				for _, t := range p.GetTransports() {
					s.Transports = append(s.Transports, transportState{t.GetTransport(), t.GetWireBytes(), t.GetLost()})
					if n := t.GetLost(); n > 0 {
						why = append(why, fmt.Sprintf("%s lost %d links", t.GetTransport(), n))
					}
				}
				out = append(out, s)
				rows = append(rows, []string{s.Node, s.Incarnation, s.Transport, s.Writes, s.state(), fmt.Sprint(s.Wire["get"]), fmt.Sprint(s.Wire["pull"]),
					fmt.Sprint(s.Wire["put"]), strings.Join(why, "; ")})
			}
			return f.print(c.OutOrStdout(), out, []string{"node", "incarnation", "reads", "writes", "state", "get_bytes", "pull_bytes", "put_bytes", "why"}, rows)
		}),
	}
}

func (p peerState) state() string {
	switch {
	case p.Transport != "":
		return "up"
	case p.Down:
		return "down"
	}
	return "not connected"
}
