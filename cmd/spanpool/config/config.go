// Package config resolves the daemon's settings: flag, then SPANPOOL_* variable, then YAML file, then default. An unknown key or a
// bad value is an error that names it and where it stands. Nothing below cmd reads a configuration.
package config

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

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
	HTTP            string
	Transport       string
	Medium          string
	MediumBytes     uint64
	PageBytes       uint64
	HugePages       bool
	GetArenaBytes   uint64
	PutArenaBytes   uint64
	Prefetch        bool
	CacheRemote     bool
	Drain           time.Duration
	LogLevel        string
	Node            app.Config

	from map[string]origin
}

// origin is a setting's text and where it came from.
type origin struct{ text, source string }

// Off is how a part that has an address is left out.
const Off = "off"

// prefix is of the variables; those of the tests share it.
const prefix = "SPANPOOL_"

var testVariables = []string{"SPANPOOL_REQUIRE", "SPANPOOL_E2E_HOSTS"}

// Flags adds a flag for every setting, and --config.
func Flags(f *pflag.FlagSet) {
	f.String("config", "", "YAML file with settings")
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

// Load resolves the settings. environ is as of os.Environ.
func Load(flags *pflag.FlagSet, environ []string) (*Settings, error) {
	from := make(map[string]origin, len(options))
	for _, o := range options {
		from[o.key] = origin{o.value, "default"}
	}
	path, err := flags.GetString("config")
	if err != nil {
		return nil, err
	}
	if err := loadFile(path, from); err != nil {
		return nil, err
	}
	if err := loadEnvironment(environ, from); err != nil {
		return nil, err
	}
	for _, o := range options {
		if f := flags.Lookup(flagOf(o.key)); f != nil && f.Changed {
			from[o.key] = origin{f.Value.String(), "--" + f.Name}
		}
	}
	s := &Settings{from: from}
	for _, o := range options {
		at := from[o.key]
		if err := o.set(s, at.text); err != nil {
			return nil, &Error{Key: o.key, Value: at.text, Source: at.source, Want: err.Error()}
		}
	}
	return s, s.settle()
}

// loadFile reads a YAML file, nested or with dotted keys.
func loadFile(path string, from map[string]origin) error {
	if path == "" {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(data), yaml.Parser()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, key := range k.Keys() {
		if _, known := from[key]; !known {
			return &Error{Key: key, Value: k.String(key), Source: path, Want: "no such setting"}
		}
		text := k.String(key)
		if list := k.Strings(key); len(list) > 0 {
			text = strings.Join(list, ",")
		}
		from[key] = origin{text, path}
	}
	return nil
}

func loadEnvironment(environ []string, from map[string]origin) error {
	byVariable := make(map[string]string, len(options))
	for _, o := range options {
		byVariable[variableOf(o.key)] = o.key
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, prefix) || slices.Contains(testVariables, name) {
			continue
		}
		key, known := byVariable[name]
		if !known {
			return &Error{Key: name, Value: value, Source: "environment", Want: "no such setting"}
		}
		from[key] = origin{value, name}
	}
	return nil
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
	s.Node.ID = s.ID
	s.Node.NoRangedLocalityPrefetch = !s.Prefetch
	s.Node.NoCacheRemoteFetches = !s.CacheRemote
	if s.Node.LowWatermark > s.Node.HighWatermark {
		return s.errorAt("watermark.low", "want at most watermark.high")
	}
	if s.PageBytes == 0 || s.MediumBytes == 0 || s.MediumBytes%s.PageBytes != 0 {
		return s.errorAt("dram.bytes", fmt.Sprintf("want a multiple of dram.page_bytes (%d), more than 0", s.PageBytes))
	}
	if s.SecretFile != "" {
		data, err := os.ReadFile(s.SecretFile)
		if err != nil {
			return fmt.Errorf("secret_file: %w", err)
		}
		s.Secret = []byte(strings.TrimSpace(string(data)))
		if len(s.Secret) < minSecret {
			return s.errorAt("secret_file", fmt.Sprintf("holds %d bytes, want at least %d", len(s.Secret), minSecret))
		}
	}
	return s.checkListeners()
}

// minSecret is below any generated secret; the number is arbitrary.
const minSecret = 16

// checkListeners refuses to be reachable from other hosts without a secret, and a debug address that is.
func (s *Settings) checkListeners() error {
	if s.Secret == nil && !s.Insecure {
		for key, addr := range map[string]string{"listen": s.Listen, "data.listen": s.DataListen} {
			if !loopback(addr) {
				return s.errorAt(key, "beyond loopback it needs secret_file, or --insecure")
			}
		}
	}
	if s.HTTP != Off && !loopback(s.HTTP) {
		return s.errorAt("http", "want an address on loopback, or off")
	}
	return nil
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

// Print writes every setting, its value and where that came from. The secret is not among them; the name of its file is.
func (s *Settings) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, o := range options {
		at := s.from[o.key]
		fmt.Fprintf(t, "%s:\t%q\t# %s\n", o.key, at.text, at.source)
	}
	return t.Flush()
}
