package bench

import (
	"io"
	"time"

	"github.com/spanpool/spanpool/ports"
)

// ReplayColumn is a figure of a replay.
type ReplayColumn int

// The columns of a replay.
const (
	ReplayNodes ReplayColumn = iota
	ReplayCapacity
	ReplayBlockBytes
	ReplayRequests
	ReplayBlocks
	ReplayHitPct
	ReplayHits
	ReplayRemoteHits
	ReplayMissed
	ReplayStored
	ReplayRefused
	ReplayTTFLP50
	ReplayTTFLP95
	ReplayWireGet
	ReplayWirePull
	ReplayWirePut
	ReplayDuplicate
	ReplayInstalled
	ReplayPut
	ReplayFailedReads
	ReplaySeconds
	NumReplayColumns
)

// replayColumns is by ReplayColumn.
var replayColumns = [NumReplayColumns]columnInfo{
	{"nodes", 0, ""},
	{"capacity_blocks", 0, "blocks of a node's medium"},
	{"block_bytes", 0, ""},
	{"requests", 0, ""},
	{"blocks", 0, "that the requests named"},
	{"hit_pct", 2, "blocks of the requests' longest prefixes that were read"},
	{"hit_blocks", 0, ""},
	{"remote_hit_blocks", 0, "of these, blocks that took at least one byte from a peer"},
	{"missed_blocks", 0, "blocks behind which exists was right and the read was too late"},
	{"put_blocks", 0, "blocks that were stored"},
	{"refused_puts", 0, "blocks for which there was no room"},
	{"ttfl_us_p50", 1, "from a request's start until the first layer group of its prefix is readable"},
	{"ttfl_us_p95", 1, ""},
	{"wire_get_mib", 2, "what moved for callers, over all nodes"},
	{"wire_pull_mib", 2, "what moved for the pull"},
	{"wire_put_mib", 2, "what moved for puts"},
	{"wire_duplicate_mib", 2, "what landed though it was held already, or was thrown away"},
	{"installed_mib", 2, "what reads made local"},
	{"put_mib", 2, "what puts committed"},
	{"failed_reads", 0, "reads that failed or were wrong; 'unverified' when contents were not checked"},
	{"seconds", 2, "of the whole replay, checks included"},
}

// ReplayColumnNames is the header of the CSV.
func ReplayColumnNames() []string { return namesOf(replayColumns[:]) }

// ReplayColumnMeanings explains the columns, one a line, for the help.
func ReplayColumnMeanings() string { return meaningsOf(replayColumns[:]) }

// ReplayRow is the figures of one replay.
type ReplayRow struct {
	Values   [NumReplayColumns]float64
	Verified bool
}

func (r *ReplayRow) cells() []string {
	cells := make([]string, NumReplayColumns)
	for c := range cells {
		cells[c] = replayColumns[c].format(r.Values[c])
	}
	if !r.Verified {
		cells[ReplayFailedReads] += unverified
	}
	return cells
}

// WriteReplayRows prints rows.
func WriteReplayRows(w io.Writer, f Format, rows []ReplayRow) error {
	if f == JSON {
		return writeJSON(w, jsonReplayRows(rows))
	}
	cells := make([][]string, len(rows))
	for i := range rows {
		cells[i] = rows[i].cells()
	}
	if f == CSV {
		return writeCSV(w, replayColumns[:], cells)
	}
	return writeTable(w, replayColumns[:], cells)
}

func jsonReplayRows(rows []ReplayRow) []map[string]any {
	list := make([]map[string]any, len(rows))
	for i := range rows {
		list[i] = map[string]any{"verified": rows[i].Verified}
		for c := range NumReplayColumns {
			list[i][replayColumns[c].name] = rows[i].Values[c]
		}
	}
	return list
}

// figures adds up what the nodes counted.
func (p *replayRow) figures(took time.Duration) *ReplayRow {
	var wire [ports.NumPurposes]uint64
	var installed, put, duplicate uint64
	for _, n := range p.cluster.Nodes {
		s := n.Pool.Stats()
		for i := range wire {
			wire[i] += s.Wire[i]
		}
		for _, b := range s.InstalledBytes {
			installed += b
		}
		put += s.PutBytes
		duplicate += s.DuplicateBytes
	}
	failed, _ := p.failures.counts()
	row := &ReplayRow{Verified: p.o.Verify}
	row.Values = [NumReplayColumns]float64{
		ReplayNodes:       float64(p.o.Nodes),
		ReplayCapacity:    float64(p.capacity),
		ReplayBlockBytes:  float64(p.o.BlockBytes),
		ReplayRequests:    float64(p.requests),
		ReplayBlocks:      float64(p.blocks),
		ReplayHitPct:      100 * float64(p.hits) / float64(max(p.blocks, 1)),
		ReplayHits:        float64(p.hits),
		ReplayRemoteHits:  float64(p.remote),
		ReplayMissed:      float64(p.missed),
		ReplayStored:      float64(p.stored),
		ReplayRefused:     float64(p.refused),
		ReplayTTFLP50:     microseconds(p.ttfl.Percentile(50)),
		ReplayTTFLP95:     microseconds(p.ttfl.Percentile(95)),
		ReplayWireGet:     toMiB(wire[ports.PurposeGet]),
		ReplayWirePull:    toMiB(wire[ports.PurposePull]),
		ReplayWirePut:     toMiB(wire[ports.PurposePut]),
		ReplayDuplicate:   toMiB(duplicate),
		ReplayInstalled:   toMiB(installed),
		ReplayPut:         toMiB(put),
		ReplayFailedReads: float64(failed),
		ReplaySeconds:     took.Seconds(),
	}
	return row
}
