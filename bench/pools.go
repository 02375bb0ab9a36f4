package bench

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spanpool/spanpool/domain"
)

// Limits of a shape. An object's layers are its put-ranges, hence the first; the others are arbitrary and far beyond models.
const (
	maxPoolLayers  = domain.MaxPutRanges
	maxLayerNumber = 1<<16 - 1
	maxPools       = 64
	maxPoolName    = 64
)

// Preset is a model's pools, as a spec for --pools.
type Preset struct {
	Name, Pools string
	// FixedRanges is how many ranges a restore issues besides, in pools that do not grow with its length and that the spec
	// leaves out: their sizes were not published, and a restore reads each of them once.
	FixedRanges int
}

// Presets are the shapes that figures are published for.
var Presets = []Preset{
	{Name: "deepseek-v3.2", Pools: "kv:61:73728"},
	{Name: "deepseek-v3.2-indexer", Pools: "indexer:61:8448"},
	{
		Name:        "deepseek-v4",
		Pools:       "c4:30:37440:2/2;c4_indexer:30:8448:2/2;c128:31:1728:0," + oddLayers(59),
		FixedRanges: 121,
	},
}

// oddLayers is "1,3,...,last".
func oddLayers(last int) string {
	var b strings.Builder
	for l := 1; l <= last; l += 2 {
		if l > 1 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(l))
	}
	return b.String()
}

// PresetNames lists the presets.
func PresetNames() []string {
	names := make([]string, len(Presets))
	for i, p := range Presets {
		names[i] = p.Name
	}
	return names
}

// FindPreset finds a preset by its name.
func FindPreset(name string) (Preset, error) {
	for _, p := range Presets {
		if p.Name == name {
			return p, nil
		}
	}
	return Preset{}, badOption("--preset", name, "unknown; available: %s", join(PresetNames()))
}

// Pool is the layers that one kind of object holds: one object per page, its layers back to back.
type Pool struct {
	Name       string
	LayerBytes uint64
	Layers     []int // the model's numbers; Layers[i] lies at [i x LayerBytes, (i+1) x LayerBytes) of the object
}

// ObjectBytes is the size of an object of the pool.
func (p Pool) ObjectBytes() uint64 { return uint64(len(p.Layers)) * p.LayerBytes }

// ParsePools reads `name:layers:layer_bytes[:first/stride | :l1,l2,...]` entries joined by `;`. Without a placement the layers
// are 0, 1, 2, and so on; a list has exactly `layers` entries, each once.
func ParsePools(spec string) ([]Pool, error) {
	entries := strings.Split(spec, ";")
	if len(entries) > maxPools {
		return nil, fmt.Errorf("pools: %d, limit %d", len(entries), maxPools)
	}
	pools := make([]Pool, 0, len(entries))
	for _, e := range entries {
		p, err := parsePool(e)
		if err != nil {
			return nil, fmt.Errorf("pool %q: %w", e, err)
		}
		for _, other := range pools {
			if other.Name == p.Name {
				return nil, fmt.Errorf("pool %q: the name %q is taken by an earlier pool", e, p.Name)
			}
		}
		pools = append(pools, p)
	}
	return pools, nil
}

func parsePool(entry string) (Pool, error) {
	fields := strings.Split(entry, ":")
	if len(fields) < 3 || len(fields) > 4 {
		return Pool{}, fmt.Errorf("%d fields, want name:layers:layer_bytes[:first/stride | :l1,l2,...]", len(fields))
	}
	if err := checkPoolName(fields[0]); err != nil {
		return Pool{}, err
	}
	count, err := parseCount("layers", fields[1], maxPoolLayers)
	if err != nil {
		return Pool{}, err
	}
	bytes, err := parseCount("layer_bytes", fields[2], domain.MaxObjectSize/count)
	if err != nil {
		return Pool{}, err
	}
	placement := "0/1"
	if len(fields) == 4 {
		placement = fields[3]
	}
	layers, err := parsePlacement(placement, int(count))
	return Pool{Name: fields[0], LayerBytes: bytes, Layers: layers}, err
}

// checkPoolName keeps names fit for keys and for CSV.
func checkPoolName(name string) error {
	if name == "" || len(name) > maxPoolName {
		return fmt.Errorf("name of %d bytes, want 1 to %d", len(name), maxPoolName)
	}
	for _, c := range name {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("_-.", c) {
			return fmt.Errorf("name %q: want letters, digits, '_', '-' and '.'", name)
		}
	}
	return nil
}

// parseCount reads a number from 1 to limit.
func parseCount(what, text string, limit uint64) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %q: want a number from 1 to %d", what, text, limit)
	}
	if n == 0 || n > limit {
		return 0, fmt.Errorf("%s %d: want 1 to %d", what, n, limit)
	}
	return n, nil
}

func parsePlacement(text string, count int) ([]int, error) {
	if first, stride, ok := strings.Cut(text, "/"); ok {
		return parseStride(first, stride, count)
	}
	return parseLayerList(text, count)
}

func parseStride(firstText, strideText string, count int) ([]int, error) {
	first, err := parseLayer("first", firstText)
	if err != nil {
		return nil, err
	}
	stride, err := parseCount("stride", strideText, maxLayerNumber)
	if err != nil {
		return nil, err
	}
	if last := uint64(first) + uint64(count-1)*stride; last > maxLayerNumber {
		return nil, fmt.Errorf("last layer %d, limit %d", last, maxLayerNumber)
	}
	layers := make([]int, count)
	for i := range layers {
		layers[i] = first + i*int(stride)
	}
	return layers, nil
}

func parseLayerList(text string, count int) ([]int, error) {
	items := strings.Split(text, ",")
	if len(items) != count {
		return nil, fmt.Errorf("%d layers listed, want exactly %d", len(items), count)
	}
	seen := make(map[int]bool, count)
	layers := make([]int, count)
	for i, item := range items {
		l, err := parseLayer("layer", item)
		if err != nil {
			return nil, err
		}
		if seen[l] {
			return nil, fmt.Errorf("layer %d listed twice", l)
		}
		seen[l], layers[i] = true, l
	}
	return layers, nil
}

// parseLayer reads a layer's number; unlike counts it may be 0.
func parseLayer(what, text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > maxLayerNumber {
		return 0, fmt.Errorf("%s %q: want a number from 0 to %d", what, text, maxLayerNumber)
	}
	return int(n), nil
}

func join(names []string) string { return strings.Join(names, ", ") }
