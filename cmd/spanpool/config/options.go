package config

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spanpool/spanpool/adapters/grpcpeer"
	"github.com/spanpool/spanpool/bench"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// option is one setting: its key in files (a flag has dashes for its dots and underscores; a variable is in capitals, with
// underscores), its default, and how its text becomes part of the Settings.
type option struct {
	key, value, help string
	set              func(s *Settings, text string) error
}

// options is every setting, in the order in which they are printed.
var options = []option{
	{key: "node.id", help: "stable name of this node; default: the host's name", set: func(s *Settings, t string) error { s.ID = ports.PeerID(t); return nil }},
	{key: "listen", value: "127.0.0.1:7400", help: "address of the control plane (gRPC)", set: address(func(s *Settings) *string { return &s.Listen })},
	{key: "data.listen", value: "127.0.0.1:7401", help: "address of the tcp transport", set: address(func(s *Settings) *string { return &s.DataListen })},
	{key: "data.advertise", help: "address that peers dial for data; default: what data.listen is bound to", set: dialled(func(s *Settings) *string { return &s.DataAdvertise })},
	{key: "data.connections", value: "4", help: "data connections a peer", set: count(1, 16, func(s *Settings) *uint64 { return &s.DataConnections })},
	{key: "peers", help: "the other nodes, as ID=HOST:PORT, separated by commas; default: none", set: setPeers},
	{key: "secret_file", help: "file with the secret that all nodes share; default: none", set: text(func(s *Settings) *string { return &s.SecretFile })},
	{key: "tls", help: "not there yet; default: none", set: func(_ *Settings, t string) error {
		if t == "" {
			return nil
		}
		return errors.New("TLS is not there yet: leave it out")
	}},
	{key: "insecure", value: "false", help: "listen beyond loopback without a secret", set: boolean(func(s *Settings) *bool { return &s.Insecure })},
	{key: "socket", value: DefaultSocket, help: "Unix socket for ctl and engines; off for none", set: text(func(s *Settings) *string { return &s.Socket })},
	{key: "clients.max", value: "256", help: "engines and ranks on the socket at a time", set: count(1, 1<<16, func(s *Settings) *uint64 { return &s.Clients })},
	{key: "clients.bytes_in_flight", value: "1GiB", help: "bytes of one client's calls in progress; above it keys are busy, and a call that is larger alone is refused", set: size(func(s *Settings) *uint64 { return &s.ClientBytes })},
	{key: "clients.regions", value: "256", help: "regions of memory that one client may register", set: count(1, 1<<16, func(s *Settings) *uint64 { return &s.ClientRegions })},
	{key: "clients.sessions", value: "1024", help: "sessions, of reads and of writes, that one client may have open", set: count(1, 1<<16, func(s *Settings) *uint64 { return &s.ClientSessions })},
	{key: "http", value: "127.0.0.1:7402", help: "address of /livez, /readyz, /metrics and pprof, loopback only; off for none", set: setHTTP},
	{key: "transport", value: "auto", help: "auto, tcp, shm or rdma: reads go by the first of shm (peers on this host), rdma and tcp that both ends have; what is named must be there, and tcp is besides", set: oneOf(func(s *Settings) *string { return &s.Transport }, "auto", "tcp", "rdma", "shm")},
	{key: "medium", value: "dram", help: "dram, or hbm in a build with GPU support", set: oneOf(func(s *Settings) *string { return &s.Medium }, "dram", "hbm")},
	{key: "dram.bytes", value: "1GiB", help: "memory of the pool", set: size(func(s *Settings) *uint64 { return &s.MediumBytes })},
	{key: "dram.page_bytes", value: "64KiB", help: "size of a page; engines often set it to the KV page", set: size(func(s *Settings) *uint64 { return &s.PageBytes })},
	{key: "dram.huge_pages", value: "false", help: "ask for huge pages", set: boolean(func(s *Settings) *bool { return &s.HugePages })},
	{key: "rdma.device", help: "device of rdma as NAME or NAME/PORT; default: the first that is up", set: text(func(s *Settings) *string { return &s.RDMADevice })},
	{key: "rdma.gid", help: "address of rdma: ipv4, ipv6 or an index; default: the pair that is nearest", set: setGID},
	{key: "rdma.read_pairs", value: "2", help: "queue pairs of a link that carry reads", set: count(1, 16, func(s *Settings) *uint64 { return &s.RDMAReadPairs })},
	{key: "rdma.write_pairs", value: "1", help: "queue pairs of a link that carry writes", set: count(1, 16, func(s *Settings) *uint64 { return &s.RDMAWritePairs })},
	{key: "rdma.depth", value: "256", help: "requests in flight on a queue pair, as far as the device goes", set: count(16, 32768, func(s *Settings) *uint64 { return &s.RDMADepth })},
	{key: "rdma.scatter", value: "16", help: "scatter entries of a request, as far as the device goes", set: count(1, 256, func(s *Settings) *uint64 { return &s.RDMAScatter })},
	{key: "rdma.reads", value: "16", help: "outstanding reads of a queue pair, as far as the device goes", set: count(1, 255, func(s *Settings) *uint64 { return &s.RDMAReads })},
	{key: "gpu.runtime", value: "auto", help: "whose GPU runtime is used: hip, cuda, auto", set: oneOf(func(s *Settings) *string { return &s.GPURuntime }, "auto", "hip", "cuda")},
	{key: "gpu.clients", value: "false", help: "let clients lend GPU memory by IPC handles; with hbm they always may", set: boolean(func(s *Settings) *bool { return &s.GPUClients })},
	{key: "gpu.nic", value: "false", help: "let rdma read and write GPU memory where its device takes it (seen on no hardware yet); else its bytes go by the arenas", set: boolean(func(s *Settings) *bool { return &s.GPUNIC })},
	{key: "gpu.library", help: "path of that runtime's library; default: the newest that the loader finds", set: text(func(s *Settings) *string { return &s.GPULibrary })},
	{key: "gpu.devices", value: "0", help: "devices that hbm lies on, separated by commas", set: setDevices},
	{key: "gpu.reserve_bytes", value: "512MiB", help: "memory of each device that is left to others", set: size(func(s *Settings) *uint64 { return &s.GPUReserve })},
	{key: "gpu.deadline", value: "2s", help: "time for a step of a copy, after which a device is lost", set: duration(func(s *Settings) *time.Duration { return &s.GPUDeadline })},
	{key: "arena.get_bytes", value: "256MiB", help: "arena of gets; 0 turns that route off", set: size(func(s *Settings) *uint64 { return &s.GetArenaBytes })},
	{key: "arena.put_bytes", value: "256MiB", help: "arena of puts to peers; 0 turns that route off", set: size(func(s *Settings) *uint64 { return &s.PutArenaBytes })},
	{key: "locality", value: "fill", help: "how far reads make objects local: fill, pull, off", set: setLocality},
	{key: "ranged_locality_prefetch", value: "true", help: "pull in the background what ranged reads left out", set: boolean(func(s *Settings) *bool { return &s.Prefetch })},
	{key: "cache_remote_fetches", value: "true", help: "whether whole gets may install", set: boolean(func(s *Settings) *bool { return &s.CacheRemote })},
	{key: "checksum", value: "on", help: "whether puts make checksums and gets verify by them: on, off", set: setChecksum},
	{key: "admission", value: "size", help: "what the pull admits: size, always, never", set: setAdmission},
	{key: "admission.max_bytes", value: "16MiB", help: "largest object that admission by size lets in", set: size(func(s *Settings) *uint64 { return &s.Node.Admission.MaxBytes })},
	{key: "filling_share", value: "0.25", help: "share of the pool that filling slots may hold", set: share(func(s *Settings) *float64 { return &s.Node.FillingShare })},
	{key: "watermark.high", value: "0.9", help: "share in use at which background eviction begins; 0 turns it off", set: share(func(s *Settings) *float64 { return &s.Node.HighWatermark })},
	{key: "watermark.low", value: "0.7", help: "share in use at which it ends", set: share(func(s *Settings) *float64 { return &s.Node.LowWatermark })},
	{key: "lease", value: "500ms", help: "lease granted to reading peers", set: duration(func(s *Settings) *time.Duration { return &s.Node.PeerLease })},
	{key: "reservation", value: "30s", help: "time a peer has for a put", set: duration(func(s *Settings) *time.Duration { return &s.Node.Reservation })},
	{key: "hold", value: "2s", help: "longest hold of exists", set: duration(func(s *Settings) *time.Duration { return &s.Node.HoldTime })},
	{key: "timeout.dial", value: "1s", help: "dial and hello", set: duration(func(s *Settings) *time.Duration { return &s.Node.DialTimeout })},
	{key: "timeout.control", value: "1s", help: "a control call", set: duration(func(s *Settings) *time.Duration { return &s.Node.ControlTimeout })},
	{key: "timeout.transfer", value: "2s", help: "a transfer op", set: duration(func(s *Settings) *time.Duration { return &s.Node.TransferTimeout })},
	{key: "timeout.arena", value: "1s", help: "a wait for the arena", set: duration(func(s *Settings) *time.Duration { return &s.Node.ArenaWait })},
	{key: "timeout.call", value: "5s", help: "a whole call", set: duration(func(s *Settings) *time.Duration { return &s.Node.CallTimeout })},
	{key: "breaker.min", value: "1s", help: "first time for which a failed peer is left out", set: duration(func(s *Settings) *time.Duration { return &s.Node.BreakerMin })},
	{key: "breaker.max", value: "10s", help: "longest such time", set: duration(func(s *Settings) *time.Duration { return &s.Node.BreakerMax })},
	{key: "tracing.otlp", help: "HOST:PORT of an OTLP collector (gRPC, no TLS: one on this host) that takes a span of each batch; default: none",
		set: dialled(func(s *Settings) *string { return &s.TracingOTLP })},
	{key: "tracing.sample", value: "1", help: "share of the traces that begin here that is kept", set: share(func(s *Settings) *float64 { return &s.TracingSample })},
	{key: "drain", value: "10s", help: "time for calls in progress to end at SIGTERM", set: duration(func(s *Settings) *time.Duration { return &s.Drain })},
	{key: "log.level", value: "info", help: "debug, info, warn, error", set: oneOf(func(s *Settings) *string { return &s.LogLevel }, "debug", "info", "warn", "error")},
}

func text(field func(*Settings) *string) func(*Settings, string) error {
	return func(s *Settings, t string) error { *field(s) = t; return nil }
}

func address(field func(*Settings) *string) func(*Settings, string) error {
	return func(s *Settings, t string) error {
		if _, port, err := net.SplitHostPort(t); err != nil || !isPort(port) {
			return fmt.Errorf("want HOST:PORT ([ADDRESS]:PORT for IPv6), PORT from 0 to 65535")
		}
		*field(s) = t
		return nil
	}
}

// isPort leaves out the names of services: what they stand for is another host's to say.
func isPort(t string) bool {
	_, err := strconv.ParseUint(t, 10, 16)
	return err == nil
}

// dialled is an address that others, or we, dial; it may be left out.
func dialled(field func(*Settings) *string) func(*Settings, string) error {
	set := address(field)
	return func(s *Settings, t string) error {
		if t == "" {
			return nil
		}
		if strings.HasSuffix(t, ":0") {
			return errors.New("want HOST:PORT ([ADDRESS]:PORT for IPv6), PORT from 1 to 65535: nobody can dial port 0")
		}
		return set(s, t)
	}
}

func size(field func(*Settings) *uint64) func(*Settings, string) error {
	return func(s *Settings, t string) (err error) { *field(s), err = bench.ParseBytes(t); return err }
}

func count(lo, hi uint64, field func(*Settings) *uint64) func(*Settings, string) error {
	return func(s *Settings, t string) error {
		n, err := strconv.ParseUint(t, 10, 64)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("want a whole number from %d to %d", lo, hi)
		}
		*field(s) = n
		return nil
	}
}

func boolean(field func(*Settings) *bool) func(*Settings, string) error {
	return func(s *Settings, t string) error {
		v, err := strconv.ParseBool(t)
		if err != nil {
			return fmt.Errorf("want true or false")
		}
		*field(s) = v
		return nil
	}
}

func share(field func(*Settings) *float64) func(*Settings, string) error {
	return func(s *Settings, t string) error {
		v, err := strconv.ParseFloat(t, 64)
		if err != nil || !(v >= 0 && v <= 1) {
			return fmt.Errorf("want a share from 0 to 1")
		}
		*field(s) = v
		return nil
	}
}

// maxDuration refuses what was meant in another unit; the number is arbitrary.
const maxDuration = time.Hour

func duration(field func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(s *Settings, t string) error {
		v, err := time.ParseDuration(t)
		if err != nil || v <= 0 || v > maxDuration {
			return fmt.Errorf("want a duration such as 500ms, more than 0 and at most %v", maxDuration)
		}
		*field(s) = v
		return nil
	}
}

func oneOf(field func(*Settings) *string, allowed ...string) func(*Settings, string) error {
	return func(s *Settings, t string) error {
		if slices.Contains(allowed, t) {
			*field(s) = t
			return nil
		}
		return fmt.Errorf("want one of %s", strings.Join(allowed, ", "))
	}
}

func setGID(s *Settings, t string) error {
	if _, err := strconv.ParseUint(t, 10, 8); err != nil && t != "" && t != "ipv4" && t != "ipv6" {
		return fmt.Errorf("want ipv4, ipv6 or an index from 0 to 255")
	}
	s.RDMAGID = t
	return nil
}

func setHTTP(s *Settings, t string) error {
	if t == Off {
		s.HTTP = t
		return nil
	}
	return address(func(s *Settings) *string { return &s.HTTP })(s, t)
}

func setLocality(s *Settings, t string) error {
	modes := map[string]domain.LocalityMode{"fill": domain.LocalityFill, "pull": domain.LocalityPullOnly, "off": domain.LocalityOff}
	m, ok := modes[t]
	if !ok {
		return fmt.Errorf("want fill, pull or off")
	}
	s.Node.Locality = m
	return nil
}

func setChecksum(s *Settings, t string) error {
	if t != "on" && t != "off" {
		return errors.New("want on or off")
	}
	s.Node.NoChecksums = t == "off"
	return nil
}

func setAdmission(s *Settings, t string) error {
	kinds := map[string]domain.AdmissionKind{"size": domain.AdmitSize, "always": domain.AdmitAlways, "never": domain.AdmitNever}
	k, ok := kinds[t]
	if !ok {
		return fmt.Errorf("want size, always or never")
	}
	s.Node.Admission.Kind = k
	return nil
}

// setDevices reads ordinals, each once.
func setDevices(s *Settings, t string) error {
	for part := range strings.SplitSeq(t, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 8)
		if err != nil || slices.Contains(s.GPUDevices, int(n)) {
			return fmt.Errorf("want ordinals from 0 to 255, each once")
		}
		s.GPUDevices = append(s.GPUDevices, int(n))
	}
	return nil
}

func setPeers(s *Settings, t string) (err error) {
	s.Peers, err = ParsePeers(t)
	return err
}

// checkID refuses the id of a node that could not start, or that no list of peers can name.
func checkID(id string) error {
	if strings.ContainsAny(id, ",=") || strings.TrimSpace(id) != id {
		return errors.New("want an id without commas, equals signs and white space at its ends")
	}
	return grpcpeer.CheckID(ports.PeerID(id))
}

// ParsePeers reads ID=HOST:PORT,...
func ParsePeers(t string) (peers []Peer, err error) {
	if t == "" {
		return nil, nil
	}
	seen := make(map[string]bool)
	for part := range strings.SplitSeq(t, ",") {
		id, addr, ok := strings.Cut(strings.TrimSpace(part), "=")
		if host, port, err := net.SplitHostPort(addr); !ok || id == "" || host == "" || !isPort(port) || port == "0" || err != nil {
			return nil, fmt.Errorf("peer %q: want ID=HOST:PORT, PORT from 1 to 65535", part)
		}
		if err := checkID(id); err != nil {
			return nil, fmt.Errorf("peer %q: %w", id, err)
		}
		if seen[id] {
			return nil, fmt.Errorf("peer %q is named twice", id)
		}
		seen[id] = true
		peers = append(peers, Peer{ID: ports.PeerID(id), Addr: addr})
	}
	return peers, nil
}
