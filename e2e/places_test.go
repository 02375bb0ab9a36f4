package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// place is where nodes run: on loopback, on an address of this host (SPANPOOL_E2E_ADDRESS), or on hosts that ssh reaches without a
// question (SPANPOOL_E2E_HOSTS, separated by commas). Nodes are dealt out to the places.
type place struct {
	ssh        string // what ssh is told; empty: this host
	address    string // that nodes there listen on
	dir        string // with the binary and the secret, where ssh reaches it
	secretFile string // beyond loopback
}

// places is what TestMain found.
var places = []*place{{address: "127.0.0.1"}}

// findPlaces reads the variables, and brings the binary to the hosts. The function that it returns takes it away again.
func findPlaces(dir string) (func(), error) {
	hosts, address := os.Getenv("SPANPOOL_E2E_HOSTS"), os.Getenv("SPANPOOL_E2E_ADDRESS")
	if hosts == "" && address == "" {
		return func() {}, nil
	}
	b := make([]byte, 24)
	_, _ = rand.Read(b)
	secret := []byte(hex.EncodeToString(b))
	if hosts == "" {
		places[0] = &place{address: address, secretFile: filepath.Join(dir, "secret")}
		return func() {}, os.WriteFile(places[0].secretFile, secret, 0o600)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	places = nil
	away := func() {
		for _, p := range places {
			_, _ = p.run(nil, "rm -rf "+p.dir)
		}
	}
	for host := range strings.SplitSeq(hosts, ",") {
		_, address, at := strings.Cut(host, "@")
		if !at {
			address = host
		}
		p := &place{ssh: host, address: address, dir: "/tmp/spanpool-e2e-" + hex.EncodeToString(b[:6])}
		p.secretFile = p.dir + "/secret"
		places = append(places, p)
		for _, f := range []struct {
			name string
			data []byte
		}{{"spanpool", program}, {"secret", secret}} {
			if _, err := p.run(f.data, fmt.Sprintf("umask 077; mkdir -p %s && cat > %s/%s && chmod 700 %s/%s", p.dir, p.dir, f.name, p.dir, f.name)); err != nil {
				away()
				return nil, err
			}
		}
	}
	return away, nil
}

// run runs a shell's line on the host of a place.
func (p *place) run(stdin []byte, line string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "ssh", "-o", "BatchMode=yes", p.ssh, line)
	c.Stdin = bytes.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ssh %s: %w: %s", p.ssh, err, out)
	}
	return string(out), nil
}

// command is a spanpool command at a place. One over ssh says its process id first.
func (p *place) command(args ...string) *exec.Cmd {
	if p.ssh == "" {
		return exec.Command(binary, args...)
	}
	var line strings.Builder
	line.WriteString("echo pid $$; exec " + p.dir + "/spanpool")
	for _, a := range args {
		line.WriteString(" '" + strings.ReplaceAll(a, "'", `'\''`) + "'")
	}
	return exec.Command("ssh", "-o", "BatchMode=yes", p.ssh, line.String())
}

// somePort is one that is likely to be free on a host where none can be asked for.
func somePort() string {
	n, err := rand.Int(rand.Reader, big.NewInt(10_000))
	if err != nil {
		panic(err)
	}
	return fmt.Sprint(20_000 + n.Int64())
}

// tunnel brings a node's socket and HTTP to this host, over all of the node's starts.
func (n *node) tunnel(t *testing.T) {
	t.Helper()
	c := exec.Command("ssh", "-N", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-L", n.socket+":"+n.socketThere, "-L", n.http+":"+n.httpThere, n.place.ssh)
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	within(t, soon, func() bool { _, err := os.Stat(n.socket); return err == nil }, "no tunnel to %s", n.place.ssh)
}

var pidLine = regexp.MustCompile(`(?m)^pid ([0-9]+)$`)

func (n *node) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if n.place.ssh == "" {
		require.NoError(t, n.cmd.Process.Signal(s))
		return
	}
	pid := pidLine.FindStringSubmatch(n.log.String())
	require.NotNil(t, pid, "%s does not say its process", n.id)
	_, err := n.place.run(nil, fmt.Sprintf("kill -%d %s", int(s), pid[1]))
	require.NoError(t, err)
}

// onLoopbackOnly is for what needs no other place, or cannot be there.
func onLoopbackOnly(t *testing.T, why string) {
	t.Helper()
	if places[0].secretFile != "" {
		t.Skip("on loopback only: " + why)
	}
}

// notOverSSH is for what cannot be done from this host.
func notOverSSH(t *testing.T, why string) {
	t.Helper()
	if places[0].ssh != "" {
		t.Skip("not over ssh: " + why)
	}
}
