// Package config resolves the daemon's settings: flag, then SPANPOOL_* variable, then YAML file, then default. An unknown key or a
// bad value is an error that names it and where it stands. Nothing below cmd reads a configuration.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/ports"
)

// Peer is another node and where its control plane listens.
type Peer struct {
	ID   ports.PeerID
	Addr string
}

// Settings is a configuration that was checked.
type Settings struct {
	ID              ports.PeerID
	Listen          string
	DataListen      string
	DataAdvertise   string
	DataConnections uint64
	Peers           []Peer
	SecretFile      string
	Secret          []byte // what SecretFile holds, less the white space around it
	Insecure        bool
	Socket          string
	ClientBytes     uint64 // of each client in flight
	ClientRegions   uint64
	ClientSessions  uint64
	Clients         uint64
	HTTP            string
	Transport       string
	Medium          string
	MediumBytes     uint64
	PageBytes       uint64
	HugePages       bool
	RDMADevice      string
	RDMAGID         string
	RDMAReadPairs   uint64
	RDMAWritePairs  uint64
	RDMADepth       uint64
	RDMAScatter     uint64
	RDMAReads       uint64
	GPURuntime      string
	GPULibrary      string
	GPUClients      bool
	GPUNIC          bool
	GPUDevices      []int
	GPUReserve      uint64
	GPUDeadline     time.Duration
	GetArenaBytes   uint64
	PutArenaBytes   uint64
	Prefetch        bool
	CacheRemote     bool
	TracingOTLP     string
	TracingSample   float64
	Drain           time.Duration
	LogLevel        string
	Node            app.Config

	from map[string]origin
}

// origin is a setting's text and where it came from.
type origin struct{ text, source string }

// DefaultSocket is where the daemon's socket is, and where ctl looks for it.
const DefaultSocket = "/run/spanpool/engine.sock"

// Off is how a part that has an address is left out.
const Off = "off"

// prefix is of the variables.
const prefix = "SPANPOOL_"

// fileVariable names the file where --config does not.
const fileVariable = prefix + "CONFIG"

// others are the variables with the prefix that are no settings: the file's, those of spanpool.umbp, which may share a shell or a
// container with the daemon, and those of the tests.
var others = []string{fileVariable, "SPANPOOL_NAMESPACE", "SPANPOOL_EXISTS_TIMEOUT", "SPANPOOL_CALL_TIMEOUT", "SPANPOOL_QUIET_TIMEOUT",
	"SPANPOOL_REQUIRE", "SPANPOOL_RDMA_DEVICES"}

const testsPrefix = prefix + "E2E_"

// ofService matches what Kubernetes sets in every container for a service that is called spanpool, or spanpool-something.
var ofService = regexp.MustCompile(
	`^SPANPOOL_([A-Z0-9_]+_)?(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)=|PORT=(tcp|udp|sctp)://|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=)`)

func variable(environ []string, name string) string {
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// unknown leaves the value out: it may be a secret that someone wrote where no setting is.
func unknown(key, source string) error { return fmt.Errorf("%s (%s): no such setting", key, source) }

// Flags adds a flag for every setting, and --config.
func Flags(f *pflag.FlagSet) {
	f.String("config", "", "YAML file with settings; default: what SPANPOOL_CONFIG names, or none")
	for _, o := range options {
		f.String(flagOf(o.key), o.value, o.help)
	}
	f.Lookup(flagOf("insecure")).NoOptDefVal = "true"
}

func flagOf(key string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(key) }

func variableOf(key string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// Error is a setting that cannot be used.
type Error struct{ Key, Value, Source, Want string }

func (e *Error) Error() string {
	return fmt.Sprintf("%s = %q (%s): %s", e.Key, e.Value, e.Source, e.Want)
}

// Load resolves the settings. environ is as of os.Environ. The error names every setting that is unknown or bad by itself; without
// such, every one that does not go with the others.
func Load(flags *pflag.FlagSet, environ []string) (*Settings, error) {
	from := make(map[string]origin, len(options))
	for _, o := range options {
		from[o.key] = origin{o.value, "default"}
	}
	path, err := flags.GetString("config")
	if err != nil {
		return nil, err
	}
	if path == "" {
		path = variable(environ, fileVariable)
	}
	errs := []error{loadFile(path, from), loadEnvironment(environ, from)}
	for _, o := range options {
		if f := flags.Lookup(flagOf(o.key)); f != nil && f.Changed {
			from[o.key] = origin{f.Value.String(), "--" + f.Name}
		}
	}
	s := &Settings{from: from}
	for _, o := range options {
		at := from[o.key]
		if err := o.set(s, at.text); err != nil {
			errs = append(errs, &Error{Key: o.key, Value: at.text, Source: at.source, Want: err.Error()})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, s.settle()
}

// loadFile reads a YAML file, nested or with dotted keys.
func loadFile(path string, from map[string]origin) error {
	if path == "" {
		return nil
	}
	data, err := readFile(path, maxFile)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	file, err := yaml.Parser().Unmarshal(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var errs []error
	if n := documents(data); n > 1 {
		errs = append(errs, fmt.Errorf("%s: %d YAML documents, want one: the others would not count", path, n))
	}
	for _, key := range twice(file) {
		errs = append(errs, fmt.Errorf("%s (%s): it stands there twice, nested and with dots", key, path))
	}
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(data), yaml.Parser()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, key := range k.Keys() {
		if _, known := from[key]; !known {
			errs = append(errs, unknown(key, path))
			continue
		}
		text := k.String(key)
		if _, list := k.Get(key).([]any); list {
			text = strings.Join(k.Strings(key), ",")
		}
		from[key] = origin{text, path}
	}
	return errors.Join(errs...)
}

// What files may have; the numbers are arbitrary, far above what there is to say. A name may be that of a device without an end.
const (
	maxFile   = 1 << 20
	maxSecret = 64 << 10
)

// readFile reads a file of at most so many bytes.
func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s holds more than %d bytes", path, most)
	}
	return data, err
}

// documents counts the YAML documents that say something, up to one that is none.
func documents(data []byte) (n int) {
	for d := yamlv3.NewDecoder(bytes.NewReader(data)); ; {
		var doc any
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return n
		case err != nil:
			return n + 1
		case doc != nil:
			n++
		}
	}
}

// twice finds the settings that a file gives in both of its forms: which of the two counted would be by chance.
func twice(file map[string]any) (keys []string) {
	for key := range file {
		first, rest, dotted := strings.Cut(key, ".")
		if within, ok := file[first].(map[string]any); dotted && ok {
			if _, there := within[rest]; there {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

func loadEnvironment(environ []string, from map[string]origin) error {
	byVariable := make(map[string]string, len(options))
	for _, o := range options {
		byVariable[variableOf(o.key)] = o.key
	}
	var errs []error
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, prefix) || strings.HasPrefix(name, testsPrefix) || slices.Contains(others, name) || ofService.MatchString(e) {
			continue
		}
		key, known := byVariable[name]
		if !known {
			errs = append(errs, unknown(name, "environment"))
			continue
		}
		from[key] = origin{value, name}
	}
	return errors.Join(errs...)
}

// settle checks what more than one setting decides, and fills what follows from the machine.
func (s *Settings) settle() error {
	if s.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("node.id: the host has no name: %w", err)
		}
		s.ID = ports.PeerID(host)
		s.from["node.id"] = origin{host, "host name"}
	}
	var errs []error
	bad := func(key, want string) { errs = append(errs, s.errorAt(key, want)) }
	if err := checkID(string(s.ID)); err != nil {
		bad("node.id", err.Error())
	}
	s.Node.ID = s.ID
	s.Node.NoRangedLocalityPrefetch = !s.Prefetch
	s.Node.NoCacheRemoteFetches = !s.CacheRemote
	if s.Node.HighWatermark == 0 {
		s.Node.LowWatermark = 0 // it is off, wherever it would end
	}
	if s.Node.LowWatermark > s.Node.HighWatermark {
		bad("watermark.low", "want at most watermark.high")
	}
	if s.Node.BreakerMin > s.Node.BreakerMax {
		bad("breaker.min", "want at most breaker.max")
	}
	if s.Node.FillingShare == 0 {
		bad("filling_share", "want more than 0")
	}
	if s.Node.Admission.MaxBytes == 0 {
		bad("admission.max_bytes", "want more than 0 (to let nothing in, admission: never)")
	}
	if s.Socket == "" || len(s.Socket) > maxSocket {
		bad("socket", fmt.Sprintf("want a path of at most %d bytes, or off", maxSocket))
	}
	if s.ClientBytes == 0 {
		bad("clients.bytes_in_flight", "want more than 0")
	}
	if s.PageBytes == 0 {
		bad("dram.page_bytes", "want more than 0")
	}
	if s.MediumBytes == 0 || s.PageBytes > 0 && s.MediumBytes%s.PageBytes != 0 {
		bad("dram.bytes", fmt.Sprintf("want a multiple of dram.page_bytes (%d), more than 0", s.PageBytes))
	}
	if s.SecretFile != "" {
		var err error
		if s.Secret, err = ReadSecret(s.SecretFile); err != nil {
			bad("secret_file", err.Error())
		}
	}
	s.checkListeners(bad)
	return errors.Join(errs...)
}

// maxSocket leaves room in an address (107 bytes and a zero on Linux) for the ending of the second socket.
const maxSocket = 107 - len(".fd")

// minSecret is below any generated secret; the number is arbitrary.
const minSecret = 16

// ReadSecret is what a file of at most 64 KiB holds, less the white space around it.
func ReadSecret(path string) ([]byte, error) {
	data, err := readFile(path, maxSecret)
	if err != nil {
		return nil, err
	}
	secret := []byte(strings.TrimSpace(string(data)))
	if len(secret) < minSecret {
		return nil, fmt.Errorf("%s holds %d bytes, want at least %d", path, len(secret), minSecret)
	}
	return secret, nil
}

// checkListeners refuses to be reachable from other hosts without a secret, and a debug address that is.
func (s *Settings) checkListeners(bad func(key, want string)) {
	if s.SecretFile == "" && !s.Insecure {
		for _, l := range []struct{ key, addr string }{{"listen", s.Listen}, {"data.listen", s.DataListen}} {
			if !loopback(l.addr) {
				bad(l.key, "beyond loopback it needs secret_file, or --insecure")
			}
		}
	}
	if s.DataAdvertise == "" && everywhere(s.DataListen) {
		bad("data.advertise", "want what peers dial, since data.listen names no interface")
	}
	if s.DataAdvertise != "" && everywhere(s.DataAdvertise) {
		bad("data.advertise", "want what peers dial, and no address of every interface")
	}
	if s.HTTP != Off && !loopback(s.HTTP) {
		bad("http", "want an address on loopback, or off")
	}
}

// everywhere reports whether an address is that of every interface.
func everywhere(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	return host == "" || net.ParseIP(host).IsUnspecified()
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (s *Settings) errorAt(key, want string) error {
	at := s.from[key]
	return &Error{Key: key, Value: at.text, Source: at.source, Want: want}
}

// Build is what this build can do that others cannot.
type Build struct{ GPU, RDMA bool }

// CheckBuild refuses settings with which serve does not start in this build.
func (s *Settings) CheckBuild(b Build) error {
	const want = "want a build with cgo and the tag %s, which this one is not; or leave it out"
	var errs []error
	for _, c := range []struct {
		key, tag string
		lacks    bool
	}{
		{"medium", "gpu", s.Medium == "hbm" && !b.GPU},
		{"gpu.clients", "gpu", s.GPUClients && !b.GPU},
		{"transport", "rdma", s.Transport == "rdma" && !b.RDMA},
	} {
		if c.lacks {
			errs = append(errs, s.errorAt(c.key, fmt.Sprintf(want, c.tag)))
		}
	}
	return errors.Join(errs...)
}

// UsesGPU says whether anything of the node lies on a GPU, or may.
func (s *Settings) UsesGPU() bool { return s.Medium == "hbm" || s.GPUClients }

// Each gives every setting, its value and where that came from, in a fixed order. The secret is not among them; the name of its file
// is.
func (s *Settings) Each(f func(key, value, source string)) {
	for _, o := range options {
		at := s.from[o.key]
		f(o.key, at.text, at.source)
	}
}

// Print writes what Each gives as a file that Load reads.
func (s *Settings) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	s.Each(func(key, value, source string) { fmt.Fprintf(t, "%s:\t%q\t# %s\n", key, value, source) })
	return t.Flush()
}

// Warnings is what whoever looks at the daemon should know.
func (s *Settings) Warnings() (all []string) {
	if s.Insecure && s.Secret == nil && !(loopback(s.Listen) && loopback(s.DataListen)) {
		all = append(all, "insecure: it listens beyond loopback without a shared secret; whoever reaches its ports reads and writes the pool")
	}
	if len(s.Peers) > 0 && !slices.ContainsFunc(s.Peers, func(p Peer) bool { return p.ID != s.ID }) {
		all = append(all, "peers: this node's own id is the only one, and a node leaves itself out; nodes of one pool have a node.id each")
	}
	return all
}
