package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spanpool/spanpool/adapters/rdma"
	"github.com/spanpool/spanpool/ports"
)

// perftest runs ib_read_bw or ib_write_bw between the same devices, and returns the rate that it reports or why there is none.
func perftest(ctx context.Context, o *RDMASweep, dir ports.Direction, size uint64, depth int) (gbs float64, why string) {
	program, err := exec.LookPath("ib_" + directionNames[dir] + "_bw")
	if err != nil {
		return 0, "not installed"
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return 0, err.Error()
	}
	common := []string{"-F", "-s", strconv.FormatUint(size, 10), "-t", strconv.Itoa(depth), "-n", "1000", "-p", strconv.Itoa(port)}
	owner := exec.CommandContext(ctx, program, append(common, device(o.To)...)...)
	var said bytes.Buffer
	owner.Stdout, owner.Stderr = &said, &said
	if err := owner.Start(); err != nil {
		return 0, err.Error()
	}
	ended := make(chan struct{})
	go func() { _ = owner.Wait(); close(ended) }()
	defer func() { cancel(); <-ended }() // it ends with its client; a client that failed leaves it to the context
	var out []byte
	for ctx.Err() == nil { // until the owner listens
		out, err = exec.CommandContext(ctx, program, append(append(common, device(o.From)...), "127.0.0.1")...).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("onnect")) {
			break
		}
		select {
		case <-ended:
			return 0, "the owner's end fails: " + strings.Join(strings.Fields(said.String()), " ")
		default:
		}
	}
	if err != nil {
		return 0, fmt.Sprintf("%v", err)
	}
	return parsePerftest(out)
}

// device names a device and its first GID that we would use ourselves.
func device(name string) (args []string) {
	all, _ := rdma.Devices() // without it perftest chooses
	wanted, _, _ := strings.Cut(name, "/")
	for _, d := range all {
		if wanted != "" && d.Name != wanted {
			continue
		}
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				if p.Active && g.Used {
					return []string{"-d", d.Name, "-i", strconv.Itoa(p.Number), "-x", strconv.Itoa(g.Index)}
				}
			}
		}
	}
	return nil
}

// parsePerftest reads the average of its one row: bytes, iterations, peak, average (MiB/s) and the rate of messages.
func parsePerftest(out []byte) (gbs float64, why string) {
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) >= 5 {
			if _, err := strconv.ParseUint(f[0], 10, 64); err != nil {
				continue
			}
			if v, err := strconv.ParseFloat(f[3], 64); err == nil && v > 0 {
				return v * (1 << 20) / 1e9, ""
			}
		}
	}
	return 0, "its output has no row"
}
